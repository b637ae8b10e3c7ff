"""A second user with limited permissions: configure ^limited.conf, write ^limited.(conf|write), read ^limited.(conf|read)."""

import pika
from harness import case, channel_error, drain


def refusal(access, kind, name, user="limited"):
    return channel_error(403, f"ACCESS_REFUSED - {access} access to {kind} '{name}' in vhost '/' refused for user '{user}'")


class As:
    """Runs actions as a user, each on a fresh channel."""

    def __init__(self, t, user):
        self.t, self.user = t, user
        self.connection = t.connect(user=user, password=f"{user}-pass")

    def refused(self, what, action, want):
        if not self.connection.is_open:
            self.connection = self.t.connect(user=self.user, password=f"{self.user}-pass")
        self.t.refused(what, action, want=want, channel=self.connection.channel())


@case("permissions.queues")
def queues(t):
    ch = t.channel()
    conf, write, read, none = ("limited.conf.q", "limited.write.q", "limited.read.q", "limited.none.q")
    for name in (write, read, none):
        ch.queue_declare(name)
        t.cleanup.append(lambda ch, name=name: ch.queue_delete(name))
    user = As(t, "limited")
    user.refused("declare allowed", lambda ch: ch.queue_declare(conf), "ok")
    user.refused("declare", lambda ch: ch.queue_declare(none), refusal("configure", "queue", none))
    user.refused("declare new", lambda ch: ch.queue_declare("limited.new"), refusal("configure", "queue", "limited.new"))
    user.refused("passive needs none", lambda ch: ch.queue_declare(none, passive=True), "ok")
    user.refused(
        "server-named",
        lambda ch: ch.queue_declare("", exclusive=True),
        channel_error(403, "ACCESS_REFUSED - configure access to queue 'amq.gen-<gen>' in vhost '/' refused for user 'limited'"),
    )
    user.refused("delete", lambda ch: ch.queue_delete(none), refusal("configure", "queue", none))
    user.refused("delete absent", lambda ch: ch.queue_delete("limited.absent"), refusal("configure", "queue", "limited.absent"))
    user.refused("purge", lambda ch: ch.queue_purge(write), refusal("read", "queue", write))
    user.refused("purge allowed", lambda ch: ch.queue_purge(read), "ok")
    user.refused("get", lambda ch: ch.basic_get(write), refusal("read", "queue", write))
    user.refused("get absent", lambda ch: ch.basic_get("limited.absent"), refusal("read", "queue", "limited.absent"))
    user.refused("get allowed", lambda ch: ch.basic_get(read), "ok")
    user.refused("consume", lambda ch: ch.basic_consume(write, lambda *_: None), refusal("read", "queue", write))
    user.refused("consume allowed", lambda ch: ch.basic_consume(read, lambda *_: None), "ok")
    user.refused("bind: write on the queue", lambda ch: ch.queue_bind(read, "amq.direct", "k"), refusal("write", "queue", read))
    user.refused(
        "bind: read on the exchange", lambda ch: ch.queue_bind(write, "amq.direct", "k"), refusal("read", "exchange", "amq.direct")
    )
    user.refused("unbind: write on the queue", lambda ch: ch.queue_unbind(read, "amq.direct", "k"), refusal("write", "queue", read))
    user.refused(
        "unbind: read on the exchange", lambda ch: ch.queue_unbind(write, "amq.direct", "k"), refusal("read", "exchange", "amq.direct")
    )
    user.refused("delete allowed", lambda ch: ch.queue_delete(conf), "ok")


