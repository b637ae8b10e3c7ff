"""Declaring, binding, purging and deleting queues."""

import pika
import pika.spec as spec
from harness import Consumer, await_until, case, channel_error, consumers, drain, ready
from raw import closing_of, opened


def missing(name):
    return channel_error(404, f"NOT_FOUND - no queue '{name}' in vhost '/'")


def locked(name):
    return channel_error(
        405,
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally declared on"
        " another connection or the exclusive property value does not match that of the original declaration.",
    )


@case("queue.declare")
def declare(t):
    ch = t.channel()
    name = t.queue(ch, durable=True)
    answer = ch.queue_declare(name, durable=True).method
    t.see("declare-ok", [answer.queue, answer.message_count, answer.consumer_count], want=[name, 0, 0])
    for body in "123":
        ch.basic_publish("", name, body)
    consumer = Consumer(ch, name).await_count(3)
    ch.basic_ack(consumer.tags()[0])
    ch.basic_publish("", name, "4")
    consumer.await_count(4)
    answer = ch.queue_declare(name, passive=True).method
    t.see("unacked are not counted", [answer.message_count, answer.consumer_count], want=[0, 1])
    ch.basic_nack(consumer.tags()[1], requeue=False)
    ch.basic_cancel(consumer.tag)
    ch.basic_recover(requeue=True)
    answer = ch.queue_declare(name, durable=True).method
    t.see("after recover", [answer.message_count, answer.consumer_count], want=[2, 0])


@case("queue.server-named")
def server_named(t):
    ch = t.channel()
    answer = ch.queue_declare("", exclusive=True).method
    t.see("name", answer.queue, want="amq.gen-<gen>")
    t.see("two differ", ch.queue_declare("", exclusive=True).method.queue != answer.queue, want=True)
    t.see("long enough", len(answer.queue) >= len("amq.gen-") + 22, want=True)
    t.refused("passive", lambda ch: ch.queue_declare(answer.queue, passive=True), want="ok")
    t.refused(
        "active redeclare of one's own",
        lambda ch: ch.queue_declare(answer.queue, exclusive=True),
        want=channel_error(403, f"ACCESS_REFUSED - queue name '{answer.queue}' contains reserved prefix 'amq.*'"),
    )
    t.refused("delete", lambda ch: ch.queue_delete(answer.queue), want="ok")
    t.refused("passive of no name, nothing declared", lambda ch: ch.queue_declare("", passive=True))
    t.refused(
        "a name of one's own with the prefix",
        lambda ch: ch.queue_declare("amq.conformance"),
        want=channel_error(403, "ACCESS_REFUSED - queue name 'amq.conformance' contains reserved prefix 'amq.*'"),
    )
    t.refused(
        "passive of an absent amq. name", lambda ch: ch.queue_declare("amq.conformance", passive=True), want=missing("amq.conformance")
    )
    t.refused("delete of an absent amq. name", lambda ch: ch.queue_delete("amq.conformance"))


@case("queue.last-declared")
def last_declared(t):
    text = channel_error(404, "NOT_FOUND - no previously declared queue")
    with opened(t.uri) as raw:
        for method in (
            spec.Basic.Get(queue=""), spec.Basic.Consume(queue=""), spec.Queue.Purge(queue=""), spec.Queue.Delete(queue=""),
            spec.Queue.Bind(queue="", exchange="amq.direct"), spec.Queue.Unbind(queue="", exchange="amq.direct"),
            spec.Queue.Declare(queue="", passive=True),
        ):  # fmt: skip
            raw.method(1, method)
            t.see(f"{method.NAME} without one", raw.fate(), **({"want": text} if not isinstance(method, spec.Queue.Declare) else {}))
            raw.channel(1)
        name = raw.call(1, spec.Queue.Declare(queue="", exclusive=True)).queue
        raw.call(1, spec.Queue.Bind(queue="", exchange="amq.direct", routing_key=""))
        raw.publish(1, "amq.direct", name, b"by name")
        got = raw.call(1, spec.Basic.Get(queue="", no_ack=True))
        t.see("bound under its name, got from it", got.NAME, want="Basic.GetOk")
        raw.channel(2)
        raw.call(2, spec.Queue.Declare(queue="", exclusive=True))
        raw.method(2, spec.Queue.Declare(queue="", passive=True))
        t.see("passive declare of no name", raw.fate())
        raw.call(1, spec.Queue.Delete(queue=name))
        name = raw.call(1, spec.Queue.Declare(queue=t.name(), exclusive=True)).queue
        raw.call(1, spec.Queue.Bind(queue=name, exchange="amq.direct", routing_key=""))
        raw.publish(1, "amq.direct", "", b"empty key")
        t.see("named and empty key stays empty", raw.call(1, spec.Basic.Get(queue="", no_ack=True)).NAME, want="Basic.GetOk")
        t.see("consume", raw.call(1, spec.Basic.Consume(queue="", consumer_tag="c")).NAME, want="Basic.ConsumeOk")
        t.see("purge", raw.call(1, spec.Queue.Purge(queue="")).NAME, want="Queue.PurgeOk")
        t.see("delete", raw.call(1, spec.Queue.Delete(queue="")).NAME, want="Queue.DeleteOk")
        raw.method(1, spec.Basic.Get(queue=""))
        t.see("get after its deletion", raw.fate())


