"""Consumers: tags, exclusivity, cancels, fairness, prefetch; and basic.get."""

import pika
import pika.spec as spec
from harness import Consumer, await_until, case, channel_error, connection_error, consumers, drain, quiet, ready, ready_soon
from raw import opened


def fill(channel, queue, count, first=1):
    for number in range(first, first + count):
        channel.basic_publish("", queue, str(number))


@case("consume.tags")
def tags(t):
    with opened(t.uri, (1, 2)) as raw:
        queue = raw.call(1, spec.Queue.Declare(queue=t.name(), exclusive=True)).queue
        tag = raw.call(1, spec.Basic.Consume(queue=queue)).consumer_tag
        t.see("generated", tag, want="amq.ctag-<gen>")
        t.see("long enough", len(tag) >= len("amq.ctag-") + 22, want=True)
        t.see("given", raw.call(1, spec.Basic.Consume(queue=queue, consumer_tag="mine")).consumer_tag, want="mine")
        t.see("the same on another channel", raw.call(2, spec.Basic.Consume(queue=queue, consumer_tag="mine")).consumer_tag, want="mine")
        t.see("cancel unknown", raw.call(1, spec.Basic.Cancel(consumer_tag="none")).consumer_tag, want="none")
        t.see("cancel", raw.call(1, spec.Basic.Cancel(consumer_tag="mine")).consumer_tag, want="mine")
        t.see("again after its cancel", raw.call(1, spec.Basic.Consume(queue=queue, consumer_tag="mine")).consumer_tag, want="mine")
        raw.method(1, spec.Basic.Consume(queue=queue, consumer_tag="mine"))
        t.see(
            "duplicate",
            raw.fate(ids=True),
            want={**connection_error(530, "NOT_ALLOWED - attempt to reuse consumer tag 'mine'"), "method": [60, 20]},
        )


@case("consume.errors")
def errors(t):
    none = t.name("none")
    t.refused(
        "absent queue",
        lambda ch: ch.basic_consume(none, lambda *_: None),
        want=channel_error(404, f"NOT_FOUND - no queue '{none}' in vhost '/'"),
    )
    t.refused(
        "get from an absent queue", lambda ch: ch.basic_get(none), want=channel_error(404, f"NOT_FOUND - no queue '{none}' in vhost '/'")
    )
    ch = t.channel()
    queue = t.queue(ch)
    t.refused("x-priority not a number", lambda ch: ch.basic_consume(queue, lambda *_: None, arguments={"x-priority": "high"}))
    t.refused(
        "not a stream",
        lambda ch: ch.basic_consume(queue, lambda *_: None, arguments={"x-stream-offset": "first"}),
        want=channel_error(
            406,
            f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{queue}' in vhost '/' of queue type rabbit_classic_queue",
        ),
    )
    t.refused("unknown argument", lambda ch: ch.basic_consume(queue, lambda *_: None, arguments={"x-nonsense": "high"}), want="ok")