@case("permissions.exchanges")
def exchanges(t):
    ch = t.channel()
    conf, write, read, none = ("limited.conf.x", "limited.write.x", "limited.read.x", "limited.none.x")
    for name in (write, read, none):
        ch.exchange_declare(name, "topic")
        t.cleanup.append(lambda ch, name=name: ch.exchange_delete(name))
    user = As(t, "limited")
    user.refused("declare allowed", lambda ch: ch.exchange_declare(conf, "topic"), "ok")
    user.refused("declare", lambda ch: ch.exchange_declare(none, "topic"), refusal("configure", "exchange", none))
    user.refused("passive needs none", lambda ch: ch.exchange_declare(none, passive=True), "ok")
    user.refused("delete", lambda ch: ch.exchange_delete(none), refusal("configure", "exchange", none))
    user.refused("publish", lambda ch: ch.basic_publish(read, "k", "m"), refusal("write", "exchange", read))
    user.refused("publish allowed", lambda ch: ch.basic_publish(write, "k", "m"), "ok")
    user.refused(
        "publish to an absent one", lambda ch: ch.basic_publish("limited.absent", "k", "m"), refusal("write", "exchange", "limited.absent")
    )
    user.refused("publish to the default exchange", lambda ch: ch.basic_publish("", "k", "m"), refusal("write", "exchange", "amq.default"))
    user.refused("bind: write on the destination", lambda ch: ch.exchange_bind(read, read, "k"), refusal("write", "exchange", read))
    user.refused("bind: read on the source", lambda ch: ch.exchange_bind(write, write, "k"), refusal("read", "exchange", write))
    user.refused("bind allowed", lambda ch: ch.exchange_bind(write, read, "k"), "ok")
    user.refused("unbind allowed", lambda ch: ch.exchange_unbind(write, read, "k"), "ok")
    user.refused(
        "alternate-exchange: read on itself, write on the other",
        lambda ch: ch.exchange_declare("limited.conf.y", "fanout", arguments={"alternate-exchange": "amq.fanout"}),
        refusal("write", "exchange", "amq.fanout"),
    )
    user.refused(
        "alternate-exchange allowed",
        lambda ch: (
            ch.exchange_declare("limited.conf.y", "fanout", arguments={"alternate-exchange": write}),
            ch.exchange_delete("limited.conf.y"),
        ),
        "ok",
    )
    user.refused(
        "dead-letter-exchange: write on the other",
        lambda ch: ch.queue_declare("limited.conf.z", arguments={"x-dead-letter-exchange": "amq.fanout"}),
        refusal("write", "exchange", "amq.fanout"),
    )
    user.refused("delete allowed", lambda ch: ch.exchange_delete(conf), "ok")


def topic_refusal(access, key, exchange="amq.topic"):
    text = f"ACCESS_REFUSED - {access} access to topic '{key}' in exchange '{exchange}' in vhost '/' refused for user 'topical'"
    return channel_error(403, text)


@case("permissions.topics")
def topics(t):
    ch = t.channel()
    queue, fanout, topic = t.queue(ch), t.name("fanout"), t.name("topic")
    for name, kind in ((fanout, "fanout"), (topic, "topic")):
        ch.exchange_declare(name, kind)
        t.cleanup.append(lambda ch, name=name: ch.exchange_delete(name))
    user = As(t, "topical")
    mine, public, other = "topical.a", "public.a", "other.a"
    user.refused("bind, its own key", lambda ch: ch.queue_bind(queue, "amq.topic", mine), "ok")
    user.refused("bind, a key it may read", lambda ch: ch.queue_bind(queue, "amq.topic", public), "ok")
    user.refused("bind, a key that is not", lambda ch: ch.queue_bind(queue, "amq.topic", other), topic_refusal("read", other))
    user.refused("bind everything", lambda ch: ch.queue_bind(queue, "amq.topic", "#"), topic_refusal("read", "#"))
    user.refused("unbind", lambda ch: ch.queue_unbind(queue, "amq.topic", other), topic_refusal("read", other))
    user.refused("bind, another topic exchange", lambda ch: ch.queue_bind(queue, topic, other), "ok")
    user.refused("bind exchanges", lambda ch: ch.exchange_bind(fanout, "amq.topic", other), topic_refusal("read", other))
    user.refused("bind exchanges, its own key", lambda ch: ch.exchange_bind(fanout, "amq.topic", mine), "ok")
    user.refused("unbind exchanges", lambda ch: ch.exchange_unbind(fanout, "amq.topic", other), topic_refusal("read", other))
    user.refused("the destination's type does not matter", lambda ch: ch.exchange_bind("amq.topic", fanout, other), "ok")
    user.refused("unbind again", lambda ch: ch.exchange_unbind("amq.topic", fanout, other), "ok")
    user.refused("publish, its own key", lambda ch: ch.basic_publish("amq.topic", mine, "m"), "ok")
    user.refused("publish, a key it may only read", lambda ch: ch.basic_publish("amq.topic", public, "m"), topic_refusal("write", public))
    user.refused("publish without a key", lambda ch: ch.basic_publish("amq.topic", "", "m"), topic_refusal("write", ""))
    user.refused("publish elsewhere", lambda ch: ch.basic_publish(fanout, other, "m"), "ok")
    user.refused("publish to another topic exchange", lambda ch: ch.basic_publish(topic, other, "m"), "ok")
    t.see("what came", drain(ch, queue), want=["m", "m"])


