"""Direct reply-to: amq.rabbitmq.reply-to."""

import pika
import pika.spec as spec
from harness import Consumer, case, channel_error, connection_error, quiet
from raw import opened

PSEUDO = "amq.rabbitmq.reply-to"


def request(t, requester, queue, responder):
    """Sends a request; returns the reply address as the responder sees it."""
    requester.basic_publish("", queue, "ping", pika.BasicProperties(reply_to=PSEUDO, correlation_id="1"))
    while True:
        method, properties, _ = responder.basic_get(queue, auto_ack=True)
        if method:
            return properties.reply_to


@case("reply-to.round-trip")
def round_trip(t):
    requester, responder = t.channel(), t.connect().channel()
    queue = t.queue(requester)
    consumer = Consumer(requester, PSEUDO, auto_ack=True)
    t.see("tag", consumer.tag.startswith("ctag") or consumer.tag)
    address = request(t, requester, queue, responder)
    t.see("rewritten", address, want=PSEUDO + ".<gen>")
    t.refused("passive declare of the address", lambda ch: ch.queue_declare(address, passive=True), want="ok")
    declared = responder.queue_declare(address, passive=True).method
    t.see("its counts", [declared.message_count, declared.consumer_count])
    responder.basic_publish("", address, "pong", pika.BasicProperties(correlation_id="1"))
    consumer.await_count(1)
    method, properties, body = consumer.got[0]
    t.see(
        "the reply",
        [body, properties.correlation_id, method.exchange, method.redelivered, method.delivery_tag, method.routing_key],
        want=["pong", "1", "", False, 1, address],
    )
    responder.basic_publish("", address, "pong 2")
    consumer.await_count(2)
    t.see("another to the same address", consumer.bodies(), want=["pong", "pong 2"])
    t.refused("declared with its bare name, passive", lambda ch: ch.queue_declare(PSEUDO, passive=True), channel=None)
    t.refused("declared with its bare name", lambda ch: ch.queue_declare(PSEUDO))
    t.refused("delete of the bare name", lambda ch: ch.queue_delete(PSEUDO))
    t.refused("delete of the address", lambda ch: ch.queue_delete(address))
    t.refused("get", lambda ch: ch.basic_get(PSEUDO))
    t.refused("get from the address", lambda ch: ch.basic_get(address))
    t.refused("bind", lambda ch: ch.queue_bind(PSEUDO, "amq.direct", "k"))
    requester.basic_cancel(consumer.tag)
    t.refused(
        "the address after a cancel",
        lambda ch: ch.queue_declare(address, passive=True),
        want=channel_error(404, f"NOT_FOUND - no queue '{address}' in vhost '/'"),
    )


@case("reply-to.errors")
def errors(t):
    def consume(ch, **options):
        ch.basic_consume(PSEUDO, lambda *_: None, **options)

    t.refused(
        "with acks",
        lambda ch: consume(ch, auto_ack=False),
        want=channel_error(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge"),
    )
    t.refused(
        "twice",
        lambda ch: (consume(ch, auto_ack=True), consume(ch, auto_ack=True)),
        want=channel_error(406, "PRECONDITION_FAILED - reply consumer already set"),
    )
    with opened(t.uri) as raw:  # pika refuses by itself
        own = raw.call(1, spec.Queue.Declare(exclusive=True)).queue
        raw.call(1, spec.Basic.Consume(queue=own, consumer_tag="c"))
        raw.method(1, spec.Basic.Consume(queue=PSEUDO, consumer_tag="c", no_ack=True))
        t.see("a tag in use", raw.fate(), want=connection_error(530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'"))
    t.refused(
        "after a cancel",
        lambda ch: (ch.basic_cancel(ch.basic_consume(PSEUDO, lambda *_: None, auto_ack=True)), consume(ch, auto_ack=True)),
        want="ok",
    )
    ch = t.channel()
    queue = t.queue(ch)
    t.refused(
        "a request without a consumer",
        lambda ch: ch.basic_publish("", queue, "m", pika.BasicProperties(reply_to=PSEUDO)),
        want=channel_error(406, "PRECONDITION_FAILED - fast reply consumer does not exist"),
    )
    t.refused("exclusive consumer", lambda ch: consume(ch, auto_ack=True, exclusive=True), want="ok")
    t.refused(
        "an ordinary reply_to is left alone",
        lambda ch: ch.basic_publish("", queue, "m", pika.BasicProperties(reply_to=PSEUDO + ".mine")),
        want="ok",
    )
    t.see("as it was", ch.basic_get(queue)[1].reply_to == PSEUDO + ".mine", want=True)


@case("reply-to.gone")
def gone(t):
    requester, responder = t.connect().channel(), t.channel()
    queue = t.queue(responder)
    Consumer(requester, PSEUDO, auto_ack=True)
    address = request(t, requester, queue, responder)
    tampered = address[:-4] + "AAAA"
    absent = channel_error(404, f"NOT_FOUND - no queue '{tampered}' in vhost '/'")
    t.refused("a tampered address does not exist", lambda ch: ch.queue_declare(tampered, passive=True), want=absent)
    t.refused("a nonsense address", lambda ch: ch.queue_declare(PSEUDO + ".nonsense", passive=True))
    t.refused("publish to a tampered address", lambda ch: ch.basic_publish("", tampered, "m"), want="ok")
    t.refused("mandatory to it", lambda ch: mandatory(ch, tampered))
    t.refused("mandatory to the living", lambda ch: mandatory(ch, address))
    requester.close()
    t.refused(
        "its channel closed",
        lambda ch: ch.queue_declare(address, passive=True),
        want=channel_error(404, f"NOT_FOUND - no queue '{address}' in vhost '/'"),
    )
    t.refused("publish to the dead", lambda ch: ch.basic_publish("", address, "m"), want="ok")
    t.refused("mandatory to the dead", lambda ch: mandatory(ch, address))


def mandatory(ch, address):
    ch.confirm_delivery()
    try:
        ch.basic_publish("", address, "m", mandatory=True)
    except pika.exceptions.UnroutableError as error:
        raise pika.exceptions.ChannelClosedByBroker(error.messages[0].method.reply_code, "returned") from None


@case("reply-to.only-its-own-channel")
def only_its_own_channel(t):
    requester, other, responder = t.channel(), t.channel(), t.channel()
    queue = t.queue(requester)
    one = Consumer(requester, PSEUDO, auto_ack=True)
    two = Consumer(other, PSEUDO, auto_ack=True)
    address = request(t, requester, queue, responder)
    responder.basic_publish("", address, "for one")
    one.await_count(1)
    quiet(requester)
    t.see("one got it", [one.bodies(), two.bodies()], want=[["for one"], []])
    assert connection_error
