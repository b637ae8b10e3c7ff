"""Publishing: returns, confirms, properties, sizes, and what is refused."""

import datetime
import decimal
import struct

import pika
import pika.spec as spec
from harness import case, channel_error, connection_error, drain
from raw import HEADER, METHOD, decode_method, opened


def answers(raw, until, since=1):
    """What comes back, as short texts, until all publishes from since to until were acked or nacked. Each is told by itself."""
    told, open_tags = [], set(range(since, until + 1))
    while open_tags:
        method = raw.next_method()
        if isinstance(method, (spec.Basic.Ack, spec.Basic.Nack)):
            word = "ack" if isinstance(method, spec.Basic.Ack) else "nack"
            if since <= method.delivery_tag <= until and method.delivery_tag not in open_tags:
                told.append(f"{word} {method.delivery_tag} again")
            tags = sorted(tag for tag in open_tags if tag <= method.delivery_tag) if method.multiple else [method.delivery_tag]
            told += [f"{word} {tag}" for tag in tags]
            open_tags -= set(tags)
        elif isinstance(method, spec.Basic.Return):
            told.append(f"return {method.reply_code} {method.reply_text} {method.exchange}/{method.routing_key}")
        else:
            told.append(method.NAME if method else "closed")
            break
    return told


@case("publish.mandatory")
def mandatory(t):
    with opened(t.uri) as raw:
        queue = t.name()
        raw.call(1, spec.Queue.Declare(queue=queue, exclusive=True))
        raw.call(1, spec.Confirm.Select())
        raw.publish(1, "", t.name("none"), b"m", mandatory=True)
        t.see("returned before its ack", answers(raw, 1), want=[f"return 312 NO_ROUTE /{t.name('none')}", "ack 1"])
        raw.publish(1, "", queue, b"m", mandatory=True)
        raw.publish(1, "", t.name("none"), b"m")
        t.see("routed, and unroutable without the flag", sorted(answers(raw, 3, since=2)), want=["ack 2", "ack 3"])


@case("publish.return-content")
def return_content(t):
    with opened(t.uri) as raw:
        properties = pika.BasicProperties(content_type="text/plain", headers={"a": 1}, message_id="m-1", delivery_mode=2, expiration="1000")
        raw.publish(1, "amq.fanout", t.name("key"), b"the body", properties, mandatory=True)
        kind, _, payload = raw.next_frame()
        method = decode_method(payload)
        t.see(
            "method",
            [method.NAME, method.reply_code, method.reply_text, method.exchange, method.routing_key],
            want=["Basic.Return", 312, "NO_ROUTE", "amq.fanout", t.name("key")],
        )
        kind, _, payload = raw.next_frame()
        back = spec.BasicProperties()
        back.decode(payload[12:])
        t.see(
            "properties",
            {k: v for k, v in vars(back).items() if v is not None},
            want={"content_type": "text/plain", "headers": {"a": 1}, "message_id": "m-1", "delivery_mode": 2, "expiration": "1000"},
        )
        t.see("body", [raw.next_frame()[2]], want=["the body"])
        raw.publish(1, "amq.fanout", t.name("key"), b"", mandatory=True)
        frames = [raw.next_frame()[0], raw.next_frame()[0]]
        raw.method(1, spec.Basic.Qos())
        t.see("an empty body has no frame", frames + [raw.next_frame()[0]], want=[METHOD, HEADER, METHOD])


@case("publish.immediate")
def immediate(t):
    with opened(t.uri) as raw:
        raw.publish(1, "", "x", b"m", immediate=True)
        t.see("immediate", raw.fate(ids=True), want={**connection_error(540, "NOT_IMPLEMENTED - immediate=true"), "method": [60, 40]})


@case("publish.absent-exchange")
def absent_exchange(t):
    with opened(t.uri) as raw:
        raw.publish(1, t.name("x"), "k", b"m")
        want = channel_error(404, f"NOT_FOUND - no exchange '{t.name('x')}' in vhost '/'")
        t.see("absent exchange", raw.fate(ids=True), want={**want, "method": [60, 40]})


