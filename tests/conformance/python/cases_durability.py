"""What survives a restart of the broker. These cases run alone: they ask the orchestrator to restart it."""

import time

import pika
from harness import Consumer, case, channel_error, drain
from raw import opened

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def reconnect(t):
    end = time.monotonic() + 20
    while True:
        try:
            return t.connect()
        except pika.exceptions.AMQPConnectionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)  # no event tells that it listens again


@case("durability.restart", alone=True)
def restart(t):
    ch = t.channel()
    durable, transient, auto = t.name("durable"), t.name("transient"), t.name("auto")
    exclusive, kept, lost = t.name("exclusive"), t.name("kept"), t.name("lost")
    source = t.name("source")
    unacked, settled, big = t.name("unacked"), t.name("settled"), t.name("big")
    ch.confirm_delivery()
    for name in (durable, unacked, settled, big):
        ch.queue_declare(name, durable=True)
    ch.queue_declare(transient)
    ch.queue_declare(auto, durable=True, auto_delete=True)
    ch.queue_declare(exclusive, durable=True, exclusive=True)
    ch.exchange_declare(kept, "topic", durable=True)
    ch.exchange_declare(lost, "topic")
    ch.exchange_declare(source, "headers", durable=True, arguments={"alternate-exchange": kept})
    ch.queue_bind(durable, kept, "kept.#")
    ch.queue_bind(durable, lost, "#")
    ch.queue_bind(transient, kept, "#")
    ch.exchange_bind(kept, source, "", {"x-match": "any", "a": 1})
    for number in range(50):
        ch.basic_publish(
            "", durable, f"persistent {number}", pika.BasicProperties(delivery_mode=2, headers={"n": number}, message_id=str(number))
        )
        ch.basic_publish("", durable, f"transient {number}")
    ch.basic_publish("", transient, "m", PERSISTENT)
    for number in range(5):
        ch.basic_publish("", unacked, str(number), PERSISTENT)
        ch.basic_publish("", settled, str(number), PERSISTENT)
    ch.basic_publish("", big, b"x" * 3_000_000, PERSISTENT)
    work = t.channel()
    Consumer(work, unacked).await_count(5)
    consumer = Consumer(work, settled).await_count(5)
    work.basic_ack(consumer.tags()[1])
    work.basic_reject(consumer.tags()[3], requeue=False)
    work.basic_qos(0)
    t.connection().close()
    t.restart()

    connection = reconnect(t)
    t.default = connection
    ch = t.channel()
    bodies, good = [], True
    while True:
        method, properties, body = ch.basic_get(durable, auto_ack=True)
        if method is None:
            break
        bodies.append(body.decode())
        good = (
            good
            and properties.headers == {"n": len(bodies) - 1}
            and properties.message_id == str(len(bodies) - 1)
            and properties.delivery_mode == 2
        )
    t.see(
        "persistent messages, in order, transient ones gone",
        [bodies == [f"persistent {n}" for n in range(50)], len(bodies)],
        want=[True, 50],
    )
    t.see("their properties", good, want=True)
    for name in (transient, auto, exclusive, lost, kept):
        if name in (lost, kept):
            t.refused(
                f"exchange {name}",
                lambda ch: ch.exchange_declare(name, passive=True),
                want="ok" if name == kept else channel_error(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"),
            )
        else:
            t.refused(f"queue {name}", lambda ch: ch.queue_declare(name, passive=True))
    t.refused(
        "equal redeclare of the exchange",
        lambda ch: ch.exchange_declare(source, "headers", durable=True, arguments={"alternate-exchange": kept}),
        want="ok",
    )
    t.refused("equal redeclare of the queue", lambda ch: ch.queue_declare(durable, durable=True), want="ok")
    ch.basic_publish(kept, "kept.x", "by topic")
    ch.basic_publish(source, "kept.y", "by headers", pika.BasicProperties(headers={"a": 1}))
    ch.basic_publish(source, "kept.z", "by the alternate")
    t.see("bindings", drain(ch, durable), want=["by topic", "by headers", "by the alternate"])
    got = [ch.basic_get(unacked) for _ in range(5)]
    t.see("the unacked are back", [body for _, _, body in got], want=["0", "1", "2", "3", "4"])
    t.see("and marked", [method.redelivered for method, _, _ in got])
    ch.basic_ack(0, multiple=True)
    t.see("the settled are not", drain(ch, settled), want=["0", "2", "4"])
    t.see("a large one", len(ch.basic_get(big, auto_ack=True)[2]), want=3_000_000)
    t.restart()

    t.default = reconnect(t)
    ch = t.channel()
    t.see("all was settled", [drain(ch, name) for name in (durable, unacked, settled, big)], want=[[], [], [], []])
    for name in (durable, unacked, settled, big, auto):
        ch.queue_delete(name)
    for name in (kept, source):
        ch.exchange_delete(name)


@case("durability.kill", alone=True)
def kill(t):
    ch = t.channel()
    queue, worked, committed = t.name("q"), t.name("worked"), t.name("committed")
    for name in (queue, worked, committed):
        ch.queue_declare(name, durable=True)
    # RabbitMQ writes declarations down some seconds after it confirms them, and loses them if it is killed before;
    # a clean stop writes them.
    t.connection().close()
    t.restart()
    t.default = reconnect(t)
    ch = t.channel()
    ch.confirm_delivery()
    for number in range(20):
        ch.basic_publish("", queue, str(number), PERSISTENT)
        ch.basic_publish("", worked, str(number), PERSISTENT)
    work = t.channel()
    work.tx_select()
    for number in range(5):
        work.basic_publish("", committed, str(number), PERSISTENT)
    work.tx_commit()
    got = [work.basic_get(worked)[0].delivery_tag for _ in range(10)]
    work.basic_ack(got[3])
    work.basic_ack(got[6])
    work.tx_commit()
    work.basic_publish("", committed, "never committed", PERSISTENT)
    t.connection().close()
    t.restart("kill")
    t.default = reconnect(t)
    ch = t.channel()
    t.see("confirmed messages are there after a kill", drain(ch, queue), want=[str(number) for number in range(20)])
    t.see("committed ones too", drain(ch, committed), want=[str(number) for number in range(5)])
    left = drain(ch, worked)
    # An ack may be lost in a crash, a message may not.
    t.see("of the others at most the acked are gone", sorted({str(n) for n in range(20)} - set(left) - {"3", "6"}), want=[])
    t.see("in order", left == sorted(left, key=int), want=True)
    for name in (queue, worked, committed):
        ch.queue_delete(name)


@case("durability.topology", alone=True)
def topology(t):
    ch = t.channel()
    queue, gone_queue = t.name("q"), t.name("gone-q")
    x, gone_x, auto_x = t.name("x"), t.name("gone-x"), t.name("auto-x")
    for name in (queue, gone_queue):
        ch.queue_declare(name, durable=True)
    for name in (x, gone_x):
        ch.exchange_declare(name, "direct", durable=True)
    ch.exchange_declare(auto_x, "direct", durable=True, auto_delete=True)
    for key in ("kept", "removed"):
        ch.queue_bind(queue, x, key)
    ch.queue_bind(gone_queue, x, "kept")
    ch.queue_bind(queue, auto_x, "only")
    ch.queue_bind(queue, gone_x, "kept")
    ch.queue_unbind(queue, x, "removed")
    ch.queue_delete(gone_queue)
    ch.exchange_delete(gone_x)
    # A queue declared again under its old name is a new one.
    ch.queue_declare(gone_queue, durable=True)
    ch.basic_publish("", gone_queue, "old", PERSISTENT)
    ch.queue_delete(gone_queue)
    ch.queue_declare(gone_queue, durable=True)
    ch.basic_publish("", gone_queue, "new", PERSISTENT)
    ch.basic_publish("", queue, "purged", PERSISTENT)
    ch.queue_purge(queue)
    ch.close()
    t.connection().close()
    t.restart()
    t.default = reconnect(t)
    ch = t.channel()
    for key in ("kept", "removed"):
        ch.basic_publish(x, key, key)
    t.see("bindings, and what was purged", drain(ch, queue), want=["kept"])
    method, _, body = ch.basic_get(gone_queue, auto_ack=True)
    t.see("the new queue of the old name, never delivered", [body, method.redelivered, drain(ch, gone_queue)], want=["new", False, []])
    t.refused(
        "a deleted exchange",
        lambda ch: ch.exchange_declare(gone_x, passive=True),
        want=channel_error(404, f"NOT_FOUND - no exchange '{gone_x}' in vhost '/'"),
    )
    t.refused("an auto-delete exchange with a binding", lambda ch: ch.exchange_declare(auto_x, passive=True), want="ok")
    ch.queue_unbind(queue, auto_x, "only")
    t.refused(
        "goes with its last binding",
        lambda ch: ch.exchange_declare(auto_x, passive=True),
        want=channel_error(404, f"NOT_FOUND - no exchange '{auto_x}' in vhost '/'"),
    )
    for name in (queue, gone_queue):
        ch.queue_delete(name)
    ch.exchange_delete(x)


@case("durability.clients-are-told", alone=True)
def clients_are_told(t):
    with opened(t.uri) as raw:
        t.restart()
        t.see("an open connection at an orderly stop", raw.fate())
