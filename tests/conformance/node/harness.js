'use strict';
// What every case uses: connections, the trace (see ../README.md), waiting with a limit.
const amqp = require('amqplib');
const readline = require('node:readline');

const PATIENCE_MS = 5000;
const CASE_PATIENCE_MS = 25000;
const QUIET_MS = 120;

const normal = (text) =>
  String(text)
    .replace(/amq\.(gen|ctag)-[A-Za-z0-9_-]+/g, 'amq.$1-<gen>')
    .replace(/amq\.rabbitmq\.reply-to\.[^' ]+/g, 'amq.rabbitmq.reply-to.<gen>');

const fault = (code, text, scope = 'channel') => ({ code, text, scope });

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function within(promise, what, limitMs = PATIENCE_MS) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} within ${limitMs} ms`)), limitMs);
  });
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

// The library wraps the broker's text into a sentence of its own.
function describe(error, scope) {
  const found = /(\d{3}) \([A-Z-]+\) with message "([\s\S]*)"$/.exec(error.message);
  if (!found) return { error: normal(error.message) };
  return { code: Number(found[1]), text: normal(found[2]), scope };
}

// A line of deliveries that can be awaited one by one; null is the consumer's cancellation.
class Inbox {
  constructor() {
    this.messages = [];
    this.waiting = [];
    this.callback = (message) => {
      const waiter = this.waiting.shift();
      if (waiter) waiter(message);
      else this.messages.push(message);
    };
  }
  async next(what = 'delivery') {
    if (this.messages.length > 0) return this.messages.shift();
    let mine;
    const promise = new Promise((resolve) => {
      mine = resolve;
      this.waiting.push(resolve);
    });
    return within(promise, what).catch((error) => {
      this.waiting = this.waiting.filter((waiter) => waiter !== mine);
      throw error;
    });
  }
  async take(count) {
    const bodies = [];
    for (let index = 0; index < count; index++) bodies.push((await this.next()).content.toString());
    return bodies;
  }
  async quiet() {
    await sleep(QUIET_MS);
    return this.messages.length === 0;
  }
}

class Case {
  constructor(name, uri) {
    this.name = name;
    this.uri = uri;
    this.step = 0;
    this.over = false;
    this.conns = [];
  }
  saw(what, saw, want) {
    if (this.over) return;
    const line = { case: this.name, step: ++this.step, what, saw };
    if (want !== undefined) line.want = want;
    process.stdout.write(`${JSON.stringify(line)}\n`);
  }
  broke(error) {
    if (this.over) return;
    process.stderr.write(`${this.name}: ${error.stack}\n`);
    process.stdout.write(`${JSON.stringify({ case: this.name, step: ++this.step, saw: { exception: normal(error.message) } })}\n`);
    this.over = true;
  }
  n(name) {
    return `node.${this.name}.${name}`;
  }
  async newConn(query = '', options = {}) {
    const conn = await within(amqp.connect(this.uri + query, options), 'connection');
    conn.open = true;
    // Without a listener an 'error' event ends the process; which errors come is asserted where they are expected.
    conn.ended = new Promise((resolve) => {
      conn.on('error', (error) => {
        conn.fault = error;
      });
      conn.on('close', (error) => {
        conn.open = false;
        resolve(conn.fault || error);
      });
    });
    this.conns.push(conn);
    return conn;
  }
  async conn() {
    if (!this.main || !this.main.open) this.main = await this.newConn();
    return this.main;
  }
  async ch(conn) {
    return this.watch(await (conn || (await this.conn())).createChannel());
  }
  async confirmCh(conn) {
    return this.watch(await (conn || (await this.conn())).createConfirmChannel());
  }
  watch(ch) {
    ch.faults = new Inbox();
    ch.on('error', ch.faults.callback);
    ch.on('handler-error', (error) => this.broke(error));
    return ch;
  }
  // Runs op on a new channel and reports what closes the channel or the connection.
  async fails(what, op, want, on, confirm) {
    const conn = on || (await this.conn());
    const ch = confirm ? await this.confirmCh(conn) : await this.ch(conn);
    let thrown;
    const end = Promise.race([
      ch.faults.next().then((error) => describe(error, 'channel')),
      conn.ended.then((error) => (error ? describe(error, 'connection') : { error: 'connection closed without an error' })),
    ]).catch((error) => ({ error: `${error.message}${thrown ? `; the call gave ${thrown.message}` : ''}` }));
    try {
      await within(Promise.resolve(op(ch)), 'answer');
    } catch (error) {
      thrown = error;
    }
    this.saw(what, await end, want);
  }
  async queue(ch, name, options = {}) {
    return (await ch.assertQueue(this.n(name), { durable: false, exclusive: true, ...options })).queue;
  }
  // A queue with the bodies 0, 1, … count-1.
  async filled(name, count, options) {
    const ch = await this.confirmCh();
    const queue = await this.queue(ch, name, options);
    await this.fill(queue, 0, count);
    await ch.close();
    return queue;
  }
  async fill(queue, from, to) {
    const ch = await this.confirmCh();
    for (let index = from; index < to; index++) ch.sendToQueue(queue, Buffer.from(String(index)));
    await within(ch.waitForConfirms(), 'confirms');
    await ch.close();
  }
  async ready(queue) {
    const ch = await this.ch();
    const { messageCount } = await ch.checkQueue(queue);
    await ch.close();
    return messageCount;
  }
  async cleanUp(queues, exchanges = []) {
    const ch = await this.ch();
    for (const queue of queues) await ch.deleteQueue(queue);
    for (const exchange of exchanges) await ch.deleteExchange(exchange);
    await ch.close();
  }
}

const sure = (ch, exchange, key, body, options) =>
  within(
    new Promise((resolve) => ch.publish(exchange, key, Buffer.from(body), options, (error) => resolve(error === null))),
    'confirm',
  );

async function drain(ch, queue) {
  const bodies = [];
  for (let message = await ch.get(queue, { noAck: true }); message; message = await ch.get(queue, { noAck: true })) bodies.push(message.content.toString());
  return bodies;
}

async function eventually(what, condition) {
  for (const end = Date.now() + PATIENCE_MS; Date.now() < end; await sleep(5)) if (await condition()) return;
  throw new Error(`never happened: ${what}`);
}

const lines = readline.createInterface({ input: process.stdin, terminal: false })[Symbol.asyncIterator]();

// Asks the orchestrator for a restart and waits until it is done.
async function hook(kind) {
  process.stdout.write(`${JSON.stringify({ [kind]: true })}\n`);
  const { done } = await lines.next();
  if (done) throw new Error('the orchestrator did not answer');
}

async function run(uri, scenario) {
  const one = new Case(scenario.name, uri);
  try {
    await within(scenario.run(one), 'end of the case', scenario.alone ? 3 * CASE_PATIENCE_MS : CASE_PATIENCE_MS);
  } catch (error) {
    one.broke(error instanceof Error ? error : new Error(String(error)));
  }
  one.over = true;
  for (const conn of one.conns) if (conn.open) conn.close().catch(() => {});
}

module.exports = { amqp, fault, sleep, within, describe, normal, sure, drain, eventually, hook, run, Inbox, PATIENCE_MS };
