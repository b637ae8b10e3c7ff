"""What the broker does with frames that are wrong, late or out of order."""

import struct

import pika.spec as spec
from harness import case, connection_error
from raw import BODY, CLOSED, HEADER, HEARTBEAT, METHOD, SILENCE, frame, method_payload, opened, own_words

PUBLISH = spec.Basic.Publish(exchange="", routing_key="nobody")


def check(t, what, play, channels=(1,), **tune):
    with opened(t.uri, channels, **tune) as raw:
        play(raw)
        t.see(what, own_words(raw.fate(ids=True)))


@case("framing.frame-end")
def frame_end(t):
    check(t, "wrong end octet on channel 0", lambda raw: raw.frame(HEARTBEAT, 0, b"", end=b"\xcd"))
    check(t, "wrong end octet of a method", lambda raw: raw.frame(METHOD, 1, b"\0\x3c\0\x28" + bytes(5), end=b"\0"))


@case("framing.unknown-type")
def unknown_type(t):
    check(t, "type 4", lambda raw: raw.frame(4, 0, b""))
    check(t, "type 0 on a channel", lambda raw: raw.frame(0, 1, b"abc"))
    check(t, "type 255", lambda raw: raw.frame(255, 1, b""))


@case("framing.too-large")
def too_large(t):
    def large_body(raw):
        raw.method(1, PUBLISH)
        raw.header(1, 10000)
        raw.frame(BODY, 1, bytes(10000))

    check(t, "body frame above the negotiated maximum", large_body, frame_max=8192)
    check(t, "method frame above", lambda raw: raw.frame(METHOD, 1, bytes(9000)), frame_max=8192)

    def exact(raw):
        raw.call(1, spec.Confirm.Select())
        raw.method(1, PUBLISH)
        raw.header(1, 8192 - 8)
        raw.frame(BODY, 1, bytes(8192 - 8))

    with opened(t.uri, frame_max=8192) as raw:
        exact(raw)
        t.see("exactly the maximum", raw.next_method().NAME, want="Basic.Ack")
    check(t, "one byte more than is tolerated", lambda raw: raw.frame(BODY, 1, bytes(8193)), frame_max=8192)


@case("framing.heartbeat")
def heartbeat(t):
    check(t, "on a channel", lambda raw: raw.frame(HEARTBEAT, 1, b""))
    check(t, "on an unopened channel", lambda raw: raw.frame(HEARTBEAT, 7, b""))
    with opened(t.uri) as raw:
        raw.frame(HEARTBEAT, 0, b"")
        t.see("on channel 0", raw.call(1, spec.Basic.Qos()).NAME, want="Basic.QosOk")
    check(t, "with a payload", lambda raw: (raw.frame(HEARTBEAT, 0, b"xyz"), raw.method(0, spec.Connection.Open())))


@case("framing.content-order")
def content_order(t):
    def then_method(raw):
        raw.method(1, PUBLISH)
        raw.method(1, spec.Basic.Qos())

    def body_without_header(raw):
        raw.method(1, PUBLISH)
        raw.frame(BODY, 1, b"abc")

    def header_twice(raw):
        raw.method(1, PUBLISH)
        raw.header(1, 3)
        raw.header(1, 3)

    def method_instead_of_body(raw):
        raw.method(1, PUBLISH)
        raw.header(1, 3)
        raw.method(1, spec.Basic.Qos())

    def too_much_body(raw):
        raw.method(1, PUBLISH)
        raw.header(1, 3)
        raw.frame(BODY, 1, b"abcdef")

    def body_after_all(raw):
        raw.method(1, PUBLISH)
        raw.header(1, 3)
        raw.frame(BODY, 1, b"abc")
        raw.frame(BODY, 1, b"d")

    def body_after_empty(raw):
        raw.method(1, PUBLISH)
        raw.header(1, 0)
        raw.frame(BODY, 1, b"")
        raw.method(0, spec.Connection.Open())

    def wrong_class(raw):
        raw.method(1, PUBLISH)
        raw.header(1, 3, class_id=50)
        raw.frame(BODY, 1, b"abc")

    check(t, "a method instead of the header", then_method)
    check(t, "a body instead of the header", body_without_header)
    check(t, "a second header instead of the body", header_twice)
    check(t, "a method instead of the body", method_instead_of_body)
    with opened(t.uri) as raw:
        raw.call(1, spec.Confirm.Select())
        too_much_body(raw)
        t.see("more body than announced is refused", raw.fate() not in (CLOSED, SILENCE), want=True)
    check(t, "body after the whole body", body_after_all)
    check(t, "an empty body frame after an empty message", body_after_empty)
    check(t, "wrong class id in the header", wrong_class)
    check(t, "a header without a method", lambda raw: raw.header(1, 3))
    check(t, "a body without a method", lambda raw: raw.frame(BODY, 1, b"abc"))


