"""The main path once more with aio-pika (asyncio): `aio_pika_cases.py <amqp-uri> [case-pattern]`."""

import asyncio
import fnmatch
import json
import logging
import sys
import traceback

import aio_pika
import aiormq
from aio_pika import DeliveryMode, ExchangeType, Message

logging.disable(logging.CRITICAL)
CASES = []


def case(name):
    def register(body):
        CASES.append((name, body))
        return body

    return register


class Case:
    def __init__(self, name, uri):
        self.name_of_case, self.uri, self.lines = name, uri, []

    def name(self, short="q"):
        return f"aio-pika.{self.name_of_case}.{short}"

    def see(self, what, saw, **want):
        saw = json.loads(json.dumps(saw, default=lambda value: value.decode() if isinstance(value, bytes) else repr(value)))
        self.lines.append({"case": self.name_of_case, "step": len(self.lines) + 1, "what": what, "saw": saw, **want})


async def collect(queue, count, **options):
    """The next messages of a consumer, unacked."""
    got = []
    done = asyncio.get_running_loop().create_future()

    async def on_message(message):
        got.append(message)
        if len(got) == count and not done.done():
            done.set_result(None)

    tag = await queue.consume(on_message, **options)
    await asyncio.wait_for(done, 5)
    return tag, got


@case("main.work-queue")
async def work_queue(t, connection):
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=10)
    queue = await channel.declare_queue(t.name(), durable=True)
    for number in range(100):
        confirmed = await channel.default_exchange.publish(
            Message(str(number).encode(), delivery_mode=DeliveryMode.PERSISTENT, headers={"n": number}, message_id=f"m{number}"), queue.name
        )
        if number == 0:
            t.see("a publish is confirmed", type(confirmed).__name__, want="Ack")
    bodies, good = [], True
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                bodies.append(int(message.body))
                good = good and message.headers == {"n": bodies[-1]} and message.message_id == f"m{bodies[-1]}" and not message.redelivered
            if len(bodies) == 100:
                break
    t.see("in order", bodies == list(range(100)), want=True)
    t.see("with properties", good, want=True)
    again = await channel.declare_queue(t.name(), durable=True, passive=True)
    t.see("nothing left", again.declaration_result.message_count, want=0)
    await queue.delete()


@case("main.publish-subscribe")
async def publish_subscribe(t, connection):
    channel = await connection.channel()
    exchange = await channel.declare_exchange(t.name("x"), ExchangeType.TOPIC, auto_delete=True)
    queues = {}
    for key in ("#", "*.error", "disk.*"):
        queues[key] = await channel.declare_queue(exclusive=True)
        await queues[key].bind(exchange, key)
    for key in ("disk.error", "net.error", "disk.info", "net.info"):
        await exchange.publish(Message(key.encode()), key)
    seen = {}
    for key, queue in queues.items():
        seen[key] = []
        while (message := await queue.get(fail=False)) is not None:
            await message.ack()
            seen[key].append(message.body)
    t.see(
        "routed",
        seen,
        want={
            "#": ["disk.error", "net.error", "disk.info", "net.info"],
            "*.error": ["disk.error", "net.error"],
            "disk.*": ["disk.error", "disk.info"],
        },
    )


@case("main.mandatory")
async def mandatory(t, connection):
    channel = await connection.channel()
    returned = await channel.default_exchange.publish(Message(b"m"), t.name("none"), mandatory=True)
    t.see(
        "returned",
        [type(returned).__name__, returned.delivery.reply_code, returned.delivery.reply_text, returned.body],
        want=["DeliveredMessage", 312, "NO_ROUTE", "m"],
    )
    channel = await connection.channel(on_return_raises=True)
    try:
        await channel.default_exchange.publish(Message(b"m"), t.name("none"), mandatory=True)
        t.see("returned, raising", "no")
    except Exception as error:
        t.see("returned, raising", type(error).__name__)


@case("main.reject-and-requeue")
async def reject_and_requeue(t, connection):
    channel = await connection.channel()
    queue = await channel.declare_queue(t.name(), exclusive=True)
    for number in range(4):
        await channel.default_exchange.publish(Message(str(number).encode()), queue.name)
    tag, got = await collect(queue, 4)
    await queue.cancel(tag)
    await got[0].ack()
    await got[1].nack(requeue=True)
    await got[2].reject(requeue=False)
    await got[3].reject(requeue=True)
    seen = []
    for _ in range(2):
        message = await queue.get(timeout=5)
        await message.ack()
        seen.append([message.body, message.redelivered])
    t.see("back", seen, want=[["1", True], ["3", True]])


