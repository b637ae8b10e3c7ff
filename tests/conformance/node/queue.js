'use strict';
const { fault, sleep, sure, drain, eventually, Inbox } = require('./harness');

const notFound = (name) => fault(404, `NOT_FOUND - no queue '${name}' in vhost '/'`);
const locked = (name) =>
  fault(405, `RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '${name}' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration.`);

module.exports = [
  {
    name: 'queue.declare',
    async run(t) {
      const ch = await t.confirmCh();
      const name = t.n('q');
      t.saw('new', await ch.assertQueue(name, { durable: true }), { queue: name, messageCount: 0, consumerCount: 0 });
      await t.fill(name, 0, 3);
      t.saw('filled', await ch.checkQueue(name), { queue: name, messageCount: 3, consumerCount: 0 });
      await ch.consume(name, () => {});
      t.saw('consumed', await ch.assertQueue(name, { durable: true }), { queue: name, messageCount: 0, consumerCount: 1 });
      const { queue } = await ch.assertQueue('', { exclusive: true });
      t.saw('named by the server', /^amq\.gen-[A-Za-z0-9_-]{22}$/.test(queue), true);
      await t.fails('missing', (ch) => ch.checkQueue(t.n('missing')), notFound(t.n('missing')));
      await t.fails('reserved name', (ch) => ch.assertQueue('amq.node'), fault(403, "ACCESS_REFUSED - queue name 'amq.node' contains reserved prefix 'amq.*'"));
      await t.cleanUp([name]);
      t.saw('delete of an absent one', await (await t.ch()).deleteQueue(name), { messageCount: 0 });
    },
  },
  {
    name: 'queue.mismatch',
    async run(t) {
      const name = t.n('q');
      await (await t.ch()).assertQueue(name, { durable: true });
      const inequal = (text) => fault(406, `PRECONDITION_FAILED - inequivalent arg ${text}`);
      const where = `for queue '${name}' in vhost '/'`;
      await t.fails('durable', (ch) => ch.assertQueue(name, { durable: false }), inequal(`'durable' ${where}: received 'false' but current is 'true'`));
      await t.fails('auto-delete', (ch) => ch.assertQueue(name, { autoDelete: true }), inequal(`'auto_delete' ${where}: received 'true' but current is 'false'`));
      await t.fails('exclusive', (ch) => ch.assertQueue(name, { exclusive: true }), locked(name));
      await t.cleanUp([name]);
    },
  },
  {
    name: 'queue.mismatch-arguments',
    async run(t) {
      const name = t.n('q');
      await (await t.ch()).assertQueue(name, { durable: true, maxLength: 10, messageTtl: 60000 });
      await (await t.ch()).assertQueue(name, { durable: true, arguments: { 'x-max-length': { '!': 'int64', value: 10 }, 'x-message-ttl': { '!': 'uint16', value: 60000 } } });
      t.saw('other integer widths are equal', true, true);
      const inequal = (text) => fault(406, `PRECONDITION_FAILED - inequivalent arg ${text}`);
      const where = `for queue '${name}' in vhost '/'`;
      await t.fails('other value', (ch) => ch.assertQueue(name, { maxLength: 11, messageTtl: 60000 }), inequal(`'x-max-length' ${where}: received '11' but current is '10'`));
      await t.fails('a float', (ch) => ch.assertQueue(name, { arguments: { 'x-max-length': { '!': 'double', value: 10 }, 'x-message-ttl': 60000 } }));
      await t.fails('one absent', (ch) => ch.assertQueue(name, { maxLength: 10 }), inequal(`'x-message-ttl' ${where}: received none but current is the value '60000' of type 'signedint'`));
      await t.fails('one more', (ch) => ch.assertQueue(name, { maxLength: 10, messageTtl: 60000, expires: 100000 }), inequal(`'x-expires' ${where}: received the value '100000' of type 'signedint' but current is none`));
      await t.cleanUp([name]);
    },
  },
  {
    name: 'queue.arguments',
    async run(t) {
      const bad = {
        'ttl negative': { messageTtl: -1 }, 'ttl text': { messageTtl: '1' }, 'ttl float': { messageTtl: 1.5 }, 'expires zero': { expires: 0 }, 'length negative': { maxLength: -1 },
        'priority 300': { maxPriority: 300 }, overflow: { overflow: 'drop-tail' }, 'key without exchange': { deadLetterRoutingKey: 'k' }, 'exchange is a number': { deadLetterExchange: 3 },
        'queue type': { arguments: { 'x-queue-type': 'heap' } }, 'queue type is a number': { arguments: { 'x-queue-type': 4 } },
      };
      let index = 0;
      for (const [what, options] of Object.entries(bad)) {
        const name = t.n(`bad${index++}`);
        await t.fails(what, (ch) => ch.assertQueue(name, { exclusive: true, ...options }));
      }
    },
  },
  {
    name: 'queue.exclusive',
    async run(t) {
      const [owner, other] = [await t.newConn(), await t.newConn()];
      const name = t.n('q');
      const ch = await t.ch(owner);
      await ch.assertQueue(name, { exclusive: true, durable: false });
      const ops = {
        declare: (c) => c.assertQueue(name, { exclusive: true, durable: false }), check: (c) => c.checkQueue(name), consume: (c) => c.consume(name, () => {}), get: (c) => c.get(name),
        purge: (c) => c.purgeQueue(name), delete: (c) => c.deleteQueue(name), bind: (c) => c.bindQueue(name, 'amq.direct', 'k'),
      };
      for (const [what, op] of Object.entries(ops)) await t.fails(`${what} from another connection`, op, locked(name), other);
      t.saw('publishing is open to all', await sure(await t.confirmCh(other), '', name, 'x'), true);
      t.saw('arrived', await drain(ch, name), ['x']);
      await owner.close();
      await t.fails('gone with its connection', (c) => c.checkQueue(name), notFound(name), other);
    },
  },
  {
    name: 'queue.auto-delete',
    async run(t) {
      const ch = await t.ch();
      const name = t.n('q');
      await ch.assertQueue(name, { durable: false, autoDelete: true });
      const one = await ch.consume(name, () => {});
      const two = await ch.consume(name, () => {});
      await ch.cancel(one.consumerTag);
      t.saw('one of two cancelled', (await ch.checkQueue(name)).consumerCount, 1);
      await ch.cancel(two.consumerTag);
      await t.fails('the last cancelled', (c) => c.checkQueue(name), notFound(name));
    },
  },
  {
    name: 'queue.delete-and-purge',
    async run(t) {
      const ch = await t.ch();
      const name = (await ch.assertQueue(t.n('q'), { durable: false })).queue;
      await t.fill(name, 0, 5);
      await t.fails('if empty', (c) => c.deleteQueue(name, { ifEmpty: true }), fault(406, `PRECONDITION_FAILED - queue '${name}' in vhost '/' not empty`));
      const held = await ch.get(name);
      t.saw('purge counts what was ready', await ch.purgeQueue(name), { messageCount: 4 });
      ch.nack(held);
      await eventually('the unacked one is back', async () => (await t.ready(name)) === 1);
      const { consumerTag } = await ch.consume(name, () => {}, { noAck: true });
      await t.fails('if unused', (c) => c.deleteQueue(name, { ifUnused: true }), fault(406, `PRECONDITION_FAILED - queue '${name}' in vhost '/' in use`));
      await ch.cancel(consumerTag);
      t.saw('delete', await ch.deleteQueue(name, { ifUnused: true, ifEmpty: true }), { messageCount: 0 });
      await t.fails('purge of a missing one', (c) => c.purgeQueue(name), notFound(name));
    },
  },
  {
    name: 'queue.dead-letters',
    async run(t) {
      const ch = await t.confirmCh();
      const exchange = t.n('dlx');
      await ch.assertExchange(exchange, 'direct', { durable: false });
      const dead = await t.queue(ch, 'dead');
      await ch.bindQueue(dead, exchange, 'late');
      await ch.bindQueue(dead, exchange, t.n('full'));
      await ch.bindQueue(dead, exchange, t.n('refused'));
      const letters = new Inbox();
      await ch.consume(dead, letters.callback, { noAck: true });
      const tell = ({ fields, properties: { headers, expiration } }) => ({
        key: fields.routingKey, expiration, reason: headers['x-first-death-reason'], queue: headers['x-first-death-queue'],
        death: headers['x-death'].map(({ time, ...rest }) => ({ ...rest, time: time['!'] })),
      });
      const late = await t.queue(ch, 'late', { messageTtl: 30, deadLetterExchange: exchange, deadLetterRoutingKey: 'late' });
      await sure(ch, '', late, 'x');
      t.saw('expired by the queue', tell(await letters.next()), {
        key: 'late', reason: 'expired', queue: late, death: [{ count: 1, exchange: '', queue: late, reason: 'expired', 'routing-keys': [late], time: 'timestamp' }],
      });
      await sure(ch, '', late, 'x', { expiration: '10' });
      t.saw('expired by itself', tell(await letters.next()).death[0]['original-expiration'], '10');
      const full = await t.queue(ch, 'full', { maxLength: 1, deadLetterExchange: exchange });
      await sure(ch, '', full, 'one');
      await sure(ch, '', full, 'two');
      t.saw('too many', tell(await letters.next()), {
        key: full, reason: 'maxlen', queue: full, death: [{ count: 1, exchange: '', queue: full, reason: 'maxlen', 'routing-keys': [full], time: 'timestamp' }],
      });
      const refused = await t.queue(ch, 'refused', { deadLetterExchange: exchange });
      await sure(ch, '', refused, 'x');
      ch.nack(await ch.get(refused), false, false);
      t.saw('rejected', tell(await letters.next()).reason, 'rejected');
      await t.cleanUp([], [exchange]);
    },
  },
  {
    name: 'queue.max-length',
    async run(t) {
      const ch = await t.confirmCh();
      const dropping = await t.queue(ch, 'dropping', { maxLength: 2 });
      for (const body of ['1', '2', '3']) await sure(ch, '', dropping, body);
      t.saw('drop-head', await drain(ch, dropping), ['2', '3']);
      const rejecting = await t.queue(ch, 'rejecting', { maxLength: 1, overflow: 'reject-publish' });
      const acked = [];
      for (const body of ['1', '2']) acked.push(await sure(ch, '', rejecting, body));
      t.saw('reject-publish', acked, [true, false]);
      t.saw('keeps the oldest', await drain(ch, rejecting), ['1']);
      // waitForConfirms reports a nack as well.
      const more = await t.confirmCh();
      more.sendToQueue(rejecting, Buffer.from('1'));
      more.sendToQueue(rejecting, Buffer.from('2'));
      let said = 'no error';
      try {
        await more.waitForConfirms();
      } catch (error) {
        said = error.message;
      }
      t.saw('waitForConfirms tells of a nack', said, 'message nacked');
    },
  },
  {
    name: 'queue.priority',
    async run(t) {
      const ch = await t.confirmCh();
      const queue = await t.queue(ch, 'q', { maxPriority: 10 });
      for (const [body, priority] of [['low', 1], ['high', 9], ['none', undefined], ['middle', 5], ['high again', 9], ['capped', 250]]) await sure(ch, '', queue, body, { priority });
      t.saw('order', await drain(ch, queue), ['capped', 'high', 'high again', 'middle', 'low', 'none']);
    },
  },
  {
    name: 'queue.expires',
    slow: true,
    async run(t) {
      const ch = await t.ch();
      const { queue } = await ch.assertQueue(t.n('q'), { durable: false, expires: 300 });
      const { consumerTag } = await ch.consume(queue, () => {});
      await sleep(700);
      t.saw('used: there', (await ch.checkQueue(queue)).consumerCount, 1);
      await ch.cancel(consumerTag);
      await sleep(900);
      await t.fails('unused: gone', (c) => c.checkQueue(queue), notFound(queue));
    },
  },
];