@case("publish.cc-bcc")
def cc_bcc(t):
    ch = t.channel()
    a, b, c = (t.queue(ch, short, exclusive=True) for short in "abc")

    def publish(key, headers):
        ch.basic_publish("", key, "m", pika.BasicProperties(headers=headers))
        seen = {}
        for short, queue in zip("abc", (a, b, c), strict=True):
            method, properties, _ = ch.basic_get(queue, auto_ack=True)
            if method:
                seen[short] = [method.routing_key, properties.headers]
                assert not drain(ch, queue)
        return seen

    t.see("CC", publish(a, {"CC": [b], "k": "v"}), want={"a": [a, {"CC": [b], "k": "v"}], "b": [a, {"CC": [b], "k": "v"}]})
    t.see("BCC is removed", publish(a, {"BCC": [b, c], "k": "v"}), want={short: [a, {"k": "v"}] for short in "abc"})
    t.see("both", publish(a, {"CC": [b], "BCC": [c]}), want={short: [a, {"CC": [b]}] for short in "abc"})
    t.see("only BCC", publish(a, {"BCC": [c]}))
    t.see("no duplicates", publish(a, {"CC": [a, b, b], "BCC": [a, b]}))
    t.see("key without a queue", publish(t.name("none"), {"CC": [b]}))
    t.see("lower case is no CC", publish(a, {"cc": [b]}))
    t.see("empty arrays", publish(a, {"CC": [], "BCC": []}))
    for value in ("text", 1, [1], [b, 1]):
        t.refused(
            f"CC {value if not isinstance(value, list) else 'array with a number'}",
            lambda ch: ch.basic_publish("", a, "m", pika.BasicProperties(headers={"CC": value})),
        )
    drain(ch, a)
    t.refused("BCC text", lambda ch: ch.basic_publish("", a, "m", pika.BasicProperties(headers={"BCC": "text"})))


@case("publish.user-id")
def user_id(t):
    ch = t.channel()
    queue = t.queue(ch)
    t.refused("one's own", lambda ch: ch.basic_publish("", queue, "m", pika.BasicProperties(user_id="guest")), want="ok")
    t.refused(
        "another's",
        lambda ch: ch.basic_publish("", queue, "m", pika.BasicProperties(user_id="other")),
        want=channel_error(406, "PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was 'guest'"),
    )
    t.see("only the first came", len(drain(ch, queue)), want=1)


@case("publish.expiration")
def expiration(t):
    ch = t.channel()
    queue = t.queue(ch)
    for value in (
        "60000",
        "0",
        "1x",
        "-1",
        "",
        " 1",
        "1.5",
        "4294967295",
        "4294967296",
        "315360000000",
        "315360000001",
        "99999999999999999999",
    ):
        t.refused(f"expiration {value!r}", lambda ch: ch.basic_publish("", queue, "m", pika.BasicProperties(expiration=value)))


@case("publish.delivery-mode")
def delivery_mode(t):
    ch = t.channel()
    queue = t.queue(ch, exclusive=True)
    for mode in (None, 1, 2, 0, 3, 255):
        saw = t.outcome(lambda ch: ch.basic_publish("", queue, "m", pika.BasicProperties(delivery_mode=mode)))
        method, properties, _ = ch.basic_get(queue, auto_ack=True)
        t.see(f"delivery_mode {mode}", [saw, properties.delivery_mode if method else "nothing"], want=["ok", mode])


@case("publish.properties")
def properties(t):
    ch = t.channel()
    queue = t.queue(ch, exclusive=True)
    sent = dict(
        content_type="application/json", content_encoding="gzip", headers={"k": "v"}, delivery_mode=2, priority=7, correlation_id="c" * 255,
        reply_to="r", expiration="60000", message_id="m", timestamp=1700000000, type="t", user_id="guest", app_id="a", cluster_id="cl",
    )  # fmt: skip
    ch.basic_publish("amq.direct", "k", "ignored")
    ch.basic_publish("", queue, "b", pika.BasicProperties(**sent))
    _, back, _ = ch.basic_get(queue, auto_ack=True)
    t.see("all fourteen", {k: v for k, v in vars(back).items() if v is not None}, want=sent)
    for key, value in sent.items():
        ch.basic_publish("", queue, "b", pika.BasicProperties(**{key: value}))
        _, back, _ = ch.basic_get(queue, auto_ack=True)
        t.see(key, {k: v for k, v in vars(back).items() if v is not None}, want={key: value})
    ch.basic_publish("", queue, "b")
    _, back, _ = ch.basic_get(queue, auto_ack=True)
    t.see("none", {k: v for k, v in vars(back).items() if v is not None}, want={})


def field(name, kind, data):
    return bytes([len(name)]) + name + kind + data


def long_string(data):
    return struct.pack(">I", len(data)) + data