@case("consume.exclusive")
def exclusive(t):
    ch = t.channel()
    queue = t.queue(ch)
    in_use = channel_error(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use")
    first = Consumer(ch, queue, exclusive=True)
    t.refused("a second consumer", lambda ch: ch.basic_consume(queue, lambda *_: None), want=in_use)
    t.refused("a second exclusive one", lambda ch: ch.basic_consume(queue, lambda *_: None, exclusive=True), want=in_use)
    t.refused("get is allowed", lambda ch: ch.basic_get(queue), want="ok")
    ch.basic_cancel(first.tag)
    plain = Consumer(ch, queue)
    t.refused("exclusive beside a plain one", lambda ch: ch.basic_consume(queue, lambda *_: None, exclusive=True), want=in_use)
    ch.basic_cancel(plain.tag)
    t.refused("free again", lambda ch: ch.basic_consume(queue, lambda *_: None, exclusive=True), want="ok")


@case("consume.order-of-answers")
def order_of_answers(t):
    with opened(t.uri) as raw:
        queue = raw.call(1, spec.Queue.Declare(queue=t.name(), exclusive=True)).queue
        for body in (b"1", b"2"):
            raw.publish(1, "", queue, body)
        raw.method(1, spec.Basic.Consume(queue=queue, consumer_tag="c", no_ack=True))
        names = [raw.next_method() for _ in range(3)]
        t.see(
            "consume-ok before the first delivery",
            [method.NAME for method in names],
            want=["Basic.ConsumeOk", "Basic.Deliver", "Basic.Deliver"],
        )
        t.see(
            "a delivery",
            [names[1].consumer_tag, names[1].delivery_tag, names[1].redelivered, names[1].exchange, names[1].routing_key],
            want=["c", 1, False, "", queue],
        )
        t.see("tags count up", names[2].delivery_tag, want=2)


@case("consume.cancel")
def cancel(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 3)
    consumer = Consumer(ch, queue).await_count(3)
    ch.basic_cancel(consumer.tag)
    t.see("a cancel requeues nothing", ready(ch, queue), want=0)
    ch.basic_ack(consumer.tags()[0])
    t.see("consumers", consumers(ch, queue), want=0)
    ch.close()
    ch = t.channel()
    await_until(ch, lambda: ready(ch, queue) == 2)
    t.see("the channel's end does", drain(ch, queue), want=["2", "3"])


@case("consume.cancelled-by-the-broker")
def cancelled_by_the_broker(t):
    for what, capabilities in (("capable", {"consumer_cancel_notify": True}), ("not capable", {}), ("no capabilities", None)):
        with opened(t.uri, (1, 2), capabilities=capabilities) as raw:
            queue = raw.call(1, spec.Queue.Declare(queue=t.name(what), exclusive=True)).queue
            raw.call(1, spec.Basic.Consume(queue=queue, consumer_tag="c"))
            raw.method(2, spec.Queue.Delete(queue=queue))
            names = [raw.next_method()]
            if what == "capable":
                names.append(raw.next_method())
            t.see(
                what,
                sorted(method.NAME for method in names),
                want=["Basic.Cancel", "Queue.DeleteOk"] if what == "capable" else ["Queue.DeleteOk"],
            )
            for method in names:
                if isinstance(method, spec.Basic.Cancel):
                    t.see("the cancel", [method.consumer_tag, method.nowait], want=["c", True])
            t.see("a cancel afterwards is answered", raw.call(1, spec.Basic.Cancel(consumer_tag="c")).consumer_tag, want="c")
            raw.call(1, spec.Queue.Declare(queue=t.name(what), exclusive=True))
            t.see("the tag is free", raw.call(1, spec.Basic.Consume(queue=queue, consumer_tag="c")).consumer_tag, want="c")


@case("consume.no-ack")
def no_ack(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 5)
    consumer = Consumer(ch, queue, auto_ack=True).await_count(5)
    t.see("all", [consumer.bodies(), consumer.tags()], want=[["1", "2", "3", "4", "5"], [1, 2, 3, 4, 5]])
    t.refused(
        "an ack of one is an error",
        lambda ch: ch.basic_ack(1),
        want=channel_error(406, "PRECONDITION_FAILED - unknown delivery tag 1"),
        channel=ch,
    )
    t.see("nothing comes back", ready(t.channel(), queue), want=0)


@case("consume.round-robin")
def round_robin(t):
    ch = t.channel()
    queue = t.queue(ch)
    ch.basic_qos(prefetch_count=100)
    three = [Consumer(ch, queue) for _ in range(3)]
    fill(ch, queue, 90)
    await_until(ch, lambda: sum(len(consumer.got) for consumer in three) == 90)
    t.see("in turn", [len(consumer.got) for consumer in three], want=[30, 30, 30])
    t.see("first of each", [consumer.bodies()[0] for consumer in three], want=["1", "2", "3"])


@case("consume.one-more-when-all-had-their-turn")
def one_more(t):
    ch = t.channel()
    queue = t.queue(ch)
    first = Consumer(ch, queue)
    fill(ch, queue, 1)
    first.await_count(1)
    second = Consumer(ch, queue)
    for number in (2, 3, 4):
        fill(ch, queue, 1, number)
        await_until(ch, lambda number=number: len(first.got) + len(second.got) == number)
    t.see("the first one's turn stays its own", [first.bodies(), second.bodies()], want=[["1", "2", "4"], ["3"]])


@case("consume.fair-between-connections")
def fair_between_connections(t):
    ch = t.channel()
    queue = t.queue(ch)
    others = [t.connect().channel() for _ in range(2)]
    two = [Consumer(other, queue) for other in others]
    fill(ch, queue, 40)
    for consumer in two:
        consumer.await_count(20)
    t.see("half each", [len(consumer.got) for consumer in two], want=[20, 20])


@case("consume.busy-consumers-are-skipped")
def busy_consumers(t):
    ch = t.channel()
    queue = t.queue(ch)
    ch.basic_qos(prefetch_count=1)
    slow = Consumer(ch, queue)
    ch.basic_qos(prefetch_count=0)
    fast = Consumer(ch, queue)
    fill(ch, queue, 10)
    await_until(ch, lambda: len(slow.got) + len(fast.got) == 10)
    t.see("one keeps its one, the other takes the rest", [len(slow.got), len(fast.got)], want=[1, 9])


@case("consume.no-local")
def no_local(t):
    with opened(t.uri) as raw:
        queue = raw.call(1, spec.Queue.Declare(queue=t.name(), exclusive=True)).queue
        raw.call(1, spec.Basic.Consume(queue=queue, no_local=True, no_ack=True))
        raw.publish(1, "", queue, b"m")
        t.see("no-local is ignored", raw.next_method().NAME, want="Basic.Deliver")


@case("consume.several-on-one-channel")
def several_on_one_channel(t):
    ch = t.channel()
    a, b = t.queue(ch, "a"), t.queue(ch, "b")
    one, two = Consumer(ch, a), Consumer(ch, b)
    for _ in range(3):
        fill(ch, a, 1)
        fill(ch, b, 1)
    one.await_count(3)
    two.await_count(3)
    t.see("tags are the channel's", sorted(one.tags() + two.tags()), want=[1, 2, 3, 4, 5, 6])
    ch.basic_ack(0, multiple=True)
    t.see("acked together", [ready(ch, a), ready(ch, b)], want=[0, 0])


@case("get.basic")
def get(t):
    ch = t.channel()
    queue = t.queue(ch)
    t.see("empty", ch.basic_get(queue), want=[None, None, None])
    fill(ch, queue, 3)
    seen = []
    for _ in range(3):
        method, _, body = ch.basic_get(queue)
        seen.append([method.delivery_tag, method.redelivered, method.exchange, method.routing_key, method.message_count, body])
    t.see("get-ok", seen, want=[[1, False, "", queue, 2, "1"], [2, False, "", queue, 1, "2"], [3, False, "", queue, 0, "3"]])
    ch.basic_nack(2, requeue=True)
    method, _, body = ch.basic_get(queue)
    t.see("redelivered", [method.delivery_tag, method.redelivered, body], want=[4, True, "2"])
    ch.basic_qos(prefetch_count=1, global_qos=True)
    fill(ch, queue, 2)
    t.see("prefetch does not limit it", [ch.basic_get(queue)[2], ch.basic_get(queue)[2]], want=["1", "2"])
    method, _, _ = ch.basic_get(queue, auto_ack=True)
    t.see("empty again", method, want=None)
    fill(ch, queue, 1)
    method, _, _ = ch.basic_get(queue, auto_ack=True)
    t.see("no-ack tags count too", method.delivery_tag, want=7)


@case("get.empty-with-unacked")
def get_empty_with_unacked(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 1)
    ch.basic_get(queue)
    t.see("unacked is not there", ch.basic_get(queue)[0], want=None)


@case("qos.size")
def qos_size(t):
    t.refused(
        "prefetch_size 1", lambda ch: ch.basic_qos(prefetch_size=1), want=connection_error(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)")
    )


@case("qos.per-consumer")
def qos_per_consumer(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 20)
    ch.basic_qos(prefetch_count=3)
    one = Consumer(ch, queue).await_count(3)
    ch.basic_qos(prefetch_count=5)
    two = Consumer(ch, queue).await_count(5)
    quiet(ch)
    t.see("each has its own", [len(one.got), len(two.got)], want=[3, 5])
    ch.basic_ack(one.tags()[0])
    one.await_count(4)
    quiet(ch)
    t.see("an ack frees one", [len(one.got), len(two.got)], want=[4, 5])
    ch.basic_ack(two.tags()[2])
    two.await_count(6)
    ch.basic_nack(two.tags()[1], requeue=False)
    two.await_count(7)
    quiet(ch)
    t.see("so does a nack", [len(one.got), len(two.got)], want=[4, 7])
    ch.basic_cancel(one.tag)
    ch.basic_cancel(two.tag)
    ch.basic_ack(0, multiple=True)
    t.see("left", ready_soon(ch, queue, 20 - 11), want=20 - 11)
    ch.basic_qos(prefetch_count=0)
    rest = Consumer(ch, queue).await_count(9)
    t.see("0 is unlimited", len(rest.got), want=9)


@case("qos.no-ack-is-exempt")
def qos_no_ack(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 10)
    ch.basic_qos(prefetch_count=1)
    t.see("all come", len(Consumer(ch, queue, auto_ack=True).await_count(10).got), want=10)


@case("qos.global")
def qos_global(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 20)
    ch.basic_qos(prefetch_count=4, global_qos=True)
    one, two = Consumer(ch, queue), Consumer(ch, queue)

    def got():
        return len(one.got) + len(two.got)

    await_until(ch, lambda: got() == 4)
    quiet(ch)
    t.see("shared by the channel", got(), want=4)
    ch.basic_qos(prefetch_count=6, global_qos=True)
    await_until(ch, lambda: got() == 6)
    quiet(ch)
    t.see("raised at once", got(), want=6)
    ch.basic_qos(prefetch_count=2, global_qos=True)
    ch.basic_ack((one.got + two.got)[0][0].delivery_tag)
    quiet(ch)
    t.see("lowered: nothing until below it", got(), want=6)
    ch.basic_qos(prefetch_count=0, global_qos=True)
    await_until(ch, lambda: got() == 20)
    t.see("0 is unlimited", got(), want=20)


@case("qos.both")
def qos_both(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 20)
    ch.basic_qos(prefetch_count=3)
    ch.basic_qos(prefetch_count=5, global_qos=True)
    one = Consumer(ch, queue).await_count(3)
    two = Consumer(ch, queue).await_count(2)
    quiet(ch)
    t.see("both limits hold", [len(one.got), len(two.got)], want=[3, 2])
    ch.basic_ack(one.tags()[-1], multiple=False)
    await_until(ch, lambda: len(one.got) + len(two.got) == 6)
    quiet(ch)
    t.see("one slot freed, one filled", len(one.got) + len(two.got), want=6)


@case("qos.later-change")
def qos_later_change(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 20)
    ch.basic_qos(prefetch_count=2)
    one = Consumer(ch, queue).await_count(2)
    ch.basic_qos(prefetch_count=10)
    quiet(ch)
    t.see("an existing consumer keeps its own", len(one.got), want=2)
    ch.basic_ack(one.tags()[-1], multiple=True)
    one.await_count(4)
    quiet(ch)
    t.see("also after acks", len(one.got), want=4)


@case("qos.requeue-frees")
def qos_requeue_frees(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 3)
    ch.basic_qos(prefetch_count=1)
    one = Consumer(ch, queue).await_count(1)
    ch.basic_nack(one.tags()[0], requeue=True)
    one.await_count(2)
    t.see("the requeued one is first again", [one.bodies(), one.redelivered()], want=[["1", "1"], [False, True]])
    ch.basic_reject(one.tags()[1], requeue=False)
    one.await_count(3)
    t.see("then the next", one.bodies(), want=["1", "1", "2"])


@case("qos.prefetch-and-order")
def qos_prefetch_and_order(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 200)
    ch.basic_qos(prefetch_count=10)
    bodies = []

    def on_message(channel, method, _properties, body):
        bodies.append(int(body))
        channel.basic_ack(method.delivery_tag)

    ch.basic_consume(queue, on_message)
    await_until(ch, lambda: len(bodies) == 200)
    t.see("in order", bodies == list(range(1, 201)), want=True)


@case("consume.two-exclusive-queues")
def two_exclusive_queues(t):
    one, two = t.connect(), t.connect()
    name = t.name()
    ch1, ch2 = one.channel(), two.channel()
    a = ch1.queue_declare("", exclusive=True).method.queue
    b = ch2.queue_declare("", exclusive=True).method.queue
    for channel, queue in ((ch1, a), (ch2, b)):
        channel.queue_bind(queue, "amq.topic", name + ".#")
    consumer1, consumer2 = Consumer(ch1, a, auto_ack=True), Consumer(ch2, b, auto_ack=True)
    t.channel().basic_publish("amq.topic", name + ".x", "m", pika.BasicProperties(content_type="text/plain"))
    consumer1.await_count(1)
    consumer2.await_count(1)
    t.see("a message to both", [consumer1.bodies(), consumer2.bodies()], want=[["m"], ["m"]])
