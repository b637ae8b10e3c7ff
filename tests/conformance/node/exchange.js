'use strict';
const { fault, sure, drain, Inbox } = require('./harness');

const own = { durable: false };

async function bound(t, ch, exchange, pattern, args) {
  const { queue } = await ch.assertQueue('', { exclusive: true, durable: false });
  await ch.bindQueue(queue, exchange, pattern, args);
  return queue;
}

module.exports = [
  {
    name: 'exchange.direct',
    async run(t) {
      const ch = await t.confirmCh();
      const { exchange } = await ch.assertExchange(t.n('x'), 'direct', own);
      const [a, b] = [await t.queue(ch, 'a'), await t.queue(ch, 'b')];
      for (const [queue, key] of [[a, 'one'], [a, 'two'], [b, 'two'], [b, 'two']]) await ch.bindQueue(queue, exchange, key);
      for (const key of ['one', 'two', 'three', '', 'One']) await sure(ch, exchange, key, key);
      t.saw('a', await drain(ch, a), ['one', 'two']);
      t.saw('b, bound twice the same way', await drain(ch, b), ['two']);
      await ch.unbindQueue(a, exchange, 'one');
      await sure(ch, exchange, 'one', 'gone');
      t.saw('after unbinding', await drain(ch, a), []);
      await t.cleanUp([], [exchange]);
    },
  },
  {
    name: 'exchange.fanout',
    async run(t) {
      const ch = await t.confirmCh();
      const { exchange } = await ch.assertExchange(t.n('x'), 'fanout', own);
      const queues = await Promise.all(Array.from({ length: 30 }, (_, index) => bound(t, ch, exchange, `ignored-${index}`)));
      await sure(ch, exchange, 'any', 'x');
      const got = await Promise.all(queues.map((queue) => drain(ch, queue)));
      t.saw('thirty queues', got.filter(([body]) => body === 'x').length, 30);
      await t.cleanUp([], [exchange]);
    },
  },
  {
    name: 'exchange.topic',
    async run(t) {
      const ch = await t.confirmCh();
      const { exchange } = await ch.assertExchange(t.n('x'), 'topic', own);
      const keys = ['', 'log', 'log.info', 'log.info.web', 'log.error.web', 'audit.error', 'log..web', 'log.', '.log', '#', '*.web'];
      const table = {
        '#': keys,
        '*': ['log', '#'],
        'log.*': ['log.info', 'log.'],
        'log.#': ['log', 'log.info', 'log.info.web', 'log.error.web', 'log..web', 'log.'],
        '*.error.#': ['log.error.web', 'audit.error'],
        '#.web': ['log.info.web', 'log.error.web', 'log..web', '*.web'],
        'log.*.web': ['log.info.web', 'log.error.web', 'log..web'],
        '*.*': ['log.info', 'audit.error', 'log.', '.log', '*.web'],
        'log.#.web': ['log.info.web', 'log.error.web', 'log..web'],
        '': [''],
      };
      for (const [pattern, want] of Object.entries(table)) {
        const queue = await bound(t, ch, exchange, pattern);
        for (const key of keys) ch.publish(exchange, key, Buffer.from(key));
        await ch.waitForConfirms();
        t.saw(`pattern ${pattern}`, await drain(ch, queue), want);
        await ch.deleteQueue(queue);
      }
      await t.cleanUp([], [exchange]);
    },
  },
  {
    name: 'exchange.headers',
    async run(t) {
      const ch = await t.confirmCh();
      const { exchange } = await ch.assertExchange(t.n('x'), 'headers', own);
      const messages = {
        none: undefined, kind: { kind: 'a' }, both: { kind: 'a', size: 3 }, size: { size: 3 }, wide: { size: { '!': 'int64', value: 3 } }, other: { kind: 'b', size: 4 }, text: { size: '3' }, x: { 'x-kind': 'a' },
      };
      const table = [
        ['all', { 'x-match': 'all', kind: 'a', size: 3 }, ['both']],
        ['any', { 'x-match': 'any', kind: 'a', size: 3 }, ['kind', 'both', 'size', 'wide']],
        ['all is the default', { kind: 'a' }, ['kind', 'both']],
        ['null is: exists', { kind: null }, ['kind', 'both', 'other']],
        ['all-with-x', { 'x-match': 'all-with-x', 'x-kind': 'a' }, ['x']],
        ['any-with-x', { 'x-match': 'any-with-x', 'x-kind': 'a', size: 4 }, ['other', 'x']],
        ['nothing', {}, ['none', 'kind', 'both', 'size', 'wide', 'other', 'text', 'x']],
        ['any of nothing', { 'x-match': 'any' }, []],
      ];
      for (const [what, args, want] of table) {
        const queue = await bound(t, ch, exchange, '', args);
        for (const [body, headers] of Object.entries(messages)) await sure(ch, exchange, '', body, { headers });
        t.saw(what, await drain(ch, queue), want);
        await ch.deleteQueue(queue);
      }
      await t.cleanUp([], [exchange]);
    },
  },
  {
    name: 'exchange.to-exchange',
    async run(t) {
      const ch = await t.confirmCh();
      const [source, destination] = [t.n('source'), t.n('destination')];
      await ch.assertExchange(source, 'direct', own);
      await ch.assertExchange(destination, 'fanout', own);
      await ch.bindExchange(destination, source, 'pass');
      const queue = await bound(t, ch, destination, '');
      await sure(ch, source, 'pass', 'passed');
      await sure(ch, source, 'other', 'not passed');
      t.saw('through both', await drain(ch, queue), ['passed']);
      await ch.unbindExchange(destination, source, 'pass');
      await sure(ch, source, 'pass', 'no longer');
      t.saw('after unbinding', await drain(ch, queue), []);
      await t.cleanUp([], [source, destination]);
    },
  },
  {
    name: 'exchange.alternate',
    async run(t) {
      const ch = await t.confirmCh();
      const returns = new Inbox();
      ch.on('return', returns.callback);
      await ch.assertExchange(t.n('rest'), 'fanout', own);
      await ch.assertExchange(t.n('main'), 'direct', { ...own, alternateExchange: t.n('rest') });
      await sure(ch, t.n('main'), 'k', 'no one', { mandatory: true });
      t.saw('nothing bound anywhere: returned', (await returns.next('return')).content.toString(), 'no one');
      const queue = await bound(t, ch, t.n('rest'), '');
      await sure(ch, t.n('main'), 'k', 'the rest', { mandatory: true });
      t.saw('not matched', await drain(ch, queue), ['the rest']);
      t.saw('and not returned', returns.messages.length, 0);
      await t.cleanUp([], [t.n('main'), t.n('rest')]);
    },
  },
  {
    name: 'exchange.errors',
    async run(t) {
      const ch = await t.ch();
      const exchange = t.n('x');
      await ch.assertExchange(exchange, 'direct', { durable: true });
      const mismatch = (arg, received, current) => fault(406, `PRECONDITION_FAILED - inequivalent arg '${arg}' for exchange '${exchange}' in vhost '/': received '${received}' but current is '${current}'`);
      await t.fails('other type', (ch) => ch.assertExchange(exchange, 'topic'), mismatch('type', 'topic', 'direct'));
      await t.fails('not durable', (ch) => ch.assertExchange(exchange, 'direct', { durable: false }), mismatch('durable', 'false', 'true'));
      await t.fails('auto-delete', (ch) => ch.assertExchange(exchange, 'direct', { autoDelete: true }), mismatch('auto_delete', 'true', 'false'));
      await t.fails('internal', (ch) => ch.assertExchange(exchange, 'direct', { internal: true }), mismatch('internal', 'true', 'false'));
      const missing = fault(404, `NOT_FOUND - no exchange '${t.n('missing')}' in vhost '/'`);
      await t.fails('check of a missing one', (ch) => ch.checkExchange(t.n('missing')), missing);
      await t.fails('publish to a missing one', (ch) => ch.publish(t.n('missing'), 'k', Buffer.from('x')), missing);
      await t.fails('unknown type', (ch) => ch.assertExchange(t.n('new'), 'x-absent'), fault(503, "COMMAND_INVALID - unknown exchange type 'x-absent'", 'connection'));
      await t.fails('reserved name', (ch) => ch.assertExchange('amq.node', 'direct'), fault(403, "ACCESS_REFUSED - exchange name 'amq.node' contains reserved prefix 'amq.*'"));
      await t.fails('delete of the default exchange', (ch) => ch.deleteExchange(''), fault(403, 'ACCESS_REFUSED - operation not permitted on the default exchange'));
      const queue = await t.queue(await t.ch(), 'q');
      await (await t.ch()).bindQueue(queue, exchange, 'k');
      await t.fails('delete if unused while bound', (ch) => ch.deleteExchange(exchange, { ifUnused: true }), fault(406, `PRECONDITION_FAILED - exchange '${exchange}' in vhost '/' in use`));
      await t.cleanUp([queue], [exchange]);
      await t.cleanUp([], [exchange]);
      t.saw('delete of an absent one', true, true);
    },
  },
];
