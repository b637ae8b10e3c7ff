"""The main path once more with kombu (what Celery uses): `kombu_cases.py <amqp-uri> [case-pattern]`."""

import fnmatch
import json
import socket
import sys
import time
import traceback

from amqp import exceptions
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.pools import producers

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
        return f"kombu.{self.name_of_case}.{short}"

    def see(self, what, saw, **want):
        self.lines.append(
            {"case": self.name_of_case, "step": len(self.lines) + 1, "what": what, "saw": json.loads(json.dumps(saw, default=repr)), **want}
        )

    def connect(self, **options):
        return Connection(self.uri, **options)


def drain(connection, until, timeout=5):
    while not until():
        connection.drain_events(timeout=timeout)


@case("main.task-queue")
def task_queue(t):
    exchange = Exchange(t.name("x"), "direct", durable=True)
    queue = Queue(t.name(), exchange, routing_key="tasks", durable=True)
    with t.connect(transport_options={"confirm_publish": True}) as connection:
        producer = Producer(connection, exchange=exchange, routing_key="tasks", serializer="json")
        for number in range(50):
            producer.publish(
                {"task": number, "text": "größe"}, declare=[queue], delivery_mode=2, headers={"n": number}, correlation_id=str(number)
            )
        got = []

        def on_task(body, message):
            got.append(
                [
                    body["task"],
                    body["text"],
                    message.headers["n"],
                    message.properties["correlation_id"],
                    message.delivery_info["redelivered"],
                ]
            )
            message.ack()

        with Consumer(connection, [queue], callbacks=[on_task], prefetch_count=4):
            drain(connection, lambda: len(got) == 50)
        t.see("tasks in order", got == [[number, "größe", number, str(number), False] for number in range(50)], want=True)
        bound = queue(connection.channel())
        t.see("nothing left", bound.queue_declare(passive=True).message_count, want=0)
        bound.delete()
        exchange(connection.channel()).delete()


@case("main.fanout")
def fanout(t):
    exchange = Exchange(t.name("x"), "fanout", durable=False, auto_delete=True)
    with t.connect() as connection:
        channel = connection.channel()
        queues = [Queue("", exchange, exclusive=True)(channel) for _ in range(3)]
        for queue in queues:
            queue.declare()
        Producer(channel, exchange=exchange).publish("news")
        bodies = []
        for queue in queues:
            message = queue.get()
            message.ack()
            bodies.append(message.payload)
        t.see("each got it", bodies, want=["news", "news", "news"])


@case("main.topic-and-headers")
def topic_and_headers(t):
    with t.connect() as connection:
        channel = connection.channel()
        topic = Exchange(t.name("topic"), "topic", durable=False)(channel)
        headers = Exchange(t.name("headers"), "headers", durable=False)(channel)
        by_topic = Queue(t.name("a"), topic, routing_key="a.*", exclusive=True)(channel)
        by_headers = Queue(t.name("b"), headers, binding_arguments={"x-match": "all", "k": "v"}, exclusive=True)(channel)
        by_topic.declare()
        by_headers.declare()
        producer = Producer(channel)
        for key in ("a.b", "b.a", "a", "a.b.c"):
            producer.publish(key, exchange=topic, routing_key=key)
        producer.publish("yes", exchange=headers, headers={"k": "v", "more": 1})
        producer.publish("no", exchange=headers, headers={"k": "w"})
        seen = {}
        for name, queue in (("topic", by_topic), ("headers", by_headers)):
            seen[name] = []
            while (message := queue.get(no_ack=True)) is not None:
                seen[name].append(message.payload)
        t.see("routed", seen, want={"topic": ["a.b"], "headers": ["yes"]})
        topic.delete()
        headers.delete()


