"""From the protocol header to connection.open-ok: versions, login, tuning, vhosts, heartbeats."""

import struct
import time

import pika
import pika.spec as spec
from harness import case, connection_error
from raw import CAPABILITIES, CLOSED, HEARTBEAT, PROTOCOL_HEADER, Raw, opened, own_words


def answer_to_header(uri, header):
    with Raw(uri) as raw:
        raw.send(header)
        head = raw.bytes(8)
        return {"answer": head.hex(), "closed": raw.is_closed()}


@case("handshake.protocol-header")
def protocol_header(t):
    ours = {"answer": PROTOCOL_HEADER.hex(), "closed": True}
    t.see("AMQP 0-9 (0 0 9 0)", answer_to_header(t.uri, b"AMQP\x00\x00\x09\x00"), want=ours)
    t.see("AMQP 0-10 (1 1 0 10)", answer_to_header(t.uri, b"AMQP\x01\x01\x00\x0a"), want=ours)
    t.see("AMQP 1.0 (0 1 0 0)", answer_to_header(t.uri, b"AMQP\x00\x01\x00\x00"))
    t.see("AMQP 1.0 with SASL (3 1 0 0)", answer_to_header(t.uri, b"AMQP\x03\x01\x00\x00"))
    t.see("HTTP", answer_to_header(t.uri, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), want=ours)
    t.see("TLS client hello", answer_to_header(t.uri, bytes.fromhex("1603010200010001fc0303")), want=ours)
    with Raw(t.uri) as raw:
        raw.send(b"AMQP\x01\x01\x00\x09")
        t.see("AMQP 0-9-1 the old way (1 1 0 9)", raw.next_method().NAME, want="Connection.Start")
    with Raw(t.uri) as raw:
        for byte in PROTOCOL_HEADER:
            raw.send(bytes([byte]))
        t.see("the header byte by byte", raw.next_method().NAME, want="Connection.Start")


@case("handshake.start")
def start(t):
    with Raw(t.uri) as raw:
        server = raw.start()
        t.see("version", [server.version_major, server.version_minor], want=[0, 9])
        t.see("locales", server.locales, want=b"en_US")
        t.see("PLAIN is offered", b"PLAIN" in server.mechanisms.split(), want=True)
        t.see("AMQPLAIN is offered", b"AMQPLAIN" in server.mechanisms.split())
        properties = server.server_properties
        expected = ["capabilities", "cluster_name", "copyright", "information", "platform", "product", "version"]
        t.see("keys of the server properties", [key for key in sorted(properties) if key in expected], want=expected)
        t.see(
            "capabilities",
            properties["capabilities"],
            want={
                name: True
                for name in (
                    "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked",
                    "consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to",
                )
            },
        )  # fmt: skip
        version = properties["version"].split(".")
        t.see("the version announced is 3.something", version[0] == "3" and len(version) == 3, want=True)
        raw.start_ok()
        tune = raw.await_tune()
        t.see("tune", [tune.channel_max, tune.frame_max, tune.heartbeat], want=[2047, 131072, 60])


def login(uri, capabilities, mechanism="PLAIN", response="\0guest\0wrong"):
    with Raw(uri) as raw:
        raw.start()
        raw.start_ok(mechanism, response, capabilities)
        return raw.fate(timeout_s=8)


REFUSED = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."


@case("handshake.bad-login")
def bad_login(t):
    t.see("wrong password", login(t.uri, CAPABILITIES), want=connection_error(403, REFUSED))
    t.see("unknown user", login(t.uri, CAPABILITIES, response="\0nobody\0x"), want=connection_error(403, REFUSED))
    t.see("empty response", login(t.uri, CAPABILITIES, response=""))
    t.see("malformed response", login(t.uri, CAPABILITIES, response="guest:guest"))
    t.see("unknown mechanism", login(t.uri, CAPABILITIES, mechanism="NONSENSE"))
    t.see("unknown mechanism, no capability", login(t.uri, None, mechanism="NONSENSE"))


@case("handshake.bad-login-plain-close")
def bad_login_plain_close(t):
    started = time.monotonic()
    t.see("without the capability", login(t.uri, None), want=CLOSED)
    t.see("not at once", time.monotonic() - started > 0.5, want=True)
    t.see("capability false", login(t.uri, {"authentication_failure_close": False}), want=CLOSED)


