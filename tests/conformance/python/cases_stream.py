"""How bytes arrive is no part of the protocol: pieces, batches, interleaving, slow readers, many connections."""

import pika.spec as spec
from harness import Consumer, await_until, case, drain, ready_soon
from raw import BODY, HEADER, METHOD, PROTOCOL_HEADER, Raw, frame, method_payload, opened


def encoded(channel, method):
    return frame(METHOD, channel, method_payload(method))


@case("stream.all-at-once")
def all_at_once(t):
    queue = t.name()
    with Raw(t.uri) as raw:
        sent = []
        raw.send = sent.append  # keep what would be written
        raw.send(PROTOCOL_HEADER)
        raw.start_ok()
        raw.method(0, spec.Connection.TuneOk(2047, 131072, 0))
        raw.open()
        raw.method(1, spec.Channel.Open())
        raw.method(1, spec.Queue.Declare(queue=queue, exclusive=True))
        raw.publish(1, "", queue, b"pipelined")
        raw.method(1, spec.Basic.Get(queue=queue, no_ack=True))
        del raw.send
        raw.send(b"".join(sent))
        names = [raw.next_method().NAME for _ in range(6)]
        t.see(
            "a whole session in one write",
            names,
            want=["Connection.Start", "Connection.Tune", "Connection.OpenOk", "Channel.OpenOk", "Queue.DeclareOk", "Basic.GetOk"],
        )


@case("stream.byte-by-byte")
def byte_by_byte(t):
    with opened(t.uri) as raw:
        queue = raw.call(1, spec.Queue.Declare(queue=t.name(), exclusive=True)).queue
        whole = encoded(1, spec.Basic.Publish(routing_key=queue))
        whole += frame(HEADER, 1, b"\0\x3c\0\0" + (5).to_bytes(8, "big") + b"\0\0") + frame(BODY, 1, b"slow!")
        whole += encoded(1, spec.Basic.Get(queue=queue, no_ack=True))
        for byte in whole:
            raw.send(bytes([byte]))
        got = raw.await_method(spec.Basic.GetOk, spec.Basic.GetEmpty)
        raw.next_frame()
        t.see("got", [got.NAME, raw.next_frame()[2]], want=["Basic.GetOk", "slow!"])


@case("stream.interleaved-channels")
def interleaved_channels(t):
    with opened(t.uri, (1, 2)) as raw:
        queue = raw.call(1, spec.Queue.Declare(queue=t.name(), exclusive=True)).queue
        raw.method(1, spec.Basic.Publish(routing_key=queue))
        raw.method(2, spec.Basic.Publish(routing_key=queue))
        raw.header(2, 6)
        raw.header(1, 6)
        for piece1, piece2 in ((b"on", b"tw"), (b"e-", b"o-"), (b"is", b"is")):
            raw.frame(BODY, 1, piece1)
            raw.frame(BODY, 2, piece2)
        raw.call(1, spec.Basic.Qos())
        raw.call(2, spec.Basic.Qos())
        bodies = set()
        while len(bodies) < 2:
            got = raw.call(1, spec.Basic.Get(queue=queue, no_ack=True))
            if isinstance(got, spec.Basic.GetOk):
                raw.next_frame()
                bodies.add(raw.next_frame()[2])
        t.see("each whole", sorted(bodies), want=["one-is", "two-is"])


@case("stream.slow-reader")
def slow_reader(t):
    ch = t.channel()
    queue, other = t.queue(ch), t.queue(ch, "other")
    with opened(t.uri) as raw:
        raw.call(1, spec.Basic.Consume(queue=queue, no_ack=True))
        for number in range(300):
            ch.basic_publish("", queue, number.to_bytes(4, "big") + bytes(100_000))
        # It reads nothing now, and the others do not notice.
        for number in range(50):
            ch.basic_publish("", other, str(number))
        t.see("others are served", len(drain(ch, other)), want=50)
        numbers, body = [], b""
        while len(numbers) < 300:
            kind, _, payload = raw.next_frame()
            if kind == BODY:
                body += payload
                if len(body) == 100_004:
                    numbers.append(int.from_bytes(body[:4], "big"))
                    body = b""
        t.see("then it gets all, in order", numbers == list(range(300)), want=True)


@case("stream.many-connections")
def many_connections(t):
    ch = t.channel()
    queue = t.queue(ch)
    for number in range(60):
        connection = t.connect()
        other = connection.channel()
        other.confirm_delivery()
        other.basic_publish("", queue, str(number))
        connection.close()
    t.see("a message through each of 60 connections", drain(ch, queue) == [str(number) for number in range(60)], want=True)


@case("stream.cut-while-publishing")
def cut_while_publishing(t):
    ch = t.channel()
    queue = t.queue(ch)
    with opened(t.uri) as raw:
        raw.call(1, spec.Confirm.Select())
        raw.publish(1, "", queue, b"whole")
        raw.await_method(spec.Basic.Ack)
        raw.method(1, spec.Basic.Publish(routing_key=queue))
        raw.header(1, 1000)
        raw.frame(BODY, 1, b"only a part")
    t.see("only the whole one is there", [ready_soon(ch, queue, 1), drain(ch, queue)], want=[1, ["whole"]])


@case("stream.fan-out")
def fan_out(t):
    ch = t.channel()
    exchange = t.exchange(ch, "x", "fanout")
    queues = [ch.queue_declare("", exclusive=True).method.queue for _ in range(100)]
    for queue in queues:
        ch.queue_bind(queue, exchange)
    body = bytes(range(256)) * 40
    ch.basic_publish(exchange, "", body)
    t.see("100 queues have the same", {ch.basic_get(queue, auto_ack=True)[2] == body for queue in queues} == {True}, want=True)


@case("stream.handed-over")
def handed_over(t):
    one, two = t.connect().channel(), t.connect().channel()
    queue = t.queue(t.channel())
    one.basic_qos(prefetch_count=5)
    first = Consumer(one, queue)
    publisher = t.channel()
    for number in range(5):
        publisher.basic_publish("", queue, str(number))
    first.await_count(5)
    second = Consumer(two, queue)
    one.basic_cancel(first.tag)
    for tag in first.tags():
        one.basic_nack(tag, requeue=True)
    second.await_count(5)
    t.see("what one gave back another gets", [sorted(second.bodies()), second.redelivered()], want=[["0", "1", "2", "3", "4"], [True] * 5])
    one.connection.close()
    third = Consumer(publisher, queue)
    two.connection.close()
    await_until(publisher, lambda: len(third.got) == 5)
    t.see("and what a closed connection had", third.bodies(), want=["0", "1", "2", "3", "4"])
