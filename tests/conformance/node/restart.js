'use strict';
const { amqp, fault, sleep, within, describe, sure, drain, hook, Inbox } = require('./harness');

async function redial(t) {
  for (const end = Date.now() + 30000; ; await sleep(100)) {
    try {
      return await t.newConn();
    } catch (error) {
      if (Date.now() > end) throw error;
    }
  }
}

module.exports = [
  {
    name: 'restart.durability',
    alone: true,
    async run(t) {
      await t.cleanUp([t.n('q')], [t.n('x')]);
      const ch = await t.confirmCh();
      await ch.assertExchange(t.n('x'), 'fanout', { durable: true });
      const { queue } = await ch.assertQueue(t.n('q'), { durable: true });
      await ch.bindQueue(queue, t.n('x'), '');
      for (let index = 0; index < 100; index++) ch.publish(t.n('x'), '', Buffer.from(String(index)), { persistent: index % 2 === 0 });
      await within(ch.waitForConfirms(), 'confirms');
      const conn = t.main;
      await hook('restart');
      t.saw('told why', describe(await within(conn.ended, 'end'), 'connection'), fault(320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'", 'connection'));
      t.main = await redial(t);
      const after = await t.confirmCh();
      t.saw('the persistent half is there', await drain(after, queue), Array.from({ length: 50 }, (_, index) => String(2 * index)));
      await sure(after, t.n('x'), '', 'bound still', { persistent: true });
      t.saw('the binding too', await drain(after, queue), ['bound still']);
      await t.cleanUp([queue], [t.n('x')]);
    },
  },
  {
    // The library's recovery: the setup function runs again on each new connection.
    name: 'restart.recovery',
    alone: true,
    async run(t) {
      const inbox = new Inbox();
      let setups = 0;
      const client = await amqp.connect(t.uri, {
        recovery: {
          initialDelay: 100,
          maxDelay: 300,
          setup: async (model) => {
            setups++;
            const ch = await model.createChannel();
            await ch.assertQueue(t.n('recovered'), { durable: false, autoDelete: true });
            await ch.consume(t.n('recovered'), inbox.callback, { noAck: true });
          },
        },
      });
      client.on('error', () => {});
      client.on('disconnect', () => {});
      const back = new Promise((resolve) => client.on('connect', resolve));
      await hook('kill');
      await within(back, 'new connection', 30000);
      t.main = await redial(t);
      const ch = await t.confirmCh();
      await sure(ch, '', t.n('recovered'), 'after');
      t.saw('consumed after the recovery', await inbox.take(1), ['after']);
      t.saw('set up again', setups >= 2, true);
      await client.close();
    },
  },
];