@case("framing.names-are-text")
def names_are_text(t):
    key = b"k\xff"  # no UTF-8
    queue = t.name()

    def declared(raw):
        raw.call(1, spec.Queue.Declare(queue=queue, exclusive=True))

    def refused(what, method):
        with opened(t.uri) as raw:
            declared(raw)
            raw.method(1, method)
            t.see(what, raw.fate(), want=connection_error(501, "FRAME_ERROR - Malformed UTF-8 in shortstr"))

    refused("a queue", spec.Queue.Declare(queue=key, exclusive=True))
    refused("a queue that is looked for", spec.Basic.Get(queue=key))
    refused("an exchange", spec.Exchange.Declare(exchange=key))
    refused("a consumer tag", spec.Basic.Consume(queue=queue, consumer_tag=key))
    refused("a key of a binding", spec.Queue.Bind(queue=queue, exchange="amq.topic", routing_key=key))
    refused("a word of farewell", spec.Channel.Close(200, key, 0, 0))
    with opened(t.uri) as raw:
        declared(raw)
        raw.call(1, spec.Queue.Bind(queue=queue, exchange="amq.topic", routing_key="#"))
        raw.publish(1, "amq.topic", key, b"routed")
        raw.method(1, spec.Basic.Get(queue=queue, no_ack=True))
        while True:
            kind, _, payload = raw.next_frame()
            if kind == METHOD and payload.startswith(struct.pack(">I", spec.Basic.GetOk.INDEX)):
                break
        t.see("the key of a message is any bytes", bytes([len(key)]) + key in payload, want=True)


@case("framing.body-pieces")
def body_pieces(t):
    with opened(t.uri) as raw:
        queue = t.name()
        raw.call(1, spec.Queue.Declare(queue=queue, exclusive=True))
        raw.method(1, spec.Basic.Publish(routing_key=queue))
        raw.header(1, 6)
        for piece in (b"a", b"", b"bc", b"def"):
            raw.frame(BODY, 1, piece)
        raw.method(1, spec.Basic.Get(queue=queue, no_ack=True))
        raw.await_method(spec.Basic.GetOk)
        kind, _, payload = raw.next_frame()
        t.see("header", [kind, struct.unpack_from(">HHQ", payload)], want=[HEADER, [60, 0, 6]])
        kind, _, payload = raw.next_frame()
        t.see("one body frame", [kind, payload], want=[BODY, "abcdef"])


@case("framing.frame-max-of-deliveries")
def frame_max_of_deliveries(t):
    with opened(t.uri, frame_max=8192) as raw:
        queue = t.name()
        raw.call(1, spec.Queue.Declare(queue=queue, exclusive=True))
        raw.publish(1, "", queue, b"x" * 20000)
        raw.method(1, spec.Basic.Get(queue=queue, no_ack=True))
        raw.await_method(spec.Basic.GetOk)
        raw.next_frame()
        sizes = []
        while sum(sizes) < 20000:
            sizes.append(len(raw.next_frame()[2]))
        t.see("body frames as large as negotiated", sizes, want=[8184, 8184, 3632])


@case("framing.channel-0")
def channel_0(t):
    check(t, "channel.open on channel 0", lambda raw: raw.method(0, spec.Channel.Open()))
    check(t, "basic.publish on channel 0", lambda raw: raw.method(0, PUBLISH))
    check(t, "a content header on channel 0", lambda raw: raw.header(0, 1))
    check(t, "a body on channel 0", lambda raw: raw.frame(BODY, 0, b"abc"))
    check(t, "connection.close-ok without a close", lambda raw: raw.method(0, spec.Connection.CloseOk()))
    check(t, "connection.open on channel 1", lambda raw: raw.method(1, spec.Connection.Open()))
    check(t, "connection.close on channel 1", lambda raw: raw.method(1, spec.Connection.Close(200, "", 0, 0)))