def encoded_login(user, password):
    def text(name, value):
        return bytes([len(name)]) + name + b"S" + struct.pack(">I", len(value)) + value

    return text(b"LOGIN", user) + text(b"PASSWORD", password)


@case("handshake.amqplain")
def amqplain(t):
    for what, password in (("right", b"guest"), ("wrong", b"no")):
        with Raw(t.uri) as raw:
            raw.start()
            raw.start_ok("AMQPLAIN", encoded_login(b"guest", password))
            if what == "right":
                raw.await_tune()
                raw.tune_ok()
                raw.open()
                t.see("login", raw.await_method(spec.Connection.OpenOk).NAME, want="Connection.OpenOk")
            else:
                t.see("wrong password", raw.fate())


@case("handshake.vhost")
def vhost(t):
    def opening(vhost, user="guest", password="guest"):
        with Raw(t.uri) as raw:
            raw.user, raw.password = user, password
            raw.start()
            raw.start_ok()
            raw.await_tune()
            raw.tune_ok()
            raw.open(vhost)
            method = raw.next_method()
            if isinstance(method, spec.Connection.OpenOk):
                return "open"
            raw.buffer = b""
            return {"code": method.reply_code, "text": method.reply_text, "method": [method.class_id, method.method_id]}

    t.see("default", opening("/"), want="open")
    t.see("other", opening("other"), want="open")
    t.see("unknown", opening("nowhere"), want={"code": 530, "text": "NOT_ALLOWED - vhost nowhere not found", "method": [10, 40]})
    t.see(
        "no permission",
        opening("other", "limited", "limited-pass"),
        want={"code": 530, "text": "NOT_ALLOWED - access to vhost 'other' refused for user 'limited'", "method": [10, 40]},
    )
    t.see("empty patterns are permission enough", opening("/", "watcher", "watcher-pass"), want="open")


@case("handshake.vhost-limit")
def vhost_limit(t):
    """The vhost `full` takes one connection."""
    first = t.connect(vhost="full")
    with Raw(t.uri) as raw:
        raw.start()
        raw.start_ok()
        raw.await_tune()
        raw.tune_ok()
        raw.open("full")
        text = "NOT_ALLOWED - access to vhost 'full' refused for user 'guest': connection limit (1) is reached"
        method = raw.next_method()
        t.see("one too many", [method.reply_code, method.reply_text], want=[530, text])
    first.close()
    for _ in range(50):  # RabbitMQ counts a little later
        try:
            t.connect(vhost="full")
            break
        except pika.exceptions.AMQPError:
            time.sleep(0.1)
    t.see("one is gone, one may come", t.connections[-1].is_open, want=True)


def tuned(uri, **tune):
    with Raw(uri) as raw:
        raw.start()
        raw.start_ok()
        raw.await_tune()
        raw.tune_ok(**tune)
        raw.open()
        method = raw.next_method()
        if isinstance(method, spec.Connection.OpenOk):
            return "open"
        if method is None:
            return CLOSED
        return {"code": method.reply_code, "text": method.reply_text}


@case("handshake.tune")
def tune(t):
    def refused(text):
        return {"code": 530, "text": f"NOT_ALLOWED - negotiated {text}"}

    t.see("as offered", tuned(t.uri), want="open")
    t.see("lower", tuned(t.uri, channel_max=10, frame_max=8192), want="open")
    t.see("frame_max 4096", tuned(t.uri, frame_max=4096), want="open")
    higher = "{} = {} is higher than the maximum allowed value ({})"
    t.see("channel_max above", tuned(t.uri, channel_max=2048), want=refused(higher.format("channel_max", 2048, 2047)))
    t.see("frame_max above", tuned(t.uri, frame_max=131073), want=refused(higher.format("frame_max", 131073, 131072)))
    t.see("channel_max 0, no limit, is above", tuned(t.uri, channel_max=0), want=refused(higher.format("channel_max", 0, 2047)))
    t.see("frame_max 0, no limit, is above", tuned(t.uri, frame_max=0), want=refused(higher.format("frame_max", 0, 131072)))
    lower = "frame_max = 4095 is lower than the minimum allowed value (4096)"
    t.see("frame_max below the minimum", tuned(t.uri, frame_max=4095), want=refused(lower))


