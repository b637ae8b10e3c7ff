'use strict';
const { amqp, fault, sleep, within, describe, sure, eventually, Inbox } = require('./harness');
const callbackApi = require('amqplib/callback_api');
const net = require('node:net');

const as = (uri, user, password, vhost) => {
  const url = new URL(uri);
  url.username = user;
  url.password = password;
  if (vhost) url.pathname = `/${vhost}`;
  return url.toString();
};

const refusal = async (uri, options) => {
  try {
    const conn = await within(amqp.connect(uri, options), 'answer');
    await conn.close();
    return 'connected';
  } catch (error) {
    // The library writes: Handshake terminated by server: 403 (ACCESS-REFUSED) with message "…".
    return describe(error, 'connection');
  }
};

const loginRefused = (mechanism) =>
  fault(403, `ACCESS_REFUSED - Login was refused using authentication mechanism ${mechanism}. For details see the broker logfile.`, 'connection');

module.exports = [
  {
    name: 'connection.properties',
    async run(t) {
      const { serverProperties } = (await t.conn()).connection;
      const names = ['capabilities', 'cluster_name', 'copyright', 'information', 'platform', 'product', 'version'];
      t.saw('missing server properties', names.filter((name) => !(name in serverProperties)), []);
      t.saw('capabilities', serverProperties.capabilities, {
        publisher_confirms: true, exchange_exchange_bindings: true, 'basic.nack': true, consumer_cancel_notify: true, 'connection.blocked': true,
        consumer_priorities: true, authentication_failure_close: true, per_consumer_qos: true, direct_reply_to: true,
      });
      t.saw('version is a RabbitMQ 3 level', serverProperties.version.startsWith('3.'), true);
    },
  },
  {
    name: 'connection.tune',
    async run(t) {
      const first = (await t.conn()).connection;
      t.saw('limits', [first.channelMax, first.frameMax, first.heartbeat], [2047, 131072, 60]);
      const small = await t.newConn('?channelMax=5&frameMax=4096&heartbeat=9');
      t.saw('smaller limits', [small.connection.channelMax, small.connection.frameMax, small.connection.heartbeat], [5, 4096, 9]);
      const ch = await t.confirmCh(small);
      const queue = await t.queue(ch, 'q');
      for (const size of [0, 1, 4088, 4089, 50000]) {
        const body = Buffer.alloc(size, 'ab');
        await sure(ch, '', queue, body);
        t.saw(`${size} bytes through frames of 4096`, body.equals((await ch.get(queue, { noAck: true })).content), true);
      }
      const off = await t.newConn('?heartbeat=0');
      t.saw('no heartbeats', off.connection.heartbeat, 0);
    },
  },
  {
    name: 'connection.login',
    async run(t) {
      t.saw('wrong password', await refusal(as(t.uri, 'guest', 'wrong')), loginRefused('PLAIN'));
      t.saw('unknown user', await refusal(as(t.uri, 'nobody-here', 'guest')), loginRefused('PLAIN'));
      const { credentials } = amqp;
      const amqplain = await t.newConn('', { credentials: credentials.amqplain('guest', 'guest') });
      t.saw('AMQPLAIN', amqplain.open, true);
      t.saw('AMQPLAIN with a wrong password', await refusal(t.uri, { credentials: credentials.amqplain('guest', 'wrong') }), loginRefused('AMQPLAIN'));
      // The library does not show the broker's reason here.
      const closed = { error: 'Expected ConnectionOpenOk; got <ConnectionClose channel:0>' };
      t.saw('missing vhost', await refusal(as(t.uri, 'guest', 'guest', 'missing')), closed);
      t.saw('refused vhost', await refusal(as(t.uri, 'limited', 'limited-pass', 'other')), closed);
    },
  },
  {
    name: 'connection.client-properties',
    async run(t) {
      const conn = await t.newConn('', { clientProperties: { connection_name: 'node conformance', nested: { list: [1, 'two', null, { deep: true }] } } });
      t.saw('nested client properties', conn.open, true);
    },
  },
  {
    name: 'connection.close',
    async run(t) {
      const conn = await t.newConn();
      const events = [];
      conn.on('close', (error) => events.push(`close ${error}`));
      conn.on('error', () => events.push('error'));
      const ch = await t.ch(conn);
      ch.on('close', () => events.push('channel close'));
      await ch.close();
      await conn.close();
      await conn.ended;
      t.saw('events', events, ['channel close', 'close undefined']);
      let refused = '';
      try {
        await ch.assertQueue(t.n('q'));
      } catch (error) {
        refused = error.constructor.name;
      }
      t.saw('a closed channel is of no use', refused, 'IllegalOperationError');
    },
  },
  {
    name: 'connection.channels',
    async run(t) {
      const conn = await t.newConn();
      const queue = await t.queue(await t.ch(conn), 'q');
      const channels = await Promise.all(Array.from({ length: 200 }, () => t.confirmCh(conn)));
      await Promise.all(channels.map(async (ch) => {
        for (let index = 0; index < 10; index++) ch.sendToQueue(queue, Buffer.from('x'));
        await within(ch.waitForConfirms(), 'confirms');
        await ch.close();
      }));
      const ch = await t.ch(conn);
      t.saw('200 channels published ten each', (await ch.deleteQueue(queue)).messageCount, 2000);
    },
  },
  {
    name: 'connection.many',
    async run(t) {
      const setup = await t.ch();
      const { queue } = await setup.assertQueue(t.n('q'), { durable: false });
      await Promise.all(Array.from({ length: 60 }, async () => {
        const conn = await amqp.connect(t.uri);
        const ch = await conn.createConfirmChannel();
        ch.sendToQueue(queue, Buffer.from('x'));
        await ch.waitForConfirms();
        await conn.close();
      }));
      t.saw('60 connections published one each', (await setup.deleteQueue(queue)).messageCount, 60);
    },
  },
  {
    name: 'connection.churn',
    async run(t) {
      const conn = await t.newConn('?channelMax=2');
      for (let index = 0; index < 40; index++) {
        const ch = await t.ch(conn);
        ch.publish('', t.n('nowhere'), Buffer.from('x'));
        await ch.close();
      }
      t.saw('40 channels one after another over 2 numbers', conn.open, true);
    },
  },
  {
    name: 'connection.update-secret',
    async run(t) {
      const conn = await t.newConn();
      const told = new Promise((resolve) => conn.on('update-secret-ok', () => resolve(true)));
      await within(conn.updateSecret(Buffer.from('guest'), 'rotation'), 'answer');
      t.saw('answered and told', await within(told, 'event'), true);
    },
  },
  {
    name: 'connection.blocked-listener',
    async run(t) {
      const conn = await t.newConn();
      let blocked = 0;
      conn.on('blocked', () => blocked++);
      conn.on('unblocked', () => blocked++);
      const ch = await t.confirmCh(conn);
      for (let index = 0; index < 200; index++) ch.sendToQueue(t.n('nowhere'), Buffer.alloc(1000));
      await ch.waitForConfirms();
      t.saw('no notifications without an alarm', blocked, 0);
    },
  },
  {
    name: 'connection.heartbeat',
    slow: true,
    async run(t) {
      const conn = await t.newConn('?heartbeat=1');
      const ch = await t.ch(conn);
      await sleep(4000);
      t.saw('idle for four intervals, open', conn.open, true);
      t.saw('and of use', (await ch.checkExchange('amq.direct')) !== undefined, true);
    },
  },
  {
    // The library sees a broker that is silent: a relay that stops passing bytes on.
    name: 'connection.heartbeat-lost',
    slow: true,
    async run(t) {
      const url = new URL(t.uri);
      const stopped = { yes: false };
      const port = Number(url.port);
      const relay = net.createServer((client) => {
        const server = net.connect(port, url.hostname);
        client.on('data', (bytes) => stopped.yes || server.write(bytes));
        server.on('data', (bytes) => stopped.yes || client.write(bytes));
        server.on('close', () => client.destroy());
        client.on('close', () => server.destroy());
        client.on('error', () => {});
        server.on('error', () => {});
      });
      await new Promise((resolve) => relay.listen(0, '127.0.0.1', resolve));
      url.port = String(relay.address().port);
      const conn = await within(amqp.connect(`${url}?heartbeat=1`), 'connection');
      const ended = new Promise((resolve) => {
        conn.on('error', () => {});
        conn.on('close', resolve);
      });
      stopped.yes = true;
      const started = Date.now();
      await within(ended, 'end of the connection', 9000);
      t.saw('both sides gave up in time', Date.now() - started < 6000, true);
      relay.close();
    },
  },
  {
    name: 'connection.callback-api',
    async run(t) {
      const got = await within(new Promise((resolve, reject) => {
        callbackApi.connect(t.uri, (error, conn) => {
          if (error) return reject(error);
          conn.createConfirmChannel((error, ch) => {
            if (error) return reject(error);
            ch.assertQueue('', { exclusive: true }, (error, { queue }) => {
              if (error) return reject(error);
              ch.consume(queue, (message) => {
                ch.ack(message);
                conn.close(() => resolve(message.content.toString()));
              });
              ch.sendToQueue(queue, Buffer.from('called back'), {}, (error) => error && reject(error));
            });
          });
        });
      }), 'callback');
      t.saw('through the callback interface', got, 'called back');
    },
  },
  {
    name: 'channel.survivors',
    async run(t) {
      const conn = await t.conn();
      const other = await t.confirmCh(conn);
      const queue = await t.queue(other, 'q');
      await t.fails('missing exchange', (ch) => ch.publish(t.n('missing'), 'k', Buffer.from('x')), fault(404, `NOT_FOUND - no exchange '${t.n('missing')}' in vhost '/'`));
      t.saw('the connection stays', conn.open, true);
      t.saw('the other channel publishes', await sure(other, '', queue, 'x'), true);
    },
  },
  {
    // Calls that wait for an answer when the error comes are all told.
    name: 'channel.pending-calls',
    async run(t) {
      const ch = await t.ch();
      const calls = [ch.checkExchange('amq.direct'), ch.checkQueue(t.n('missing')), ch.checkExchange('amq.direct'), ch.assertQueue(t.n('never'), { durable: false })];
      const ends = (await Promise.allSettled(calls)).map(({ status, reason }) => (reason && reason.code) || status);
      t.saw('before, at, after the error', [ends[0], ends[1], ends[2] !== 'fulfilled', ends[3] !== 'fulfilled'], ['fulfilled', 404, true, true]);
      await t.fails('the call after the error had no effect', (ch) => ch.checkQueue(t.n('never')), fault(404, `NOT_FOUND - no queue '${t.n('never')}' in vhost '/'`));
    },
  },
  {
    // The socket goes away without a close: unacked messages come back.
    name: 'connection.abandoned',
    async run(t) {
      const queue = (await (await t.ch()).assertQueue(t.n('q'), { durable: false })).queue;
      await t.fill(queue, 0, 2);
      const conn = await t.newConn();
      const ch = await t.ch(conn);
      const inbox = new Inbox();
      await ch.consume(queue, inbox.callback);
      await inbox.take(2);
      conn.connection.stream.destroy();
      await eventually('both are back', async () => (await t.ready(queue)) === 2);
      const reader = await t.ch();
      const message = await reader.get(queue, { noAck: true });
      t.saw('back, in order, marked', [message.content.toString(), message.fields.redelivered], ['0', true]);
      await t.cleanUp([queue]);
    },
  },
  {
    name: 'permission.limited',
    async run(t) {
      const conn = await amqp.connect(as(t.uri, 'limited', 'limited-pass'));
      conn.ended = new Promise(() => {});
      const refused = (access, kind, name) => fault(403, `ACCESS_REFUSED - ${access} access to ${kind} '${name}' in vhost '/' refused for user 'limited'`);
      await t.fails('declare', (ch) => ch.assertQueue(t.n('q')), refused('configure', 'queue', t.n('q')), conn);
      await t.fails('declare an exchange', (ch) => ch.assertExchange(t.n('x'), 'fanout'), refused('configure', 'exchange', t.n('x')), conn);
      await t.fails('publish', (ch) => ch.publish('amq.topic', 'k', Buffer.from('x')), refused('write', 'exchange', 'amq.topic'), conn);
      const queue = 'limited.conf.node';
      await (await t.ch(conn)).assertQueue(queue, { durable: false, autoDelete: true });
      await t.fails('bind', (ch) => ch.bindQueue(queue, 'amq.topic', 'k'), refused('read', 'exchange', 'amq.topic'), conn);
      await t.cleanUp([queue]);
      await conn.close();
    },
  },
];