@case("queue.equivalence")
def equivalence(t):
    ch = t.channel()
    durable = t.queue(ch, "durable", durable=True)
    transient = t.queue(ch, "transient")
    auto = t.queue(ch, "auto", auto_delete=True)

    def inequivalent(name, arg, received, current):
        text = f"PRECONDITION_FAILED - inequivalent arg '{arg}' for queue '{name}' in vhost '/': received '{received}' but current is '{current}'"
        return channel_error(406, text)

    t.refused("equal", lambda ch: ch.queue_declare(durable, durable=True), want="ok")
    t.refused("durable as transient", lambda ch: ch.queue_declare(durable), want=inequivalent(durable, "durable", "false", "true"))
    t.refused(
        "transient as durable",
        lambda ch: ch.queue_declare(transient, durable=True),
        want=inequivalent(transient, "durable", "true", "false"),
    )
    t.refused(
        "auto_delete added",
        lambda ch: ch.queue_declare(transient, auto_delete=True),
        want=inequivalent(transient, "auto_delete", "true", "false"),
    )
    t.refused("auto_delete left out", lambda ch: ch.queue_declare(auto), want=inequivalent(auto, "auto_delete", "false", "true"))
    t.refused("exclusive added", lambda ch: ch.queue_declare(transient, exclusive=True))
    t.refused("durable and auto_delete: the first is told", lambda ch: ch.queue_declare(durable, auto_delete=True))
    t.refused("unknown argument added", lambda ch: ch.queue_declare(transient, arguments={"x-nonsense": 1}), want="ok")
    t.refused("passive ignores everything", lambda ch: ch.queue_declare(durable, passive=True, auto_delete=True, exclusive=True), want="ok")
    own = t.name("own")
    ch.queue_declare(own, exclusive=True)
    t.refused("exclusive left out, same connection", lambda ch: ch.queue_declare(own))
    t.refused("durable and exclusive is possible", lambda ch: ch.queue_declare(t.name("both"), exclusive=True, durable=True), want="ok")


@case("queue.arguments")
def arguments(t):
    bad = {
        "x-message-ttl": ["a", -1, 2**40], "x-expires": ["a", 0, -1], "x-max-length": ["a", -1], "x-max-length-bytes": ["a", -1],
        "x-overflow": ["nonsense", 1], "x-max-priority": ["a", -1, 256], "x-dead-letter-exchange": [1], "x-dead-letter-routing-key": [1, "alone"],
        "x-single-active-consumer": ["true", 1], "x-queue-type": ["nonsense", 1], "x-queue-mode": ["nonsense"], "x-dead-letter-strategy": ["nonsense"],
    }  # fmt: skip
    for key, values in bad.items():
        for value in values:
            t.refused(f"{key}={value!r}", lambda ch: ch.queue_declare(t.name(), exclusive=True, arguments={key: value}))