@case("handshake.order")
def order(t):
    with Raw(t.uri) as raw:
        raw.start()
        raw.method(0, spec.Connection.TuneOk(10, 8192, 0))
        t.see("tune-ok instead of start-ok", own_words(raw.fate(5, ids=True)))
    with Raw(t.uri) as raw:
        raw.start()
        raw.start_ok()
        raw.await_tune()
        raw.open()
        t.see("open instead of tune-ok", own_words(raw.fate(5, ids=True)))
    with Raw(t.uri) as raw:
        raw.start()
        raw.start_ok()
        raw.await_tune()
        raw.tune_ok()
        raw.method(1, spec.Channel.Open())
        t.see("channel.open instead of connection.open", own_words(raw.fate(ids=True)))
    with opened(t.uri, ()) as raw:
        raw.start_ok()
        t.see("start-ok when open", own_words(raw.fate(ids=True)))
    with opened(t.uri, ()) as raw:
        raw.open()
        t.see("a second connection.open", own_words(raw.fate(ids=True)))
    with opened(t.uri, ()) as raw:
        raw.send(PROTOCOL_HEADER)
        t.see("a second protocol header", own_words(raw.fate(ids=True)))


@case("handshake.large-start-ok")
def large_start_ok(t):
    for what, size in (("3000 bytes of properties", 3000), ("5000 bytes of properties", 5000), ("9000 bytes of properties", 9000)):
        with Raw(t.uri) as raw:
            raw.start()
            raw.start_ok(properties={"filler": "x" * size})
            method = raw.next_method()
            t.see(
                what,
                method.NAME
                if isinstance(method, spec.Connection.Tune)
                else CLOSED
                if method is None
                else {"code": method.reply_code, "text": method.reply_text},
            )


@case("handshake.update-secret")
def update_secret(t):
    with opened(t.uri, ()) as raw:
        raw.method(0, spec.Connection.UpdateSecret(new_secret="guest", reason="test"))
        t.see("update-secret", raw.next_method().NAME, want="Connection.UpdateSecretOk")


@case("handshake.close")
def close(t):
    with opened(t.uri) as raw:
        raw.method(0, spec.Connection.Close(200, "bye", 0, 0))
        t.see("close", raw.next_method().NAME, want="Connection.CloseOk")
        # Clients that read the end of the stream before they handled close-ok would report an error on a clean close.
        t.see("the socket's end is left to the client", raw.is_closed(timeout_s=0.7), want=False)


@case("handshake.timeout")
def timeout(t):
    with Raw(t.uri) as raw:
        started = time.monotonic()
        t.see("a silent client is closed", raw.is_closed(timeout_s=15), want=True)
        t.see("after about 10 s", 8 < time.monotonic() - started < 13, want=True)


@case("handshake.heartbeat-of-the-server")
def heartbeat_of_the_server(t):
    with opened(t.uri, (), heartbeat=1) as raw:
        # Our own heartbeats keep the connection alive; the server's come at half the interval or a little later.
        times = []
        while len(times) < 3:
            kind, channel, payload = raw.next_frame()
            times.append(time.monotonic())
            raw.frame(HEARTBEAT, 0, b"")
        t.see("on channel 0, empty", [kind, channel, len(payload)], want=[HEARTBEAT, 0, 0])
        t.see("within the interval", times[2] - times[0] <= 2.5, want=True)


@case("handshake.heartbeat-of-the-client-missing")
def heartbeat_missing(t):
    with opened(t.uri, (), heartbeat=1) as raw:
        started = time.monotonic()
        t.see("a silent client loses its connection", raw.is_closed(), want=True)
        seconds = time.monotonic() - started
        t.see("after two intervals or a little more", 1.5 < seconds < 4.5, want=True)


@case("handshake.heartbeat-off")
def heartbeat_off(t):
    with opened(t.uri, (), heartbeat=0) as raw:
        try:
            got = raw.next_frame(timeout_s=2.5)
        except TimeoutError:
            got = "nothing"
        t.see("no heartbeats", got, want="nothing")
