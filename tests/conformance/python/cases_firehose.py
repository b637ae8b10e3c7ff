"""The firehose: the vhost `traced` of both brokers tells what it publishes and delivers to `amq.rabbitmq.trace`."""

import pika
from harness import await_until, case, channel_error

# What is the broker's own: its node, and the client's port.
OWN = ("node", "connection")


class Listener:
    """A queue with the traces of one case's exchanges and queues."""

    def __init__(self, t):
        self.channel = t.connect(vhost="traced").channel()
        self.queue = self.channel.queue_declare("", exclusive=True).method.queue

    def listen(self, *keys):
        for key in keys:
            self.channel.queue_bind(self.queue, "amq.rabbitmq.trace", key)

    def traces(self, count):
        """The next traces: key, headers, body."""
        found = []

        def one_more():
            method, properties, body = self.channel.basic_get(self.queue, auto_ack=True)
            if method:
                found.append((method, properties, body))
            return len(found) >= count

        await_until(self.channel, one_more, timeout_s=5)
        return found


def shown(trace):
    method, properties, body = trace
    headers = {name: "<own>" if name in OWN and value else value for name, value in properties.headers.items()}
    if "routed_queues" in headers:
        headers["routed_queues"] = sorted(headers["routed_queues"])
    return {"exchange": method.exchange, "key": method.routing_key, "headers": headers, "body": body.decode(), "mode": properties.delivery_mode}


@case("firehose.publish-and-deliver")
def publish_and_deliver(t):
    listener = Listener(t)
    ch = t.connect(vhost="traced").channel()
    exchange, queue, other = t.name("x"), t.name("q"), t.name("p")
    ch.exchange_declare(exchange, "fanout", auto_delete=True)
    for name in (queue, other):
        ch.queue_declare(name, exclusive=True)
        ch.queue_bind(name, exchange)
    listener.listen(f"publish.{exchange}", f"deliver.{queue}")
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"CC": ["more"], "BCC": ["secret"], "n": 1},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    ch.basic_publish(exchange, "key", "body", properties)
    [trace] = listener.traces(1)
    t.see("published", shown(trace))
    t.see("its keys", trace[1].headers["routing_keys"], want=["key", "more", "secret"])
    t.see("its queues", sorted(trace[1].headers["routed_queues"]), want=sorted([queue, other]))
    ch.basic_get(queue)
    [trace] = listener.traces(1)
    # RabbitMQ remembers the keys of BCC with the message; Forebay stores what it delivers.
    del trace[1].headers["routing_keys"]
    t.see("got", shown(trace))
    ch.basic_nack(0, multiple=True)
    ch.basic_consume(queue, lambda *_: None, auto_ack=True)
    [trace] = listener.traces(1)
    t.see("delivered again", [trace[0].routing_key, trace[1].headers["redelivered"]], want=[f"deliver.{queue}", 1])
    t.see("who", [trace[1].headers[name] for name in ("user", "vhost", "channel")], want=["guest", "traced", 1])


@case("firehose.plain")
def plain(t):
    listener = Listener(t)
    ch = t.connect(vhost="traced").channel()
    queue = t.name("q")
    ch.queue_declare(queue, exclusive=True)
    # Other cases publish to the default exchange too, so only deliveries tell whose they are.
    listener.listen(f"deliver.{queue}")
    ch.basic_publish("", queue, "body")
    ch.basic_get(queue, auto_ack=True)
    [trace] = listener.traces(1)
    t.see("a message without properties", shown(trace))


@case("firehose.unroutable")
def unroutable(t):
    listener = Listener(t)
    ch = t.connect(vhost="traced").channel()
    exchange = t.name("x")
    ch.exchange_declare(exchange, "fanout")
    listener.listen(f"publish.{exchange}")
    ch.basic_publish(exchange, "key", "lost", mandatory=True)
    [trace] = listener.traces(1)
    t.see("published to nobody", shown(trace))
    ch.exchange_delete(exchange)


@case("firehose.not-of-itself")
def not_of_itself(t):
    listener = Listener(t)
    ch = t.connect(vhost="traced").channel()
    queue = t.name("q")
    ch.queue_declare(queue, exclusive=True)
    listener.listen(f"deliver.{queue}", f"deliver.{listener.queue}", "publish.amq.rabbitmq.trace")
    ch.basic_publish("", queue, "body")
    ch.basic_get(queue, auto_ack=True)
    # The second look finds what a trace of the first would be.
    t.see("one delivery, one trace", [method.routing_key for method, _, _ in listener.traces(1)], want=[f"deliver.{queue}"])
    ch.basic_publish("", queue, "body")
    ch.basic_get(queue, auto_ack=True)
    t.see("and the next", [method.routing_key for method, _, _ in listener.traces(1)], want=[f"deliver.{queue}"])


@case("firehose.internal")
def internal(t):
    connection = t.connect(vhost="traced")
    text = "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost 'traced'"
    t.refused(
        "publish to the trace exchange",
        lambda ch: ch.basic_publish("amq.rabbitmq.trace", "k", "m"),
        channel_error(403, text),
        connection.channel(),
    )
    listener = Listener(t)
    ch = t.channel()  # of the vhost /
    queue = t.queue(ch)
    ch.queue_bind(queue, "amq.rabbitmq.trace", "#")
    ch.basic_publish("", queue, "body")
    listener.listen(f"deliver.{queue}")
    t.see("nothing where it is off", [method.routing_key for method, _, _ in iter_get(ch, queue)], want=[queue])


def iter_get(channel, queue):
    while True:
        found = channel.basic_get(queue, auto_ack=True)
        if found[0] is None:
            return
        yield found
