"""Raw AMQP 0-9-1 connections: just enough to hold thousands of them open, to declare queues and to ask for their depth.

A client library would do, but none is in Python's standard library, and its objects would take longer to make than the
brokers take to answer.
"""
import socket
import struct
import time

START_OK = (10, 11)
TUNE, TUNE_OK = (10, 30), (10, 31)
OPEN, OPEN_OK = (10, 40), (10, 41)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
CLOSES = {(10, 50): "connection", (20, 40): "channel"}
FRAME_END = b"\xce"


class Refused(Exception):
    """The broker closed the connection or the channel."""


def _short(text):
    data = text.encode()
    return bytes([len(data)]) + data


def _long(data):
    return struct.pack(">I", len(data)) + data


def method(channel, name, arguments=b""):
    """Bytes of a method frame."""
    payload = struct.pack(">HH", *name) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + FRAME_END


def queue_declare(channel, queue, passive=False):
    """Bytes of queue.declare for a durable queue."""
    bits = 0b11 if passive else 0b10
    return method(channel, QUEUE_DECLARE, b"\0\0" + _short(queue) + bytes([bits]) + _long(b""))


class Connection:
    """A connection of guest to vhost `/`, without heartbeats."""

    def __init__(self, port, timeout_s=60):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.received = bytearray()
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.send(b"AMQP\0\0\x09\x01")
            self.expect((10, 10))
            self.send(method(0, START_OK, _long(b"") + _short("PLAIN") + _long(b"\0guest\0guest") + _short("en_US")))
            channel_max, frame_max = struct.unpack_from(">HI", self.expect(TUNE))
            self.send(method(0, TUNE_OK, struct.pack(">HIH", channel_max, frame_max, 0)) + method(0, OPEN, _short("/") + b"\0\0"))
            self.expect(OPEN_OK)
        except BaseException:
            self.socket.close()
            raise

    def send(self, data):
        self.socket.sendall(data)

    def expect(self, name):
        """Waits for a method and gives its arguments."""
        while True:
            if len(self.received) >= 7:
                size = struct.unpack_from(">I", self.received, 3)[0]
                if len(self.received) >= size + 8:
                    kind, payload = self.received[0], bytes(self.received[7 : 7 + size])
                    del self.received[: size + 8]
                    if kind != 1:
                        continue
                    got = struct.unpack_from(">HH", payload)
                    if got == name:
                        return payload[4:]
                    if got in CLOSES:
                        text = payload[7 : 7 + payload[6]].decode(errors="replace")
                        raise Refused(f"{CLOSES[got]} closed: {text}")
                    continue
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("the broker closed the socket")
            self.received += data

    def open_channel(self, channel=1):
        self.send(method(channel, CHANNEL_OPEN, b"\0"))
        self.expect(CHANNEL_OPEN_OK)

    def depth(self, queue):
        """Messages that are ready in a queue."""
        self.send(queue_declare(1, queue, passive=True))
        arguments = self.expect(QUEUE_DECLARE_OK)
        return struct.unpack_from(">I", arguments, 1 + arguments[0])[0]

    def close(self):
        self.socket.close()


def wait_until_ready(port, alive, timeout_s=180):
    """Returns as soon as somebody can open a connection and a channel. `alive` says whether the broker still runs."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection = Connection(port)
            connection.open_channel()
            connection.close()
            return
        except (OSError, Refused) as error:
            if not alive() or time.monotonic() > deadline:
                raise RuntimeError(f"the broker did not become ready: {error}") from error
            time.sleep(0.002)


def depth(port, queue):
    connection = Connection(port)
    try:
        connection.open_channel()
        return connection.depth(queue)
    finally:
        connection.close()