@case("framing.unopened-channel")
def unopened_channel(t):
    text = "CHANNEL_ERROR - expected 'channel.open'"
    with opened(t.uri) as raw:
        raw.method(2, spec.Basic.Qos())
        t.see("a method", raw.fate(), want=connection_error(504, text))
    check(t, "a publish", lambda raw: raw.publish(2, "", "x"))
    check(t, "channel.close", lambda raw: raw.method(2, spec.Channel.Close(200, "", 0, 0)))
    check(t, "channel.close-ok", lambda raw: raw.method(2, spec.Channel.CloseOk()))
    check(t, "a header", lambda raw: raw.header(2, 3))
    check(t, "a body", lambda raw: raw.frame(BODY, 2, b"abc"))


@case("framing.second-channel-open")
def second_channel_open(t):
    with opened(t.uri) as raw:
        raw.method(1, spec.Channel.Open())
        t.see("second open", raw.fate(), want=connection_error(504, "CHANNEL_ERROR - second 'channel.open' seen"))


@case("framing.channel-max")
def channel_max(t):
    with opened(t.uri, (), channel_max=3) as raw:
        raw.channel(3)
        t.see("the highest", "open", want="open")
        raw.channel(1).channel(2)
        raw.method(4, spec.Channel.Open())
        t.see("one more than the negotiated maximum", raw.fate(ids=True))
    with opened(t.uri, (), channel_max=3) as raw:
        raw.method(9, spec.Basic.Qos())
        t.see("another method above it", raw.fate(ids=True))


@case("framing.malformed-method")
def malformed_method(t):
    check(t, "unknown class", lambda raw: raw.frame(METHOD, 1, b"\0\x63\0\x0a"))
    check(t, "unknown method of a known class", lambda raw: raw.frame(METHOD, 1, b"\0\x3c\0\x63"))
    check(t, "unknown method on channel 0", lambda raw: raw.frame(METHOD, 0, b"\0\x0a\0\x63"))
    check(t, "shorter than a method id", lambda raw: raw.frame(METHOD, 1, b"\0\x3c"))
    check(t, "arguments cut short", lambda raw: raw.frame(METHOD, 1, b"\0\x3c\0\x28\0\0\x05ab"))
    check(t, "arguments too long", lambda raw: raw.frame(METHOD, 1, b"\0\x3c\0\x0a" + bytes(7) + b"more"))
    check(t, "a method that only servers send", lambda raw: raw.method(1, spec.Basic.GetEmpty()))
    declare = b"\0\x32\0\x0a\0\0\x01q\0"
    check(t, "a table with an unknown field type", lambda raw: raw.frame(METHOD, 1, declare + struct.pack(">I", 4) + b"\x01k!\0"))
    check(t, "a table longer than the frame", lambda raw: raw.frame(METHOD, 1, declare + struct.pack(">I", 4000) + b"\x01k"))
    check(t, "a string longer than its table", lambda raw: raw.frame(METHOD, 1, declare + struct.pack(">I", 7) + b"\x01kS\0\0\0\xff"))


@case("framing.malformed-header")
def malformed_header(t):
    def short(raw):
        raw.method(1, PUBLISH)
        raw.frame(HEADER, 1, b"\0\x3c\0\0")

    def flags_without_values(raw):
        raw.method(1, PUBLISH)
        raw.frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 0, 0x8000))
        raw.method(0, spec.Connection.Open())

    def rest_after_properties(raw):
        raw.method(1, PUBLISH)
        raw.frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 0, 0) + b"rest")
        raw.method(1, spec.Basic.Get(queue="framing.nothing"))

    def weight(raw):
        raw.method(1, PUBLISH)
        raw.frame(HEADER, 1, struct.pack(">HHQH", 60, 9, 0, 0))
        raw.method(1, spec.Basic.Get(queue="framing.nothing"))

    check(t, "cut short", short)
    check(t, "property flags without values", flags_without_values)
    check(t, "bytes after the properties", rest_after_properties)
    check(t, "a weight that is not 0", weight)


@case("framing.access-request")
def access_request(t):
    with opened(t.uri) as raw:
        # access.request (30, 10): realm, and five bits. Old clients send it.
        raw.frame(METHOD, 1, b"\0\x1e\0\x0a" + b"\x05/data" + b"\x1c")
        kind, channel, payload = raw.next_frame()
        t.see("access.request", [kind, channel, payload[:4].hex(), len(payload)])


