"""Acknowledgements, requeues, recover and transactions."""

import pika.spec as spec
from cases_consume import fill
from harness import Consumer, await_until, case, channel_error, connection_error, drain, ready, ready_soon
from raw import opened


def unknown(tag):
    return channel_error(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")


def get(channel, queue, count):
    return [channel.basic_get(queue)[0].delivery_tag for _ in range(count)]


@case("ack.unknown-tag")
def unknown_tag(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 20)

    def again(ch):
        (tag,) = get(ch, queue, 1)
        ch.basic_ack(tag)
        ch.basic_ack(tag)

    t.refused("never delivered", lambda ch: ch.basic_ack(5), want=unknown(5))
    t.refused("nack", lambda ch: ch.basic_nack(5), want=unknown(5))
    t.refused("reject", lambda ch: ch.basic_reject(5), want=unknown(5))
    t.refused("twice", again, want=unknown(1))
    t.refused("0 without multiple", lambda ch: ch.basic_ack(0), want=unknown(0))
    t.refused("multiple, above all", lambda ch: (get(ch, queue, 2), ch.basic_ack(9, multiple=True)), want=unknown(9))
    t.refused("0 with multiple, none outstanding", lambda ch: ch.basic_ack(0, multiple=True), want="ok")
    t.refused("nack 0 with multiple, none outstanding", lambda ch: ch.basic_nack(0, multiple=True), want="ok")
    t.see("nothing was acked but one", ready_soon(ch, queue, 19), want=19)

    def hole(ch):
        get(ch, queue, 2)
        ch.basic_ack(1)
        ch.basic_ack(1, multiple=True)

    t.refused("multiple of a tag that is settled", hole, want=unknown(1))

    def another_channel(ch):
        other = t.channel()
        get(other, queue, 1)
        ch.basic_ack(1)

    t.refused("a tag of another channel", another_channel, want=unknown(1))
    t.refused("a nack after an error requeues what it had", lambda ch: (get(ch, queue, 1), ch.basic_nack(8)), want=unknown(8))
    with opened(t.uri) as raw:
        raw.method(1, spec.Basic.Ack(delivery_tag=77))
        t.see("class and method", raw.fate(ids=True), want={**unknown(77), "method": [60, 80]})
        raw.channel(1)
        raw.method(1, spec.Basic.Nack(delivery_tag=77))
        t.see("of nack", raw.fate(ids=True), want={**unknown(77), "method": [60, 120]})
        raw.channel(1)
        raw.method(1, spec.Basic.Reject(delivery_tag=77))
        t.see("of reject", raw.fate(ids=True), want={**unknown(77), "method": [60, 90]})


@case("ack.multiple")
def multiple(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 10)
    get(ch, queue, 10)
    ch.basic_ack(3)
    ch.basic_ack(6, multiple=True)
    ch.basic_nack(8, multiple=True, requeue=True)
    t.see("7 and 8 are back", ready_soon(ch, queue, 2), want=2)
    ch.basic_nack(9, requeue=False)
    ch.basic_recover(requeue=True)
    t.see("and 10", drain(ch, queue), want=["7", "8", "10"])


@case("ack.requeue-order")
def requeue_order(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 6)
    get(ch, queue, 4)
    ch.basic_reject(3, requeue=True)
    ch.basic_reject(1, requeue=True)
    ch.basic_nack(4, requeue=True)
    ch.basic_nack(2, requeue=True)
    seen = []
    for _ in range(6):
        method, _, body = ch.basic_get(queue, auto_ack=True)
        seen.append([body, method.redelivered])
    t.see(
        "the old places, marked",
        seen,
        want=[["1", True], ["2", True], ["3", True], ["4", True], ["5", False], ["6", False]],
    )


@case("ack.requeue-of-the-middle")
def requeue_of_the_middle(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 5)
    get(ch, queue, 5)
    ch.basic_nack(4, requeue=True)
    ch.basic_nack(2, requeue=True)
    fill(ch, queue, 1, first=6)
    t.see("before what came later", drain(ch, queue), want=["2", "4", "6"])
    ch.basic_ack(0, multiple=True)


@case("ack.recover")
def recover(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 3)
    consumer = Consumer(ch, queue).await_count(3)
    ch.basic_ack(2)
    ch.basic_recover(requeue=True)
    consumer.await_count(5)
    t.see(
        "delivered again",
        [consumer.bodies(), consumer.redelivered(), consumer.tags()],
        want=[["1", "2", "3", "1", "3"], [False, False, False, True, True], [1, 2, 3, 4, 5]],
    )
    t.refused("the old tags are gone", lambda ch: ch.basic_ack(1), channel=ch, want=unknown(1))
    t.refused("requeue=false", lambda ch: ch.basic_recover(requeue=False), want=connection_error(540, "NOT_IMPLEMENTED - requeue=false"))
    with opened(t.uri) as raw:
        raw.method(1, spec.Basic.RecoverAsync(requeue=True))
        t.see("recover-async is not answered", raw.call(1, spec.Basic.Qos()).NAME, want="Basic.QosOk")
        raw.method(1, spec.Basic.RecoverAsync(requeue=False))
        t.see("recover-async requeue=false", raw.fate())


@case("ack.channel-close-requeues")
def channel_close_requeues(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 4)
    other = t.channel()
    get(other, queue, 3)
    other.basic_ack(2)
    other.close()
    await_until(ch, lambda: ready(ch, queue) == 3)
    seen = []
    for _ in range(3):
        method, _, body = ch.basic_get(queue, auto_ack=True)
        seen.append([body, method.redelivered])
    t.see("back in their places", seen, want=[["1", True], ["3", True], ["4", False]])


@case("ack.connection-close-requeues")
def connection_close_requeues(t):
    ch = t.channel()
    queue = t.queue(ch)
    for how in ("close", "cut"):
        fill(ch, queue, 3)
        if how == "close":
            other = t.connect()
            Consumer(other.channel(), queue).await_count(3)
            other.close()
        else:
            with opened(t.uri) as raw:
                raw.call(1, spec.Basic.Consume(queue=queue))
                for _ in range(3):
                    raw.await_method(spec.Basic.Deliver)
        await_until(ch, lambda: ready(ch, queue) == 3)
        seen = []
        for _ in range(3):
            method, _, body = ch.basic_get(queue, auto_ack=True)
            seen.append([body, method.redelivered])
        t.see(how, seen, want=[["1", True], ["2", True], ["3", True]])


@case("ack.flags-with-get-and-consume")
def flags(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 2)
    get(ch, queue, 1)
    ch.basic_nack(1, requeue=True)
    consumer = Consumer(ch, queue).await_count(2)
    t.see("only the one that was out is marked", [consumer.bodies(), consumer.redelivered()], want=[["1", "2"], [True, False]])


@case("tx.publish")
def tx_publish(t):
    ch = t.channel()
    queue = t.queue(ch)
    watcher = t.channel()
    ch.tx_select()
    fill(ch, queue, 3)
    t.see("held until the commit", ready(watcher, queue), want=0)
    t.see("also from itself", ready(ch, queue), want=0)
    ch.tx_commit()
    t.see("committed", ready_soon(watcher, queue, 3), want=3)
    fill(ch, queue, 2)
    ch.tx_rollback()
    ch.tx_commit()
    t.see("rolled back", ready_soon(watcher, queue, 3), want=3)
    fill(ch, queue, 2)
    ch.close()
    t.see("the channel's end rolls back", ready_soon(watcher, queue, 3), want=3)


@case("tx.acks")
def tx_acks(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 3)
    work = t.channel()
    work.tx_select()
    get(work, queue, 3)
    work.basic_ack(1)
    work.basic_nack(2, requeue=True)
    t.see("nothing before the commit", ready(ch, queue), want=0)
    work.tx_rollback()
    work.basic_ack(1)
    work.basic_nack(2, requeue=True)
    work.tx_commit()
    await_until(ch, lambda: ready(ch, queue) == 1)
    t.see("after rollback they can be repeated", ready_soon(ch, queue, 1), want=1)
    work.basic_ack(3)
    work.close()
    await_until(ch, lambda: ready(ch, queue) == 2)
    t.see("an uncommitted ack is none", drain(ch, queue), want=["2", "3"])


@case("tx.unknown-tag")
def tx_unknown_tag(t):
    ch = t.channel()
    queue = t.queue(ch)
    fill(ch, queue, 2)
    t.refused("at the ack", lambda ch: (ch.tx_select(), ch.basic_ack(9)), want=unknown(9))

    def twice(ch):
        ch.tx_select()
        get(ch, queue, 1)
        ch.basic_ack(1)
        ch.basic_ack(1)

    t.refused("twice in one transaction", twice, want=unknown(1))


@case("tx.errors")
def tx_errors(t):
    not_transactional = channel_error(406, "PRECONDITION_FAILED - channel is not transactional")
    t.refused("commit without select", lambda ch: ch.tx_commit(), want=not_transactional)
    t.refused("rollback without select", lambda ch: ch.tx_rollback(), want=not_transactional)
    t.refused("select twice", lambda ch: (ch.tx_select(), ch.tx_select(), ch.tx_commit()), want="ok")
    t.refused("empty commit and rollback", lambda ch: (ch.tx_select(), ch.tx_commit(), ch.tx_rollback()), want="ok")
    nowhere = t.name("nowhere")
    missing = channel_error(404, f"NOT_FOUND - no exchange '{nowhere}' in vhost '/'")
    t.refused("publish to an absent exchange", lambda ch: (ch.tx_select(), ch.basic_publish(nowhere, "k", "m")), want=missing)


@case("tx.mandatory")
def tx_mandatory(t):
    with opened(t.uri) as raw:
        raw.call(1, spec.Tx.Select())
        raw.publish(1, "", t.name("none"), b"m", mandatory=True)
        raw.method(1, spec.Basic.Qos())
        t.see("no return before the commit", raw.next_method().NAME, want="Basic.QosOk")
        raw.method(1, spec.Tx.Commit())
        t.see("then the return, then commit-ok", [raw.next_method().NAME, raw.next_method().NAME], want=["Basic.Return", "Tx.CommitOk"])


@case("tx.atomic-move")
def tx_atomic_move(t):
    ch = t.channel()
    source, target = t.queue(ch, "source", durable=True), t.queue(ch, "target", durable=True)
    fill(ch, source, 5)
    work = t.channel()
    work.tx_select()
    for _ in range(5):
        method, _, body = work.basic_get(source)
        work.basic_publish("", target, body)
        work.basic_ack(method.delivery_tag)
    work.tx_commit()
    work.close()
    t.see("moved", [drain(ch, source), drain(ch, target)], want=[[], ["1", "2", "3", "4", "5"]])