@case("main.rpc")
async def rpc(t, connection):
    server_channel = await connection.channel()
    pattern = await aio_pika.patterns.RPC.create(server_channel)

    async def double(*, value):
        return value * 2

    await pattern.register(t.name("double"), double, auto_delete=True)
    client = await aio_pika.connect(t.uri)
    async with client:
        caller = await aio_pika.patterns.RPC.create(await client.channel())
        results = [await asyncio.wait_for(caller.call(t.name("double"), {"value": value}), 5) for value in range(5)]
    t.see("calls answered", results, want=[0, 2, 4, 6, 8])


@case("main.transaction")
async def transaction(t, connection):
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue(t.name(), exclusive=True)
    async with channel.transaction():
        for number in range(3):
            await channel.default_exchange.publish(Message(str(number).encode()), queue.name)
    try:
        async with channel.transaction():
            await channel.default_exchange.publish(Message(b"lost"), queue.name)
            raise KeyError
    except KeyError:
        pass
    checked = await connection.channel()
    seen = []
    while (message := await (await checked.get_queue(queue.name)).get(fail=False)) is not None:
        await message.ack()
        seen.append(message.body)
    t.see("committed, rolled back", seen, want=["0", "1", "2"])


@case("main.errors")
async def errors(t, connection):
    async def attempt(what, action, want):
        channel = await connection.channel()
        try:
            await action(channel)
            t.see(what, "ok", want=want)
        except aiormq.exceptions.ChannelClosed as error:
            t.see(
                what,
                [type(error).__name__, *error.args[:2]] if len(error.args) > 1 else [type(error).__name__, str(error)],
                **({"want": want} if want else {}),
            )
        except aiormq.exceptions.AMQPError as error:
            t.see(what, [type(error).__name__, str(error)])

    await attempt("absent queue", lambda channel: channel.get_queue(t.name("none")), None)
    await attempt("absent exchange", lambda channel: channel.get_exchange(t.name("none")), None)
    await connection_queue(t, connection)
    await attempt("redeclare mismatch", lambda channel: channel.declare_queue(t.name("transient"), durable=True), None)
    await attempt("reserved name", lambda channel: channel.declare_queue("amq.mine"), None)
    t.see("the connection lives", not connection.is_closed, want=True)


async def connection_queue(t, connection):
    channel = await connection.channel()
    await channel.declare_queue(t.name("transient"), auto_delete=True)


@case("main.concurrent-publishers")
async def concurrent_publishers(t, connection):
    channel = await connection.channel()
    queue = await channel.declare_queue(t.name(), durable=True)

    async def publish(number):
        own = await connection.channel()
        for index in range(50):
            await own.default_exchange.publish(Message(f"{number}.{index}".encode(), delivery_mode=DeliveryMode.PERSISTENT), queue.name)
        await own.close()

    await asyncio.gather(*(publish(number) for number in range(10)))
    tag, got = await collect(queue, 500, no_ack=True)
    await queue.cancel(tag)
    ordered = all(
        [body for body in (message.body.decode() for message in got) if body.startswith(f"{number}.")]
        == [f"{number}.{index}" for index in range(50)]
        for number in range(10)
    )
    t.see("500 confirmed, all there, each publisher's in order", [len(got), ordered], want=[500, True])
    await queue.delete()


@case("main.large-body")
async def large_body(t, connection):
    channel = await connection.channel()
    queue = await channel.declare_queue(exclusive=True)
    body = bytes(range(256)) * 8192
    await channel.default_exchange.publish(Message(body), queue.name)
    message = await queue.get(timeout=5)
    t.see("2 MiB come back", message.body == body, want=True)
    await message.ack()


async def main():
    uri = sys.argv[1]
    pattern = sys.argv[2] if len(sys.argv) > 2 else "*"
    for name, body in CASES:
        if not fnmatch.fnmatchcase(name, pattern):
            continue
        this = Case(name, uri)
        try:
            async with await aio_pika.connect(uri) as connection:
                await asyncio.wait_for(body(this, connection), 15)
        except Exception as error:
            this.see("an unexpected exception", {"exception": f"{type(error).__name__}: {error}"})
            traceback.print_exc()
        for line in this.lines:
            print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