@case("framing.crossing-closes")
def crossing_closes(t):
    with opened(t.uri) as raw:
        raw.method(1, spec.Basic.Get(queue="framing.crossing.nothing"))
        raw.method(1, spec.Channel.Close(200, "", 0, 0))
        names = [raw.next_method().NAME, raw.next_method().NAME]
        raw.method(1, spec.Channel.CloseOk())
        t.see("both closes answered", names)
        raw.channel(1)
        t.see("the number is free at once", raw.call(1, spec.Basic.Qos()).NAME, want="Basic.QosOk")
        for _ in range(200):
            raw.call(1, spec.Channel.Close(200, "", 0, 0))
            raw.channel(1)
        t.see("after fast churn", raw.call(1, spec.Basic.Qos()).NAME, want="Basic.QosOk")


@case("framing.under-way-at-a-close")
def under_way_at_a_close(t):
    """What a thread of a client sends while another one closes the channel."""
    with opened(t.uri, (1, 2)) as raw:
        queue = t.name()
        raw.call(2, spec.Queue.Declare(queue=queue, exclusive=True))
        ack = frame(METHOD, 1, method_payload(spec.Basic.Ack(7)))
        raw.send(frame(METHOD, 1, method_payload(spec.Channel.Close(200, "", 0, 0))) + ack)
        t.see("closed", raw.next_method().NAME, want="Channel.CloseOk")
        declared = raw.call(2, spec.Queue.Declare(queue=queue, passive=True))
        t.see("the connection is there", declared.queue == queue, want=True)
        raw.channel(1)
        t.see("opened again", raw.call(1, spec.Basic.Qos()).NAME, want="Basic.QosOk")


@case("framing.after-a-channel-error")
def after_a_channel_error(t):
    with opened(t.uri, (1, 2)) as raw:
        queue = t.name()
        raw.call(2, spec.Queue.Declare(queue=queue, exclusive=True))
        raw.method(1, spec.Basic.Get(queue="framing.after.nothing"))
        close = raw.await_method(spec.Channel.Close)
        t.see("closed", [close.reply_code, close.class_id, close.method_id], want=[404, 60, 70])
        # Until close-ok everything on the channel is ignored, content too.
        raw.publish(1, "", queue, b"lost")
        raw.method(1, spec.Queue.Delete(queue=queue))
        raw.method(1, spec.Channel.CloseOk())
        declared = raw.call(2, spec.Queue.Declare(queue=queue, passive=True))
        t.see("what came on the channel was ignored", declared.message_count, want=0)
        raw.channel(1)
        t.see("opened again", raw.call(1, spec.Basic.Qos()).NAME, want="Basic.QosOk")


@case("framing.after-a-connection-error")
def after_a_connection_error(t):
    with opened(t.uri) as raw:
        raw.method(1, spec.Basic.Qos(prefetch_size=1))
        close = raw.await_method(spec.Connection.Close)
        t.see("closed", [close.reply_code, close.class_id, close.method_id], want=[540, 60, 10])
        raw.method(1, spec.Basic.Qos())
        raw.method(0, spec.Connection.CloseOk())
        t.see("nothing more, then the end", raw.next_method(), want=None)


@case("framing.channel-flow")
def channel_flow(t):
    with opened(t.uri) as raw:
        answer = raw.call(1, spec.Channel.Flow(active=True))
        t.see("active=true", answer.active, want=True)
        raw.method(1, spec.Channel.Flow(active=False))
        t.see("active=false", raw.fate(), want=connection_error(540, "NOT_IMPLEMENTED - active=false"))


@case("framing.many-channels")
def many_channels(t):
    connection = t.connect()
    channels = [connection.channel() for _ in range(200)]
    name = t.name()
    channels[0].queue_declare(name, exclusive=True)
    for number, channel in enumerate(channels):
        channel.basic_publish("", name, str(number))
    bodies = set()
    for channel in reversed(channels):
        method, _, body = channel.basic_get(name, auto_ack=True)
        while method is None:  # publishes of different channels have no order
            method, _, body = channel.basic_get(name, auto_ack=True)
        bodies.add(int(body))
    t.see("one message through each of 200 channels", len(bodies), want=200)


@case("framing.out-of-channels")
def out_of_channels(t):
    connection = t.connect(channel_max=5)
    for number in (1, 2, 3, 4, 5):
        connection.channel(number)
    t.see("all of them", "open", want="open")