NESTED = field(b"in", b"S", long_string(b"side")) + field(b"deep", b"F", long_string(field(b"er", b"t", b"\1")))
FIELDS = {
    "t true": (b"t", b"\1"), "t false": (b"t", b"\0"), "b": (b"b", b"\x80"), "B": (b"B", b"\xff"), "s": (b"s", b"\x80\x01"), "u": (b"u", b"\xff\xfe"),
    "I": (b"I", b"\x80\0\0\1"), "i": (b"i", b"\xff\xff\xff\xfe"), "l": (b"l", b"\x80\0\0\0\0\0\0\1"), "f": (b"f", struct.pack(">f", 1.5)),
    "d": (b"d", struct.pack(">d", -2.25)), "D": (b"D", b"\x02\0\0\x01\x3a"), "S": (b"S", long_string("größe".encode())), "S empty": (b"S", long_string(b"")),
    "S bytes": (b"S", long_string(bytes(range(256)))), "x": (b"x", long_string(b"\0\1\2")), "T": (b"T", struct.pack(">Q", 1700000000)),
    "V": (b"V", b""), "F": (b"F", long_string(NESTED)), "F empty": (b"F", long_string(b"")),
    "A": (b"A", long_string(b"I\0\0\0\1" + b"S" + long_string(b"two") + b"V" + b"A" + long_string(b"t\1"))), "A empty": (b"A", long_string(b"")),
}  # fmt: skip


@case("publish.table-types")
def table_types(t):
    with opened(t.uri) as raw:
        queue = t.name()
        raw.call(1, spec.Queue.Declare(queue=queue, exclusive=True))

        def round_trip(table):
            raw.method(1, spec.Basic.Publish(routing_key=queue))
            raw.frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 0, 0x2000) + long_string(table))
            raw.call(1, spec.Basic.Get(queue=queue, no_ack=True))
            kind, _, payload = raw.next_frame()
            return payload[14:] == long_string(table) and payload[:14] == struct.pack(">HHQH", 60, 0, 0, 0x2000)

        for what, (kind, data) in FIELDS.items():
            t.see(f"type {what}: the same bytes", round_trip(field(b"key", kind, data)), want=True)
        everything = b"".join(field(b"k%d" % number, kind, data) for number, (kind, data) in enumerate(FIELDS.values()))
        t.see("all together", round_trip(everything), want=True)
        t.see(
            "keys out of order and twice",
            round_trip(field(b"z", b"t", b"\1") + field(b"a", b"t", b"\1") + field(b"z", b"t", b"\0")),
            want=True,
        )
        t.see("the empty key", round_trip(field(b"", b"t", b"\1")), want=True)
        t.see("a key of 255 bytes", round_trip(field(b"k" * 255, b"t", b"\1")), want=True)
        deep = b""
        for _ in range(30):
            deep = field(b"n", b"F", long_string(deep))
        t.see("thirty tables in each other", round_trip(deep), want=True)


@case("publish.table-values")
def table_values(t):
    ch = t.channel()
    queue = t.queue(ch, exclusive=True)
    sent = {
        "text": "größe", "int": 7, "negative": -7, "long": 2**40, "bool": True, "none": None, "decimal": decimal.Decimal("3.14"),
        "time": datetime.datetime(2026, 11, 21, 10, 0, 0, tzinfo=datetime.timezone.utc), "table": {"a": {"b": [1, "2", [3]]}}, "bytes": b"\0\xff",
    }  # fmt: skip
    ch.basic_publish("", queue, "b", pika.BasicProperties(headers=sent))
    _, back, _ = ch.basic_get(queue, auto_ack=True)
    t.see("what pika reads back", {key: repr(value) for key, value in back.headers.items()})


