"""Cases, what they see, and the trace they print. The format is described in ../README.md."""

import concurrent.futures
import fnmatch
import json
import logging
import re
import sys
import threading
import time
import traceback

import pika
from pika import exceptions

logging.getLogger("pika").setLevel(logging.CRITICAL)

PROGRAM = "pika"
CASES = []

GENERATED = re.compile(r"amq\.(?:gen|ctag)-[A-Za-z0-9_=.+/-]+|(?<=amq\.rabbitmq\.reply-to\.)[A-Za-z0-9_=.+/-]+")


def case(name, alone=False):
    """Registers a function of one Case. `alone`: no other case may run meanwhile (it restarts the broker, or measures)."""

    def register(body):
        CASES.append((name, body, alone))
        return body

    return register


def plain(value):
    """A JSON value with what the server generates replaced."""
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return GENERATED.sub(lambda found: found[0][:9].split("-")[0] + "-<gen>" if found[0].startswith("amq.") else "<gen>", value)
    if isinstance(value, dict):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return repr(value)


def closing(scope, code, text):
    # RabbitMQ breaks long Erlang terms into lines.
    return {"scope": scope, "code": code, "text": re.sub(r",\n\s+", ",", text)}


def channel_error(code, text):
    return closing("channel", code, text)


def connection_error(code, text):
    return closing("connection", code, text)


def error_of(error):
    """The observation that a pika exception stands for."""
    if isinstance(error, exceptions.ChannelClosedByBroker):
        return channel_error(error.reply_code, error.reply_text)
    if isinstance(error, exceptions.ConnectionClosedByBroker):
        return connection_error(error.reply_code, error.reply_text)
    raise error


class Case:
    """What a case body works with: names, connections, observations."""

    def __init__(self, name, uri):
        self.name_of_case = name
        self.uri = uri
        self.lines = []
        self.connections = []
        self.default = None
        self.cleanup = []

    # -- observations

    def see(self, what, saw, **want):
        line = {"case": self.name_of_case, "step": len(self.lines) + 1, "what": what, "saw": plain(saw)}
        if "want" in want:
            line["want"] = plain(want["want"])
        self.lines.append(line)
        return saw

    def refused(self, what, action, want=None, channel=None):
        """Runs `action(channel)` on a fresh channel (or the given one) and sees how the broker closes it, or "ok"."""
        saw = self.outcome(action, channel)
        self.see(what, saw, **({} if want is None else {"want": want}))
        return saw

    def outcome(self, action, channel=None):
        try:
            channel = channel or self.channel()
            action(channel)
            if channel.is_open:
                channel.basic_qos(prefetch_count=0)  # a round trip: what went wrong before is known after it
                channel.close()
            return "ok"
        except exceptions.AMQPError as error:
            return error_of(error)

    # -- names

    def name(self, short="q"):
        return f"{PROGRAM}.{self.name_of_case}.{short}"

    def queue(self, channel, short="q", **options):
        """Declares a queue that ends with the case. Exclusive would hide it from the case's other connections."""
        options.setdefault("auto_delete", False)
        name = self.name(short)
        channel.queue_declare(name, **options)
        self.cleanup.append(lambda ch: ch.queue_delete(name))
        return name

    def exchange(self, channel, short, kind="direct", **options):
        name = self.name(short)
        channel.exchange_declare(name, kind, **options)
        self.cleanup.append(lambda ch: ch.exchange_delete(name))
        return name

    # -- connections

    def parameters(self, user=None, password=None, vhost=None, **options):
        parameters = pika.URLParameters(self.uri)
        parameters.heartbeat = 60
        parameters.socket_timeout = parameters.stack_timeout = 20
        parameters.blocked_connection_timeout = 30
        if user:
            parameters.credentials = pika.PlainCredentials(user, password, erase_on_connect=False)
        if vhost:
            parameters.virtual_host = vhost
        for name, value in options.items():
            setattr(parameters, name, value)
        return parameters

    def connect(self, **options):
        connection = pika.BlockingConnection(self.parameters(**options))
        self.connections.append(connection)
        return connection

    def connection(self):
        if self.default is None or not self.default.is_open:
            self.default = self.connect()
        return self.default

    def channel(self):
        return self.connection().channel()

    def end(self):
        if self.cleanup:
            try:
                for action in self.cleanup:
                    action(self.channel())
            except exceptions.AMQPError:
                pass
        for connection in self.connections:
            try:
                if connection.is_open:
                    connection.close()
            except exceptions.AMQPError:
                pass

    # -- the orchestrator's hooks

    def restart(self, how="restart"):
        with OUTPUT:
            print(json.dumps({how: True}), flush=True)
        if sys.stdin.readline().strip() != "restarted":
            raise RuntimeError("the orchestrator did not restart the broker")


# ------------------------------------------------------------------------------------------------------------- messages


def drain(channel, queue):
    """Bodies of all ready messages, in order, acked."""
    bodies = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body.decode())


def ready(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def ready_soon(channel, queue, count):
    """ready(), waiting a while for the count: RabbitMQ answers a declare before publishes that reached the queue earlier."""
    await_until(channel, lambda: ready(channel, queue) == count, timeout_s=2)
    return ready(channel, queue)


def consumers(channel, queue):
    return channel.queue_declare(queue, passive=True).method.consumer_count


def await_until(channel, condition, timeout_s=5):
    """Serves the connection until the condition holds. True when it did."""
    end = time.monotonic() + timeout_s
    while not condition():
        left = end - time.monotonic()
        if left <= 0:
            return False
        channel.connection.process_data_events(min(left, 0.05))
    return True


def quiet(channel, seconds=0.3):
    """Serves the connection for a while: for what must not arrive there is no event to wait for."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        channel.connection.process_data_events(left)


class Consumer:
    """Collects deliveries; acks nothing by itself."""

    def __init__(self, channel, queue, **options):
        self.channel = channel
        self.got = []
        self.cancelled = []
        channel.add_on_cancel_callback(lambda method: self.cancelled.append(method.method.consumer_tag))
        self.tag = channel.basic_consume(
            queue, lambda _ch, method, properties, body: self.got.append((method, properties, body)), **options
        )

    def await_count(self, count, timeout_s=5):
        await_until(self.channel, lambda: len(self.got) >= count, timeout_s)
        return self

    def bodies(self):
        return [body.decode() for _, _, body in self.got]

    def redelivered(self):
        return [method.redelivered for method, _, _ in self.got]

    def tags(self):
        return [method.delivery_tag for method, _, _ in self.got]


# ------------------------------------------------------------------------------------------------------------------ run

OUTPUT = threading.Lock()


def run_case(name, body, uri):
    this = Case(name, uri)
    try:
        body(this)
    except Exception as error:
        this.see("an unexpected exception", {"exception": f"{type(error).__name__}: {error}"})
        traceback.print_exc()
    finally:
        this.end()
    with OUTPUT:
        for line in this.lines:
            print(json.dumps(line, ensure_ascii=False))
        sys.stdout.flush()


def main(workers=8):
    uri = sys.argv[1]
    pattern = sys.argv[2] if len(sys.argv) > 2 else "*"
    chosen = [entry for entry in CASES if fnmatch.fnmatchcase(entry[0], pattern)]
    doubles = {name for name, _, _ in CASES if sum(1 for other, _, _ in CASES if other == name) > 1}
    if doubles:
        raise SystemExit(f"cases of the same name: {doubles}")
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for name, body, alone in chosen:
            if not alone:
                pool.submit(run_case, name, body, uri)
    for name, body, alone in chosen:
        if alone:
            run_case(name, body, uri)