@case("permissions.topics-in-headers")
def topics_in_headers(t):
    user = As(t, "topical")
    for name in ("CC", "BCC"):
        properties = pika.BasicProperties(headers={name: ["topical.b", "other.b"]})
        user.refused(
            f"a key in {name}",
            # Cases run side by side, and a server that lets this pass must not deliver it to the queue of the one above.
            lambda ch, properties=properties: ch.basic_publish("amq.topic", "topical.c", "m", properties),
            topic_refusal("write", "other.b"),
        )


@case("permissions.none-at-all")
def none_at_all(t):
    ch = t.channel()
    queue = t.queue(ch)
    user = As(t, "watcher")
    user.refused("declare", lambda ch: ch.queue_declare("watcher.q"), refusal("configure", "queue", "watcher.q", "watcher"))
    user.refused("publish", lambda ch: ch.basic_publish("amq.fanout", "k", "m"), refusal("write", "exchange", "amq.fanout", "watcher"))
    user.refused("get", lambda ch: ch.basic_get(queue), refusal("read", "queue", queue, "watcher"))
    user.refused("passive", lambda ch: ch.queue_declare(queue, passive=True), "ok")


@case("permissions.direct-reply-to")
def direct_reply_to(t):
    user = As(t, "watcher")
    user.refused("consume replies needs none", lambda ch: ch.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True), "ok")


@case("permissions.user-id")
def user_id(t):
    ch = t.channel()
    ch.queue_declare("limited.conf.user-id")
    t.cleanup.append(lambda ch: ch.queue_delete("limited.conf.user-id"))
    ch.exchange_declare("limited.write.user-id", "fanout")
    t.cleanup.append(lambda ch: ch.exchange_delete("limited.write.user-id"))
    ch.queue_bind("limited.conf.user-id", "limited.write.user-id")
    user = As(t, "limited")
    user.refused("its own", lambda ch: ch.basic_publish("limited.write.user-id", "", "own", pika.BasicProperties(user_id="limited")), "ok")
    text = "PRECONDITION_FAILED - user_id property set to 'guest' but authenticated user was 'limited'"
    user.refused(
        "another's",
        lambda ch: ch.basic_publish("limited.write.user-id", "", "m", pika.BasicProperties(user_id="guest")),
        channel_error(406, text),
    )
    t.see("what came", drain(ch, "limited.conf.user-id"), want=["own"])


@case("permissions.vhosts-are-apart")
def vhosts_are_apart(t):
    here, there = t.channel(), t.connect(vhost="other").channel()
    name = t.name()
    here.queue_declare(name, exclusive=True)
    there.queue_declare(name, durable=True)
    there.basic_publish("", name, "there")
    t.see("same names, other queues", [drain(here, name), drain(there, name)], want=[[], ["there"]])
    there.queue_delete(name)
    connection = t.connect(vhost="other")
    t.refused(
        "the error names the vhost",
        lambda ch: ch.basic_get(name),
        channel=connection.channel(),
        want=channel_error(404, f"NOT_FOUND - no queue '{name}' in vhost 'other'"),
    )