@case("queue.accepted-arguments")
def accepted_arguments(t):
    good = {
        "x-message-ttl": [0, 60000], "x-expires": [60000], "x-max-length": [0, 10], "x-max-length-bytes": [0, 1000],
        "x-overflow": ["drop-head", "reject-publish", "reject-publish-dlx"], "x-max-priority": [0, 10, 255], "x-dead-letter-exchange": ["", "absent"],
        "x-single-active-consumer": [True, False], "x-queue-type": ["classic"], "x-queue-mode": ["lazy", "default"],
        "x-queue-version": [1, 2], "x-nonsense": ["kept"],
    }  # fmt: skip
    for key, values in good.items():
        for value in values:
            name = t.name(f"{key}-{value}")

            def declared(ch, name=name, key=key, value=value):
                ch.queue_declare(name, arguments={key: value})
                ch.queue_delete(name)

            t.refused(f"{key}={value!r}", declared, want="ok")


@case("queue.argument-equivalence")
def argument_equivalence(t):
    name = t.name()
    t.cleanup.append(lambda ch: ch.queue_delete(name))
    t.refused("declare", lambda ch: ch.queue_declare(name, arguments={"x-message-ttl": 60000}), want="ok")
    t.refused("the same", lambda ch: ch.queue_declare(name, arguments={"x-message-ttl": 60000}), want="ok")
    t.refused("another value", lambda ch: ch.queue_declare(name, arguments={"x-message-ttl": 60001}))
    t.refused("left out", lambda ch: ch.queue_declare(name))
    plain = t.queue(t.channel(), "plain")
    t.refused("added", lambda ch: ch.queue_declare(plain, arguments={"x-message-ttl": 60000}))


@case("queue.passive")
def passive(t):
    name = t.name()
    t.refused("absent", lambda ch: ch.queue_declare(name, passive=True), want=missing(name))
    ch = t.channel()
    t.queue(ch)
    t.refused("with another x-queue-type", lambda ch: ch.queue_declare(name, passive=True, arguments={"x-queue-type": "quorum"}), want="ok")


@case("queue.names")
def names(t):
    with opened(t.uri) as raw:  # pika waits for a declare-ok with the very name it sent
        answer = raw.call(1, spec.Queue.Declare(queue=t.name("cr\r\nlf"), exclusive=True))
        t.see("CR and LF are stripped", answer.queue, want=t.name("crlf"))
        with_them = t.name("cr\nlf")
        raw.publish(1, "", t.name("crlf"), b"m")
        for what, method in {
            "passive": spec.Queue.Declare(queue=with_them, passive=True),
            "get": spec.Basic.Get(queue=with_them),
            "bind": spec.Queue.Bind(queue=with_them, exchange="amq.direct", routing_key="k"),
            "bind to an exchange": spec.Queue.Bind(queue=t.name("crlf"), exchange="amq.\ndirect", routing_key="k"),
            "purge": spec.Queue.Purge(queue=with_them),
            "consume": spec.Basic.Consume(queue=with_them),
            "publish to an exchange": spec.Basic.Publish(exchange="amq.\ndirect", routing_key="k"),
            "delete": spec.Queue.Delete(queue=with_them),
        }.items():
            raw.method(1, method)
            if isinstance(method, spec.Basic.Publish):
                raw.header(1, 0)
                raw.method(1, spec.Basic.Qos())
            answer = raw.next_method()
            while isinstance(answer, spec.Basic.Deliver):
                answer = raw.next_method()
            if isinstance(answer, spec.Channel.Close):
                raw.method(1, spec.Channel.CloseOk())
                raw.channel(1)
                t.see(f"{what} with them", closing_of(answer))
            else:
                t.see(f"{what} with them", answer.NAME)
    ch = t.channel()
    long = t.name("x" * (255 - len(t.name(""))))
    t.see("255 bytes", ch.queue_declare(long, exclusive=True).method.queue == long, want=True)
    t.see("unicode", ch.queue_declare(t.name("größe-漢"), exclusive=True).method.queue, want=t.name("größe-漢"))
    t.refused("its error text", lambda ch: ch.queue_declare(t.name("größer-漢"), passive=True), want=missing(t.name("größer-漢")))
    t.refused("a quote in it", lambda ch: ch.queue_declare(t.name("it's"), passive=True), want=missing(t.name("it's")))
    t.refused("a long error text is cut", lambda ch: ch.queue_declare(long[:-1], passive=True))


@case("queue.purge")
def purge(t):
    ch = t.channel()
    name = t.queue(ch)
    for body in "123":
        ch.basic_publish("", name, body)
    ch.basic_get(name)
    t.see("purge-ok counts the ready", ch.queue_purge(name).method.message_count, want=2)
    t.see("ready", ready(ch, name), want=0)
    ch.basic_recover(requeue=True)
    t.see("the unacked one is left", drain(ch, name), want=["1"])
    t.refused("absent", lambda ch: ch.queue_purge(t.name("none")), want=missing(t.name("none")))