@case("publish.body-sizes")
def body_sizes(t):
    ch = t.channel()
    queue = t.queue(ch, exclusive=True)
    for size in (0, 1, 4088, 131063, 131064, 131065, 200000, 5 * 1024 * 1024):
        body = (bytes(range(256)) * (size // 256 + 1))[:size]
        ch.basic_publish("", queue, body)
        _, _, back = ch.basic_get(queue, auto_ack=True)
        t.see(f"{size} bytes come back", back == body, want=True)


@case("publish.too-large")
def too_large(t):
    ch = t.channel()
    queue = t.queue(ch)
    limit = 16 * 1024 * 1024
    with opened(t.uri) as raw:
        raw.publish(1, "", queue, bytes(limit))
        raw.publish(1, "", queue, bytes(limit + 1))
        t.see(
            "one byte above the limit",
            raw.fate(timeout_s=8),
            want=channel_error(406, f"PRECONDITION_FAILED - message size {limit + 1} is larger than configured max size {limit}"),
        )
        raw.channel(1)
        t.see("the connection lives", raw.call(1, spec.Basic.Qos()).NAME, want="Basic.QosOk")
        got = raw.call(1, spec.Basic.Get(queue=queue))
        t.see("the limit itself is fine", [got.NAME, got.message_count], want=["Basic.GetOk", 0])


@case("confirm.order")
def confirm_order(t):
    with opened(t.uri) as raw:
        queue = t.name()
        raw.call(1, spec.Queue.Declare(queue=queue, durable=True))
        raw.publish(1, "", queue, b"before")
        raw.call(1, spec.Confirm.Select())
        raw.call(1, spec.Confirm.Select())
        persistent = pika.BasicProperties(delivery_mode=2)
        for number in range(300):
            raw.publish(1, "", queue if number % 3 else t.name("none"), b"m", persistent if number % 2 else None)
        told = answers(raw, 300)
        # php-amqplib gives up when the number of a `multiple` is one that it was told before.
        t.see(
            "each exactly once, from 1",
            sorted(told, key=lambda text: int(text.split()[1])) == [f"ack {n}" for n in range(1, 301)],
            want=True,
        )
        declared = raw.call(1, spec.Queue.Declare(queue=queue, passive=True))
        t.see("all there", declared.message_count, want=201)
        raw.call(1, spec.Queue.Delete(queue=queue))


@case("confirm.acked-anyway")
def confirm_acked_anyway(t):
    with opened(t.uri) as raw:
        queue = t.name()
        raw.call(1, spec.Confirm.Select())
        raw.publish(1, "amq.fanout", t.name("nobody"), b"m")
        t.see("unroutable", answers(raw, 1), want=["ack 1"])
        raw.call(1, spec.Queue.Declare(queue=queue, durable=True))
        raw.publish(1, "", queue, b"m", pika.BasicProperties(delivery_mode=2))
        raw.method(1, spec.Queue.Purge(queue=queue))
        raw.publish(1, "", queue, b"m", pika.BasicProperties(delivery_mode=2))
        raw.method(1, spec.Queue.Delete(queue=queue))
        names = []
        acked = set()
        while len(names) < 2 or acked != {2, 3}:
            method = raw.next_method()
            if isinstance(method, spec.Basic.Ack):
                acked |= set(range(2, method.delivery_tag + 1)) if method.multiple else {method.delivery_tag}
            else:
                names.append(method.NAME)
        t.see("purged and deleted", [sorted(acked), names], want=[[2, 3], ["Queue.PurgeOk", "Queue.DeleteOk"]])


@case("confirm.tx-mix")
def confirm_tx_mix(t):
    def confirm_then_tx(ch):
        ch.confirm_delivery()
        ch.tx_select()

    def tx_then_confirm(ch):
        ch.tx_select()
        ch.confirm_delivery()

    t.refused("tx after confirm", confirm_then_tx, want=channel_error(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"))
    t.refused("confirm after tx", tx_then_confirm, want=channel_error(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode"))


@case("confirm.per-channel")
def confirm_per_channel(t):
    with opened(t.uri, (1, 2, 3)) as raw:
        raw.call(1, spec.Confirm.Select())
        raw.call(2, spec.Confirm.Select())
        for number in (3, 2, 1, 2):
            raw.publish(number, "", t.name("none"), b"m")
        got = set()
        while len(got) < 3:
            method = raw.next_method()
            first = 1 if method.multiple else method.delivery_tag
            got |= {(method.channel_number, tag) for tag in range(first, method.delivery_tag + 1)}
        t.see("numbered per channel, none without select", sorted(got), want=[[1, 1], [2, 1], [2, 2]])


@case("confirm.channel-close")
def confirm_channel_close(t):
    with opened(t.uri) as raw:
        queue = t.name()
        raw.call(1, spec.Queue.Declare(queue=queue, exclusive=True))
        raw.call(1, spec.Confirm.Select())
        raw.publish(1, "", queue, b"m")
        raw.publish(1, t.name("x"), "k", b"m")
        closed = raw.fate()
        t.see("the channel ends", closed["code"], want=404)
        raw.channel(1)
        raw.publish(1, "", queue, b"m")
        got = [raw.call(1, spec.Basic.Get(queue=queue, no_ack=True)).NAME for _ in range(3)]
        t.see("what was before it is in, and the new channel does not confirm", got, want=["Basic.GetOk", "Basic.GetOk", "Basic.GetEmpty"])
