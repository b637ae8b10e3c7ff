'use strict';
const { fault, within, sure, drain, Inbox } = require('./harness');

const pattern = (size) => {
  const body = Buffer.alloc(size);
  for (let index = 0; index < size; index++) body[index] = (index * 7 + (index >> 8)) & 255;
  return body;
};

async function roundTrip(t, body, options) {
  const ch = await t.confirmCh();
  const { queue } = await ch.assertQueue('', { exclusive: true });
  await sure(ch, '', queue, body, options);
  const message = await ch.get(queue, { noAck: true });
  await ch.close();
  return message;
}

// Undefined fields do not show in JSON, big integers cannot.
const tell = (value) =>
  JSON.parse(JSON.stringify(value, (_, inner) => (typeof inner === 'bigint' ? `${inner}n` : inner && inner.type === 'Buffer' ? Buffer.from(inner.data).toString('hex') : inner)));

module.exports = [
  {
    name: 'publish.properties',
    async run(t) {
      const all = {
        contentType: 'application/json', contentEncoding: 'gzip', headers: { h: 'v' }, deliveryMode: 2, priority: 7, correlationId: 'c', replyTo: 'r', expiration: '60000', messageId: 'm', timestamp: 1700000000, type: 't', userId: 'guest', appId: 'a',
      };
      const message = await roundTrip(t, 'body', all);
      t.saw('all of them', tell(message.properties), all);
      t.saw('fields', { ...message.fields, routingKey: message.fields.routingKey.startsWith('amq.gen-') }, { deliveryTag: 1, redelivered: false, exchange: '', routingKey: true, messageCount: 0 });
      const bare = await roundTrip(t, '', {});
      t.saw('none of them', tell(bare.properties), { headers: {} });
      t.saw('empty body', bare.content.length, 0);
      t.saw('persistent', (await roundTrip(t, 'x', { persistent: true })).properties.deliveryMode, 2);
      t.saw('text in UTF-8', (await roundTrip(t, 'żółw 🐢', { messageId: 'żółw', headers: { 'klucz-ż': 'wartość' } })).properties.headers, { 'klucz-ż': 'wartość' });
    },
  },
  {
    name: 'publish.header-types',
    async run(t) {
      const sent = {
        text: 'x', empty: '', yes: true, no: false, byte: 5, short: 300, int: 70000, long: 5000000000, negative: -5, double: 3.25, nothing: null, list: [1, 'two', null, [true], { deep: 1 }], table: { inner: { deep: 'x' } },
        int8: { '!': 'int8', value: -8 }, uint8: { '!': 'uint8', value: 200 }, int16: { '!': 'int16', value: -300 }, uint16: { '!': 'uint16', value: 60000 }, int32: { '!': 'int32', value: -70000 }, uint32: { '!': 'uint32', value: 4000000000 },
        int64: { '!': 'int64', value: -5000000000 }, float: { '!': 'float', value: 1.5 }, time: { '!': 'timestamp', value: 1700000000 }, decimal: { '!': 'decimal', value: { places: 2, digits: 314 } }, bytes: Buffer.from('00ff07', 'hex'),
      };
      const want = {
        ...sent, int8: -8, uint8: 200, int16: -300, uint16: 60000, int32: -70000, uint32: 4000000000, int64: -5000000000, float: 1.5, bytes: '00ff07',
      };
      t.saw('every type', tell((await roundTrip(t, 'x', { headers: sent })).properties.headers), want);
      let nested = { end: 'here' };
      for (let depth = 0; depth < 30; depth++) nested = { in: nested };
      t.saw('thirty deep', JSON.stringify((await roundTrip(t, 'x', { headers: nested })).properties.headers) === JSON.stringify(nested), true);
      const many = Object.fromEntries(Array.from({ length: 1000 }, (_, index) => [`header-${index}`, index]));
      t.saw('a thousand headers', Object.keys((await roundTrip(t, 'x', { headers: many })).properties.headers).length, 1000);
    },
  },
  {
    name: 'publish.sizes',
    async run(t) {
      for (const size of [1, 131063, 131064, 131065, 300000, 5000000]) t.saw(`${size} bytes`, pattern(size).equals((await roundTrip(t, pattern(size))).content), true);
      await t.fails('more than the broker takes', (ch) => ch.sendToQueue(t.n('nowhere'), Buffer.alloc(17000000)),
        fault(406, 'PRECONDITION_FAILED - message size 17000000 is larger than configured max size 16777216'));
    },
  },
  {
    name: 'publish.mandatory',
    async run(t) {
      const ch = await t.confirmCh();
      const events = [];
      const returns = new Inbox();
      ch.on('return', (message) => {
        events.push(`return ${message.content}`);
        returns.callback(message);
      });
      for (const body of ['1', '2', '3']) ch.publish('', t.n('nowhere'), Buffer.from(body), { mandatory: true, headers: { h: 1 } }, (error) => events.push(`${error ? 'nack' : 'ack'} ${body}`));
      await within(ch.waitForConfirms(), 'confirms');
      const before = ['1', '2', '3'].every((body) => events.indexOf(`return ${body}`) < events.indexOf(`ack ${body}`) && events.includes(`return ${body}`));
      t.saw('every return strictly before its ack', [before, events.length], [true, 6]);
      const { fields, properties, content } = await returns.next('return');
      t.saw('a return', { fields, headers: properties.headers, body: content.toString() },
        { fields: { replyCode: 312, replyText: 'NO_ROUTE', exchange: '', routingKey: t.n('nowhere') }, headers: { h: 1 }, body: '1' });
      const queue = await t.queue(ch, 'q');
      const count = events.length;
      await sure(ch, '', queue, 'x', { mandatory: true });
      await sure(ch, '', t.n('nowhere'), 'x');
      t.saw('routed, or not mandatory: no return', events.length, count);
    },
  },
  {
    name: 'publish.errors',
    async run(t) {
      await t.fails('bad expiration', (ch) => ch.publish('', 'k', Buffer.from('x'), { expiration: 'soon' }));
      await t.fails("another's user id", (ch) => ch.publish('', 'k', Buffer.from('x'), { userId: 'someone' }),
        fault(406, "PRECONDITION_FAILED - user_id property set to 'someone' but authenticated user was 'guest'"));
      await t.fails('CC is not a list', (ch) => ch.publish('', 'k', Buffer.from('x'), { headers: { CC: 'one' } }));
    },
  },
  {
    name: 'publish.cc',
    async run(t) {
      const ch = await t.confirmCh();
      const [to, cc, bcc] = [await t.queue(ch, 'to'), await t.queue(ch, 'cc'), await t.queue(ch, 'bcc')];
      await sure(ch, '', to, 'x', { CC: [cc, to], BCC: bcc });
      for (const queue of [to, cc, bcc]) {
        const message = await ch.get(queue, { noAck: true });
        t.saw(queue, [message.properties.headers, message.fields.routingKey, message.fields.messageCount], [{ CC: [cc, to] }, to, 0]);
      }
    },
  },
  {
    name: 'confirm.callbacks',
    async run(t) {
      const ch = await t.confirmCh();
      const queue = await t.queue(ch, 'q');
      let acked = 0;
      let called = 0;
      for (let index = 0; index < 3000; index++) {
        ch.sendToQueue(queue, Buffer.from(String(index)), {}, (error) => {
          called++;
          if (!error) acked++;
        });
      }
      await within(ch.waitForConfirms(), 'confirms');
      t.saw('each callback once, all acks', [called, acked], [3000, 3000]);
      t.saw('all in the queue', await ch.purgeQueue(queue), { messageCount: 3000 });
      t.saw('nothing to wait for', await within(ch.waitForConfirms(), 'confirms').then((all) => all.length), 0);
      t.saw('unroutable', await sure(ch, '', t.n('nowhere'), 'x'), true);
      t.saw('persistent', await sure(ch, '', queue, 'x', { persistent: true }), true);
      t.saw('expired', await sure(ch, '', queue, 'x', { expiration: 0 }), true);
    },
  },
  {
    name: 'confirm.channel-closed',
    async run(t) {
      const ch = await t.confirmCh();
      const first = sure(ch, '', t.n('nowhere'), 'x');
      t.saw('before', await first, true);
      const ends = [];
      for (let index = 0; index < 3; index++) ends.push(new Promise((resolve) => ch.publish(t.n('missing'), 'k', Buffer.from('x'), {}, (error) => resolve(error ? error.message : 'ack'))));
      t.saw('what waits for a confirm when the channel closes', await within(Promise.all(ends), 'callbacks'), ['channel closed', 'channel closed', 'channel closed']);
    },
  },
  {
    // The write buffer of the library fills; the broker drains it.
    name: 'publish.drain',
    async run(t) {
      const ch = await t.confirmCh();
      const queue = await t.queue(ch, 'q');
      const body = pattern(50000);
      for (let index = 0; index < 300; index++) {
        if (!ch.sendToQueue(queue, body)) await within(new Promise((resolve) => ch.once('drain', resolve)), 'drain');
      }
      await within(ch.waitForConfirms(), 'confirms', 15000);
      t.saw('all arrived', await ch.purgeQueue(queue), { messageCount: 300 });
    },
  },
];