@case("queue.delete")
def delete(t):
    ch = t.channel()
    name = t.queue(ch)
    consumer = Consumer(ch, name, auto_ack=True)
    in_use = channel_error(406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use")
    t.refused("if-unused with a consumer", lambda ch: ch.queue_delete(name, if_unused=True), want=in_use)
    ch.basic_cancel(consumer.tag)
    ch.basic_publish("", name, "m")
    not_empty = channel_error(406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty")
    t.refused("if-empty with a message", lambda ch: ch.queue_delete(name, if_empty=True), want=not_empty)
    t.refused("both flags, with a message", lambda ch: ch.queue_delete(name, if_empty=True, if_unused=True), want=not_empty)
    ch.basic_get(name)
    t.refused("if-empty with an unacked one", lambda ch: ch.queue_delete(name, if_empty=True))
    ch.queue_declare(name)
    for body in "123":
        ch.basic_publish("", name, body)
    t.see("delete-ok counts", ch.queue_delete(name).method.message_count)
    t.see("absent", ch.queue_delete(name).method.message_count, want=0)
    t.see("absent, if-unused and if-empty", ch.queue_delete(name, if_unused=True, if_empty=True).method.message_count, want=0)
    ch.queue_declare(name)
    t.see("declared again it is empty", ready(ch, name), want=0)


@case("queue.auto-delete")
def auto_delete(t):
    ch = t.channel()

    def exists(name):
        return t.outcome(lambda ch: ch.queue_declare(name, passive=True)) == "ok"

    name = t.name()
    ch.queue_declare(name, auto_delete=True)
    t.see("not while never consumed", exists(name), want=True)
    ch.basic_get(name)
    t.see("a get is no consumer", exists(name), want=True)
    first, second = Consumer(ch, name), Consumer(ch, name)
    ch.basic_cancel(first.tag)
    t.see("not while one is left", exists(name), want=True)
    ch.basic_publish("", name, "m")
    second.await_count(1)
    ch.basic_cancel(second.tag)
    t.see("gone after the last cancel", exists(name), want=False)
    other = t.connect()
    och = other.channel()
    och.queue_declare(name, auto_delete=True)
    Consumer(och, name)
    och.close()
    await_until(ch, lambda: not exists(name))
    t.see("gone with the channel of its consumer", exists(name), want=False)
    och = other.channel()
    och.queue_declare(name, auto_delete=True)
    Consumer(och, name)
    other.close()
    await_until(ch, lambda: not exists(name))
    t.see("gone with the connection", exists(name), want=False)


@case("queue.exclusive")
def exclusive(t):
    owner = t.connect()
    own = owner.channel()
    name = t.name()
    own.queue_declare(name, exclusive=True)
    own.queue_bind(name, "amq.direct", t.name("k"))
    actions = {
        "declare exclusive": lambda ch: ch.queue_declare(name, exclusive=True),
        "declare": lambda ch: ch.queue_declare(name),
        "passive": lambda ch: ch.queue_declare(name, passive=True),
        "consume": lambda ch: ch.basic_consume(name, lambda *_: None),
        "get": lambda ch: ch.basic_get(name),
        "purge": lambda ch: ch.queue_purge(name),
        "delete": lambda ch: ch.queue_delete(name),
        "bind": lambda ch: ch.queue_bind(name, "amq.direct", t.name("k2")),
        "bind again": lambda ch: ch.queue_bind(name, "amq.direct", t.name("k")),
        "unbind": lambda ch: ch.queue_unbind(name, "amq.direct", t.name("k")),
    }
    for what, action in actions.items():
        t.refused(what, action, want=locked(name))
    t.refused("unbind of an absent binding", lambda ch: ch.queue_unbind(name, "amq.direct", "none"))
    nowhere = t.name("nowhere")
    t.refused(
        "bind to an absent exchange",
        lambda ch: ch.queue_bind(name, nowhere, "k"),
        want=channel_error(404, f"NOT_FOUND - no exchange '{nowhere}' in vhost '/'"),
    )
    t.refused(
        "bind to the default exchange",
        lambda ch: ch.queue_bind(name, "", "k"),
        want=channel_error(403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
    )
    t.refused("publish is no access", lambda ch: ch.basic_publish("", name, "m"), want="ok")
    second = owner.channel()
    t.see("another channel of its connection", drain(second, name), want=["m"])
    second.close()
    t.refused(
        "never durable",
        lambda ch: (ch.queue_declare(name, exclusive=True, durable=True), ch.queue_declare(name, exclusive=True)),
        channel=owner.channel(),
        want="ok",
    )
    own.close()
    t.see("stays while the connection does", ready(owner.channel(), name), want=0)
    owner.close()
    await_until(t.channel(), lambda: t.outcome(actions["passive"]) == missing(name))
    t.refused("gone with its connection", actions["passive"], want=missing(name))


@case("queue.bind")
def bind(t):
    ch = t.channel()
    name = t.queue(ch)
    none, nowhere = t.name("none"), t.name("nowhere")
    no_exchange = channel_error(404, f"NOT_FOUND - no exchange '{nowhere}' in vhost '/'")
    t.refused("absent queue", lambda ch: ch.queue_bind(none, "amq.direct", "k"), want=missing(none))
    t.refused("absent exchange", lambda ch: ch.queue_bind(name, nowhere, "k"), want=no_exchange)
    t.refused("both absent", lambda ch: ch.queue_bind(none, nowhere, "k"))
    t.refused("unbind absent binding", lambda ch: ch.queue_unbind(name, "amq.direct", "k"), want="ok")
    t.refused("unbind absent queue", lambda ch: ch.queue_unbind(none, "amq.direct", "k"), want="ok")
    t.refused("unbind absent exchange", lambda ch: ch.queue_unbind(name, nowhere, "k"), want="ok")
    t.refused(
        "twice", lambda ch: (ch.queue_bind(name, "amq.direct", t.name("k")), ch.queue_bind(name, "amq.direct", t.name("k"))), want="ok"
    )
    ch.basic_publish("amq.direct", t.name("k"), "m")
    t.see("one copy", drain(ch, name), want=["m"])
    ch.queue_unbind(name, "amq.direct", t.name("k"))
    ch.basic_publish("amq.direct", t.name("k"), "m")
    t.see("one unbind is enough", drain(ch, name), want=[])


@case("queue.deleted-while-consumed")
def deleted_while_consumed(t):
    ch = t.channel()
    name = t.queue(ch)
    for body in "12":
        ch.basic_publish("", name, body)
    consumer = Consumer(ch, name).await_count(2)
    t.channel().queue_delete(name)
    await_until(ch, lambda: consumer.cancelled)
    t.see("basic.cancel comes", [tag == consumer.tag for tag in consumer.cancelled], want=[True])
    t.refused("acks of what is gone", lambda ch: ch.basic_ack(consumer.tags()[0]), want="ok", channel=ch)
    t.see("no consumer when declared again", consumers_of_new(t, name), want=0)


@case("queue.deleted-by-its-consumer")
def deleted_by_its_consumer(t):
    with opened(t.uri) as raw:
        for what, options in (("transient", {}), ("durable", {"durable": True})):
            raw.call(1, spec.Queue.Declare(queue=t.name(), **options))
            raw.call(1, spec.Basic.Consume(queue=t.name(), consumer_tag="c"))
            raw.method(1, spec.Queue.Delete(queue=t.name()))
            t.see(f"{what}: the answer, then the cancel", [raw.next_method().NAME for _ in range(2)], want=["Queue.DeleteOk", "Basic.Cancel"])


def consumers_of_new(t, name):
    ch = t.channel()
    ch.queue_declare(name)
    return consumers(ch, name)


@case("queue.policy")
def policy(t):
    """Both brokers have the policies `short` and `timed` for queues whose names contain `.queue.policy.`."""
    ch = t.channel()
    ch.confirm_delivery()
    for name in ("policed.dead", "policed.other"):
        ch.queue_declare(name)
        t.cleanup.append(lambda ch, name=name: ch.queue_delete(name))

    def filled(short, dead="policed.dead", **arguments):
        name = t.queue(ch, short, arguments=arguments)
        for body in "1234":
            ch.basic_publish("", name, body)
        # RabbitMQ confirms before the dead letters are where they go.
        await_until(ch, lambda: ready(ch, dead) == len("1234") - ready(ch, name))
        return name

    plain = filled("plain")
    t.see("by policy", [drain(ch, plain), drain(ch, "policed.dead")], want=[["3", "4"], ["1", "2"]])
    t.see("a smaller argument", drain(ch, filled("smaller", **{"x-max-length": 1})), want=["4"])
    drain(ch, "policed.dead")
    t.see("a larger argument", drain(ch, filled("larger", **{"x-max-length": 9})), want=["3", "4"])
    drain(ch, "policed.dead")
    argued = filled("argued", "policed.other", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "policed.other"})
    t.see(
        "arguments of dead letters go before it",
        [drain(ch, argued), drain(ch, "policed.dead"), drain(ch, "policed.other")],
        want=[["3", "4"], [], ["1", "2"]],
    )
    timed = filled("x.timed")
    await_until(ch, lambda: ready(ch, "policed.dead") == 4)
    t.see("all of one policy", [drain(ch, "policed.dead"), drain(ch, timed)], want=[["1", "2", "3", "4"], []])
    t.refused("a policy is no argument", lambda ch: ch.queue_declare(plain), want="ok")


@case("queue.priorities")
def priorities(t):
    ch = t.channel()
    ch.confirm_delivery()

    def publish(queue, *bodies):
        for body in bodies:
            ch.basic_publish("", queue, body, pika.BasicProperties(priority=int(body[0])))

    name = t.queue(ch, "q", arguments={"x-max-priority": 9})
    publish(name, "1a", "5a", "1b", "9a")
    reader = t.channel()
    first = reader.basic_get(name)
    t.see("the count is of all", [first[2].decode(), first[0].message_count], want=["9a", 3])
    publish(name, "9b")
    reader.basic_nack(first[0].delivery_tag)
    t.see("what comes back is the oldest of its like", drain(ch, name), want=["9a", "9b", "5a", "1a", "1b"])
    publish(name, "1", "2")
    t.see("purged together", ch.queue_purge(name).method.message_count, want=2)
    publish(name, "1", "2", "2")
    t.see("deleted together", ch.queue_delete(name).method.message_count, want=3)

    dead = t.queue(ch, "dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    short = t.queue(ch, "short", arguments={"x-max-priority": 9, "x-max-length": 2, **to_dead})
    publish(short, "5", "1", "9")
    await_until(ch, lambda: ready(ch, dead) == 1)
    t.see("of too many the next goes, which is the highest", [drain(ch, short), drain(ch, dead)], want=[["5", "1"], ["9"]])
    t.refused("another highest one", lambda ch: ch.queue_declare(short, arguments={"x-max-priority": 8, "x-max-length": 2, **to_dead}))


@case("queue.refusals")
def refusals(t):
    ch = t.channel()
    ch.confirm_delivery()
    dead = t.queue(ch, "dead")
    arguments = {
        "x-max-length-bytes": 10, "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
    }  # fmt: skip
    name = t.queue(ch, "q", arguments=arguments)

    def outcome(body):
        try:
            ch.basic_publish("", name, body)
        except pika.exceptions.NackError:
            return "nack"
        return "ack"

    t.see("up to ten bytes are taken", [outcome(body) for body in ("12345", "1234", "12", "1")], want=["ack", "ack", "nack", "ack"])
    await_until(ch, lambda: ready(ch, dead) == 1)
    method, properties, body = ch.basic_get(dead, auto_ack=True)
    death = properties.headers["x-death"][0]
    t.see("what is refused is a dead letter", [body.decode(), death["reason"], death["count"]], want=["12", "maxlen", 1])
    last = [properties.headers.get(f"x-last-death-{what}") for what in ("exchange", "queue", "reason")]
    t.see("and says where it died last", last, want=["", name, "maxlen"])
    t.see("the others are there", drain(ch, name), want=["12345", "1234", "1"])

    full = t.queue(ch, "full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})

    def commit(ch):
        ch.tx_select()
        ch.basic_publish("", full, "the one")
        ch.tx_commit()
        ch.basic_publish("", full, "one too many")
        ch.tx_commit()

    t.refused("a commit of what is refused", commit, want=channel_error(406, "PRECONDITION_FAILED - partial tx completion"))
    t.see("the one is there", drain(ch, full), want=["the one"])
