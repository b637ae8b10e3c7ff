'use strict';
const { fault, sleep, within, sure, drain, eventually, Inbox } = require('./harness');

const notFound = (name) => fault(404, `NOT_FOUND - no queue '${name}' in vhost '/'`);
const REPLY_TO = 'amq.rabbitmq.reply-to';

async function consume(ch, queue, options) {
  const inbox = new Inbox();
  const { consumerTag } = await ch.consume(queue, inbox.callback, options);
  inbox.tag = consumerTag;
  return inbox;
}

module.exports = [
  {
    name: 'consume.basics',
    async run(t) {
      const ch = await t.ch();
      const queue = await t.filled('q', 3);
      const inbox = await consume(ch, queue, { consumerTag: 'my-tag' });
      t.saw('tag', inbox.tag, 'my-tag');
      const first = await inbox.next();
      t.saw('fields', first.fields, { consumerTag: 'my-tag', deliveryTag: 1, redelivered: false, exchange: '', routingKey: queue });
      const [second, third] = [await inbox.next(), await inbox.next()];
      ch.ack(second, true);
      ch.ack(third);
      await ch.checkQueue(queue);
      await ch.close();
      t.saw('all acked', await t.ready(queue), 0);
      const other = await t.ch();
      t.saw('tag from the server', /^amq\.ctag-[A-Za-z0-9_-]{22}$/.test((await consume(other, queue)).tag), true);
      await t.fails('missing queue', (c) => c.consume(t.n('missing'), () => {}), notFound(t.n('missing')));
      await t.fails('tag used twice', async (c) => {
        await c.consume(queue, () => {}, { consumerTag: 'same' });
        await c.consume(queue, () => {}, { consumerTag: 'same' });
      }, fault(530, "NOT_ALLOWED - attempt to reuse consumer tag 'same'", 'connection'));
    },
  },
  {
    name: 'consume.order',
    async run(t) {
      const count = 5000;
      const ch = await t.ch();
      const queue = await t.queue(ch, 'q');
      await ch.prefetch(100);
      let ordered = true;
      let seen = 0;
      const finished = new Promise((resolve) => {
        ch.consume(queue, (message) => {
          ordered = ordered && message.content.toString() === String(seen) && message.fields.deliveryTag === seen + 1;
          seen++;
          if (seen % 50 === 0) ch.ack(message, true);
          if (seen === count) resolve();
        });
      });
      await t.fill(queue, 0, count);
      await within(finished, 'end');
      t.saw('5000 in order', ordered, true);
    },
  },
  {
    name: 'consume.prefetch',
    async run(t) {
      const ch = await t.ch();
      const queue = await t.filled('q', 10);
      await ch.prefetch(2);
      const inbox = await consume(ch, queue);
      const held = [await inbox.next(), await inbox.next()];
      t.saw('two, then none', await inbox.quiet(), true);
      ch.ack(held[0]);
      t.saw('one more for an ack', await inbox.take(1), ['2']);
      await ch.prefetch(4);
      t.saw('the consumer keeps its limit', await inbox.quiet(), true);
      ch.nack(held[1]);
      const again = await inbox.next();
      t.saw('requeued and back', [again.content.toString(), again.fields.redelivered, again.fields.deliveryTag], ['1', true, 4]);
      await ch.close();
      const shared = await t.ch();
      const [one, two] = [await t.filled('one', 5), await t.filled('two', 5)];
      await shared.prefetch(3, true);
      const [first, second] = [await consume(shared, one), await consume(shared, two)];
      await sleep(200);
      t.saw('a limit for the channel', first.messages.length + second.messages.length, 3);
      await shared.prefetch(6, true);
      await sleep(200);
      t.saw('raised', first.messages.length + second.messages.length, 6);
      shared.ackAll();
      await sleep(200);
      t.saw('all acked', first.messages.length + second.messages.length, 10);
      shared.nackAll();
    },
  },
  {
    name: 'consume.nack',
    async run(t) {
      const ch = await t.ch();
      const queue = await t.filled('q', 4);
      const held = [];
      for (let index = 0; index < 4; index++) held.push(await ch.get(queue));
      ch.nack(held[1]);
      ch.reject(held[2], false);
      ch.reject(held[0]);
      await ch.checkQueue(queue);
      t.saw('requeued to the old places', await drain(ch, queue), ['0', '1']);
      ch.nackAll(true);
      await ch.checkQueue(queue);
      t.saw('nack of all', await drain(ch, queue), ['3']);
      const other = await t.filled('other', 3);
      const inbox = await consume(ch, other);
      await inbox.take(3);
      await ch.recover();
      const back = [await inbox.next(), await inbox.next(), await inbox.next()];
      t.saw('recovered', back.map((message) => [message.content.toString(), message.fields.redelivered]), [['0', true], ['1', true], ['2', true]]);
      ch.ackAll();
      await ch.checkQueue(other);
    },
  },
  {
    name: 'consume.ack-errors',
    async run(t) {
      const unknown = (tag) => fault(406, `PRECONDITION_FAILED - unknown delivery tag ${tag}`);
      const tag = (deliveryTag) => ({ fields: { deliveryTag } });
      await t.fails('ack', (c) => c.ack(tag(3)), unknown(3));
      await t.fails('ack of many', (c) => c.ack(tag(4), true), unknown(4));
      await t.fails('nack', (c) => c.nack(tag(5)), unknown(5));
      await t.fails('reject', (c) => c.reject(tag(6)), unknown(6));
      const queue = await t.filled('q', 1);
      await t.fails('ack twice', async (c) => {
        const message = await c.get(queue);
        c.ack(message);
        c.ack(message);
      }, unknown(1));
      const quiet = await t.ch();
      quiet.ackAll();
      quiet.nackAll();
      t.saw('all of nothing', (await quiet.checkQueue(queue)).messageCount, 0);
    },
  },
  {
    name: 'consume.cancel',
    async run(t) {
      const ch = await t.ch();
      const queue = await t.filled('q', 2);
      await ch.prefetch(1);
      const inbox = await consume(ch, queue, { consumerTag: 'c' });
      const held = await inbox.next();
      t.saw('cancel', await ch.cancel('c'), { consumerTag: 'c' });
      t.saw('cancel of an unknown tag', await ch.cancel('never'), { consumerTag: 'never' });
      t.saw('unacked stays, the other is ready', await t.ready(queue), 1);
      ch.ack(held);
      t.saw('the tag is free again', (await consume(ch, queue, { consumerTag: 'c' })).tag, 'c');
    },
  },
  {
    name: 'consume.server-cancel',
    async run(t) {
      const ch = await t.ch();
      const { queue } = await ch.assertQueue(t.n('q'), { durable: false });
      const inbox = await consume(ch, queue);
      await (await t.ch()).deleteQueue(queue);
      t.saw('the callback gets null', await inbox.next('cancel'), null);
      t.saw('the channel goes on', (await ch.assertQueue('', { exclusive: true })).messageCount, 0);
      const owner = await t.newConn();
      const lost = t.n('lost');
      await (await t.ch(owner)).assertQueue(lost, { durable: false });
      const second = await consume(ch, lost);
      await (await t.ch(owner)).deleteQueue(lost);
      t.saw('deleted by another connection', await second.next('cancel'), null);
    },
  },
  {
    name: 'consume.exclusive',
    async run(t) {
      const queue = await t.filled('q', 0);
      const ch = await t.ch();
      await consume(ch, queue, { exclusive: true, consumerTag: 'sole' });
      await t.fails('a second one', (c) => c.consume(queue, () => {}), fault(403, `ACCESS_REFUSED - queue '${queue}' in vhost '/' in exclusive use`));
      await ch.cancel('sole');
      await consume(ch, queue);
      await t.fails('exclusive after a shared one', (c) => c.consume(queue, () => {}, { exclusive: true }), fault(403, `ACCESS_REFUSED - queue '${queue}' in vhost '/' in exclusive use`));
    },
  },
  {
    name: 'consume.priority',
    async run(t) {
      const queue = await t.filled('q', 0);
      const ch = await t.ch();
      const low = await consume(ch, queue, { priority: 1, noAck: true });
      const high = await consume(ch, queue, { priority: 5, noAck: true });
      await t.fill(queue, 0, 3);
      t.saw('the higher priority gets all', [await high.take(3), await low.quiet()], [['0', '1', '2'], true]);
      await ch.cancel(high.tag);
      await t.fill(queue, 3, 4);
      t.saw('then the lower', await low.take(1), ['3']);
    },
  },
  {
    name: 'consume.fair',
    async run(t) {
      const queue = await t.filled('q', 0);
      const counts = [0, 0, 0, 0];
      for (const index of counts.keys()) {
        const ch = await t.ch();
        await ch.prefetch(1);
        await ch.consume(queue, (message) => {
          counts[index]++;
          ch.ack(message);
        });
      }
      await t.fill(queue, 0, 400);
      await eventually('all consumed', () => counts.reduce((sum, count) => sum + count) === 400);
      t.saw('no one is left out', counts.every((count) => count > 20), true);
    },
  },
  {
    name: 'get.counts',
    async run(t) {
      const ch = await t.ch();
      const queue = await t.filled('q', 2);
      const first = await ch.get(queue);
      t.saw('first', first.fields, { deliveryTag: 1, redelivered: false, exchange: '', routingKey: queue, messageCount: 1 });
      const second = await ch.get(queue);
      t.saw('second', second.fields.messageCount, 0);
      t.saw('empty', await ch.get(queue), false);
      ch.nack(first);
      const again = await ch.get(queue);
      t.saw('again', [again.fields.deliveryTag, again.fields.redelivered], [3, true]);
      ch.ackAll();
      await t.fails('missing', (c) => c.get(t.n('missing')), notFound(t.n('missing')));
    },
  },
  {
    name: 'rpc.direct-reply-to',
    async run(t) {
      const [client, server] = [await t.ch(), await t.ch(await t.newConn())];
      const { queue } = await server.assertQueue(t.n('q'), { durable: false, exclusive: true });
      await server.consume(queue, (message) => {
        server.sendToQueue(message.properties.replyTo, Buffer.from(`re:${message.content}`), { correlationId: message.properties.correlationId });
        server.ack(message);
      });
      const replies = await consume(client, REPLY_TO, { noAck: true });
      for (let index = 0; index < 50; index++) client.sendToQueue(queue, Buffer.from(String(index)), { replyTo: REPLY_TO, correlationId: `c${index}` });
      const got = [];
      for (let index = 0; index < 50; index++) got.push(await replies.next());
      t.saw('fifty replies in order', got.every((message, index) => message.content.toString() === `re:${index}` && message.properties.correlationId === `c${index}`), true);
      const twice = await t.ch();
      await consume(twice, REPLY_TO, { noAck: true });
      await t.fails('with acks', (c) => c.consume(REPLY_TO, () => {}), fault(406, 'PRECONDITION_FAILED - reply consumer cannot acknowledge'));
      await t.fails('twice', async (c) => {
        await c.consume(REPLY_TO, () => {}, { noAck: true });
        await c.consume(REPLY_TO, () => {}, { noAck: true });
      }, fault(406, 'PRECONDITION_FAILED - reply consumer already set'));
      await t.fails('without a consumer', (c) => c.sendToQueue('q', Buffer.from('x'), { replyTo: REPLY_TO }), fault(406, 'PRECONDITION_FAILED - fast reply consumer does not exist'));
    },
  },
  {
    // The tutorials' work queue: durable, persistent, prefetch 1, some work fails once.
    name: 'flow.work-queue',
    async run(t) {
      const ch = await t.confirmCh();
      const queue = (await ch.assertQueue(t.n('q'), { durable: true })).queue;
      for (let index = 0; index < 300; index++) ch.sendToQueue(queue, Buffer.from(String(index)), { persistent: true });
      await within(ch.waitForConfirms(), 'confirms');
      const done = new Set();
      let redelivered = 0;
      for (let worker = 0; worker < 3; worker++) {
        const own = await t.ch();
        await own.prefetch(1);
        await own.consume(queue, (message) => {
          if (message === null) return;
          const body = message.content.toString();
          if (message.fields.redelivered) redelivered++;
          if (body.endsWith('7') && !message.fields.redelivered) {
            own.nack(message);
            return;
          }
          done.add(body);
          own.ack(message);
        });
      }
      await eventually('all done', () => done.size === 300);
      t.saw('all done, the failed ones twice', [done.size, redelivered], [300, 30]);
      await t.cleanUp([queue]);
    },
  },
];
