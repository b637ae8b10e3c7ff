"""A raw AMQP socket, for what a client library would never send and for the exact order of what comes back.

Methods are encoded and decoded with pika's generated tables; framing, handshake and errors are ours.
"""

import socket
import struct
import time
from urllib.parse import unquote, urlparse

import pika.spec as spec

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}
CLOSED = "socket closed"
SILENCE = "silence"


def frame(kind, channel, payload, end=FRAME_END):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method_payload(method):
    return struct.pack(">I", method.INDEX) + b"".join(method.encode())


def decode_method(payload):
    number = struct.unpack_from(">I", payload)[0]
    method = spec.methods[number]()
    method.decode(payload, 4)
    return method


class Raw:
    def __init__(self, uri, timeout_s=8):
        parts = urlparse(uri)
        self.user, self.password, self.vhost = parts.username, parts.password, unquote(parts.path[1:])
        self.timeout_s = timeout_s
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.tune = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    # -- sending

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # the answer, or its absence, is what counts

    def frame(self, kind, channel, payload, end=FRAME_END):
        self.send(frame(kind, channel, payload, end))

    def method(self, channel, method):
        self.frame(METHOD, channel, method_payload(method))

    def header(self, channel, size, properties=None, class_id=60):
        encoded = b"".join((properties or spec.BasicProperties()).encode())
        self.frame(HEADER, channel, struct.pack(">HHQ", class_id, 0, size) + encoded)

    def publish(self, channel, exchange, routing_key, body=b"", properties=None, mandatory=False, immediate=False):
        self.method(channel, spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate))
        self.header(channel, len(body), properties)
        limit = (self.tune.frame_max if self.tune else 4096) - 8
        for start in range(0, len(body), limit):
            self.frame(BODY, channel, body[start : start + limit])

    # -- receiving

    def bytes(self, count, timeout_s=None):
        """Exactly count bytes, or what came before the end of the stream."""
        end = time.monotonic() + (timeout_s or self.timeout_s)
        while len(self.buffer) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("nothing came from the broker")
            self.socket.settimeout(left)
            try:
                more = self.socket.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                more = b""
            if not more:
                break
            self.buffer += more
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def next_frame(self, timeout_s=None):
        """(kind, channel, payload), or None at the end of the stream."""
        head = self.bytes(7, timeout_s)
        if len(head) < 7:
            return None
        kind, channel, size = struct.unpack(">BHI", head)
        payload = self.bytes(size + 1, timeout_s)
        if len(payload) < size + 1:
            return None
        if payload[-1:] != FRAME_END:
            raise ValueError("the broker sent a frame with a wrong end")
        return kind, channel, payload[:-1]

    def next_method(self, timeout_s=None):
        """The next method (channel number in .channel_number), skipping content and heartbeats; None at the end."""
        while True:
            got = self.next_frame(timeout_s)
            if got is None:
                return None
            kind, channel, payload = got
            if kind == METHOD:
                method = decode_method(payload)
                method.channel_number = channel
                return method

    def await_method(self, *wanted, timeout_s=None):
        """Skips methods until one of the wanted classes; raises on anything that closes."""
        while True:
            method = self.next_method(timeout_s)
            if method is None or isinstance(method, (spec.Connection.Close, spec.Channel.Close)) and not isinstance(method, wanted):
                raise RuntimeError(f"closed instead: {closing_of(method)}")
            if isinstance(method, wanted):
                return method

    def fate(self, timeout_s=None, ids=False):
        """How the broker ends it: the close of connection or channel it sends (answered as a client would), CLOSED or SILENCE."""
        while True:
            try:
                method = self.next_method(timeout_s or 2)
            except TimeoutError:
                return SILENCE
            if method is None:
                return CLOSED
            if isinstance(method, spec.Connection.Close):
                self.method(0, spec.Connection.CloseOk())
                return closing_of(method, ids)
            if isinstance(method, spec.Channel.Close):
                self.method(method.channel_number, spec.Channel.CloseOk())
                return closing_of(method, ids)

    def is_closed(self, timeout_s=None):
        """Reads to the end of the stream."""
        try:
            while self.next_frame(timeout_s) is not None:
                pass
        except TimeoutError:
            return False
        return True

    # -- the handshake, in pieces

    def start(self):
        self.send(PROTOCOL_HEADER)
        self.server = self.await_method(spec.Connection.Start)
        return self.server

    def start_ok(self, mechanism="PLAIN", response=None, capabilities=CAPABILITIES, properties=None, locale="en_US"):
        if response is None:
            response = f"\0{self.user}\0{self.password}"
        properties = dict(properties or {"product": "raw"})
        if capabilities is not None:
            properties["capabilities"] = capabilities
        self.method(0, spec.Connection.StartOk(client_properties=properties, mechanism=mechanism, response=response, locale=locale))

    def await_tune(self):
        self.tune = self.await_method(spec.Connection.Tune)
        return self.tune

    def tune_ok(self, channel_max=None, frame_max=None, heartbeat=0):
        if channel_max is not None:
            self.tune.channel_max = channel_max
        if frame_max is not None:
            self.tune.frame_max = frame_max
        self.method(0, spec.Connection.TuneOk(self.tune.channel_max, self.tune.frame_max, heartbeat))

    def open(self, vhost=None):
        self.method(0, spec.Connection.Open(virtual_host=vhost or self.vhost))

    def handshake(self, capabilities=CAPABILITIES, **tune):
        self.start()
        self.start_ok(capabilities=capabilities)
        self.await_tune()
        self.tune_ok(**tune)
        self.open()
        self.await_method(spec.Connection.OpenOk)
        return self

    def channel(self, number=1):
        self.method(number, spec.Channel.Open())
        self.await_method(spec.Channel.OpenOk)
        return self

    def call(self, channel, method):
        self.method(channel, method)
        return self.await_method(*method_replies(method))


def method_replies(method):
    """The classes that may answer a synchronous method."""
    by_name = {cls.NAME: cls for cls in spec.methods.values()}
    if isinstance(method, spec.Basic.Get):
        return spec.Basic.GetOk, spec.Basic.GetEmpty
    return (by_name[method.NAME + "Ok"],)


def closing_of(method, ids=False):
    if method is None:
        return CLOSED
    scope = "connection" if isinstance(method, spec.Connection.Close) else "channel"
    saw = {"scope": scope, "code": method.reply_code, "text": method.reply_text}
    if ids:
        saw["method"] = [method.class_id, method.method_id]
    return saw


def own_words(fate):
    """Without the explanation: how a wrong frame is described is each broker's own (RabbitMQ prints Erlang terms)."""
    if isinstance(fate, dict) and fate["code"] in (501, 502, 503, 505):
        fate["text"] = fate["text"].split(" - ")[0]
    return fate


def opened(uri, channels=(1,), **tune):
    """A connection past its handshake, with channels open."""
    raw = Raw(uri).handshake(**tune)
    for number in channels:
        raw.channel(number)
    return raw