@case("main.requeue-and-reject")
def requeue_and_reject(t):
    with t.connect() as connection:
        channel = connection.channel()
        queue = Queue(t.name(), exclusive=True)(channel)
        queue.declare()
        producer = Producer(channel)
        for number in range(3):
            producer.publish(number, routing_key=queue.name)
        messages = [queue.get() for _ in range(3)]
        messages[0].requeue()
        messages[1].reject()
        messages[2].requeue()
        seen = []
        for _ in range(2):
            message = queue.get()
            seen.append([message.payload, message.delivery_info["redelivered"]])
            message.ack()
        t.see("back", seen, want=[[0, True], [2, True]])


@case("main.compression-and-priority")
def compression(t):
    with t.connect() as connection:
        channel = connection.channel()
        queue = Queue(t.name(), exclusive=True)(channel)
        queue.declare()
        Producer(channel).publish({"x": "y" * 100000}, routing_key=queue.name, compression="zlib", priority=5, expiration=60)
        message = queue.get(no_ack=True)
        properties = message.properties
        t.see(
            "properties",
            [message.payload == {"x": "y" * 100000}, message.content_type, properties["priority"], properties["expiration"]],
            want=[True, "application/json", 5, "60000"],
        )


@case("main.errors")
def errors(t):
    def attempt(what, action):
        with t.connect() as connection:
            try:
                action(connection.channel())
                t.see(what, "ok")
            except exceptions.AMQPError as error:
                t.see(what, {"class": type(error).__name__, "code": error.reply_code, "text": error.reply_text})

    attempt("absent queue", lambda channel: Queue(t.name("none"))(channel).queue_declare(passive=True))
    attempt("absent exchange", lambda channel: Exchange(t.name("none"), passive=True)(channel).declare())
    attempt("unknown type", lambda channel: Exchange(t.name("bad"), "nonsense")(channel).declare())
    attempt("another type", lambda channel: Exchange("amq.direct", "fanout")(channel).declare())
    attempt("reserved", lambda channel: Queue("amq.mine")(channel).declare())
    attempt("unknown tag", lambda channel: (channel.basic_ack(7), channel.basic_qos(0, 1, False)))
    attempt("prefetch size", lambda channel: channel.basic_qos(1, 1, False))


@case("main.bad-login")
def bad_login(t):
    try:
        Connection(t.uri.replace("guest:guest", "guest:wrong")).connect()
        t.see("wrong password", "ok")
    except exceptions.AMQPError as error:
        t.see("wrong password", {"class": type(error).__name__, "code": error.reply_code}, want={"class": "AccessRefused", "code": 403})


@case("main.heartbeat")
def heartbeat(t):
    with t.connect(heartbeat=2) as connection:
        channel = connection.channel()
        end = time.monotonic() + 5  # a server that missed our heartbeats would have closed by then
        while time.monotonic() < end:
            try:
                connection.drain_events(timeout=0.4)
            except socket.timeout:
                pass
            connection.heartbeat_check()
        t.see("alive", channel.queue_declare("", exclusive=True).message_count, want=0)


@case("main.pool")
def pool(t):
    with t.connect() as connection:
        queue = Queue(t.name(), exclusive=False, auto_delete=True, durable=False)
        queue(connection.channel()).declare()
        for number in range(20):
            with producers[connection].acquire(block=True, timeout=5) as producer:
                producer.publish(number, routing_key=t.name(), retry=True)
        got = []
        with Consumer(connection, [queue], callbacks=[lambda body, message: got.append(body)], no_ack=True, accept=["json"]):
            drain(connection, lambda: len(got) == 20)
        t.see("all", sorted(got) == list(range(20)), want=True)
        producers.clear()


def main():
    uri = sys.argv[1].replace("amqp://", "pyamqp://")
    pattern = sys.argv[2] if len(sys.argv) > 2 else "*"
    for name, body in CASES:
        if not fnmatch.fnmatchcase(name, pattern):
            continue
        this = Case(name, uri)
        try:
            body(this)
        except Exception as error:
            this.see("an unexpected exception", {"exception": f"{type(error).__name__}: {error}"})
            traceback.print_exc()
        for line in this.lines:
            print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
