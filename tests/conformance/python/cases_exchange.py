"""Declaring and deleting exchanges, and how each type routes."""

import itertools

import pika
import pika.spec as spec
from harness import case, channel_error, connection_error, drain
from raw import opened

ALL_PREDECLARED = ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"]


def publish(channel, exchange, key="", body="m", headers=None):
    channel.basic_publish(exchange, key, body, pika.BasicProperties(headers=headers) if headers is not None else None)


def reached(channel, queues):
    """Short names of the queues that got something, with the number if more than one copy."""
    got = {}
    for queue in queues:
        count = len(drain(channel, queue))
        if count:
            short = queue.rsplit(".", 1)[1]
            got[short] = count
    return sorted(name if count == 1 else f"{name} x{count}" for name, count in got.items())


@case("exchange.predeclared")
def predeclared(t):
    for name in [*ALL_PREDECLARED, "amq.rabbitmq.trace"]:
        t.refused(f"passive {name}", lambda ch: ch.exchange_declare(name, passive=True), want="ok")
    kinds = {"amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers", "amq.match": "headers"}
    for name, kind in kinds.items():
        t.refused(f"equal redeclare of {name}", lambda ch: ch.exchange_declare(name, kind, durable=True), want="ok")
    t.refused(
        "equal redeclare of amq.rabbitmq.trace",
        lambda ch: ch.exchange_declare("amq.rabbitmq.trace", "topic", durable=True, internal=True),
        want="ok",
    )
    t.refused("passive of the default exchange", lambda ch: ch.exchange_declare("", passive=True))
    t.refused(
        "amq.direct as fanout",
        lambda ch: ch.exchange_declare("amq.direct", "fanout", durable=True),
        want=channel_error(
            406,
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'",
        ),
    )


@case("exchange.reserved")
def reserved(t):
    text = "ACCESS_REFUSED - exchange name 'amq.conformance' contains reserved prefix 'amq.*'"
    t.refused("new amq. name", lambda ch: ch.exchange_declare("amq.conformance", "direct"), want=channel_error(403, text))
    t.refused("delete amq.direct", lambda ch: ch.exchange_delete("amq.direct"))
    t.refused("delete an absent amq. name", lambda ch: ch.exchange_delete("amq.conformance"))
    t.refused("passive of an absent amq. name", lambda ch: ch.exchange_declare("amq.conformance", passive=True))
    default = channel_error(403, "ACCESS_REFUSED - operation not permitted on the default exchange")
    t.refused("declare the default exchange", lambda ch: ch.exchange_declare("", "direct", durable=True), want=default)
    t.refused("delete it", lambda ch: ch.exchange_delete(""), want=default)
    ch = t.channel()
    queue = t.queue(ch, exclusive=True)
    t.refused("bind to it", lambda ch: ch.queue_bind(queue, "", "k"), want=default)
    t.refused("unbind from it", lambda ch: ch.queue_unbind(queue, "", queue), want=default)
    t.refused("bind it to an exchange", lambda ch: ch.exchange_bind("", "amq.direct", "k"), want=default)
    t.refused("bind an exchange to it", lambda ch: ch.exchange_bind("amq.direct", "", "k"), want=default)
    t.refused("unbind it", lambda ch: ch.exchange_unbind("", "amq.direct", "k"), want=default)


@case("exchange.declare-errors")
def declare_errors(t):
    name = t.name("x")
    t.refused(
        "unknown type",
        lambda ch: ch.exchange_declare(name, "nonsense"),
        want=connection_error(503, "COMMAND_INVALID - unknown exchange type 'nonsense'"),
    )
    t.refused(
        "empty type", lambda ch: ch.exchange_declare(name, ""), want=connection_error(503, "COMMAND_INVALID - invalid exchange type ''")
    )
    t.refused(
        "passive and absent",
        lambda ch: ch.exchange_declare(name, passive=True),
        want=channel_error(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"),
    )
    t.refused("delete absent", lambda ch: ch.exchange_delete(name), want="ok")
    t.refused("delete absent if-unused", lambda ch: ch.exchange_delete(name, if_unused=True), want="ok")
    t.refused("alternate-exchange not a string", lambda ch: ch.exchange_declare(name, "fanout", arguments={"alternate-exchange": 1}))
    t.refused("unknown argument", lambda ch: ch.exchange_declare(name, "fanout", auto_delete=True, arguments={"x-nonsense": 1}), want="ok")
    t.refused("unknown argument left out later", lambda ch: ch.exchange_declare(name, "fanout", auto_delete=True), want="ok")
    t.refused("delete", lambda ch: ch.exchange_delete(name), want="ok")


@case("exchange.redeclare")
def redeclare(t):
    name = t.exchange(t.channel(), "x", "direct", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    args = {"alternate-exchange": "amq.fanout"}

    def inequivalent(arg, received, current):
        return channel_error(
            406,
            f"PRECONDITION_FAILED - inequivalent arg '{arg}' for exchange '{name}' in vhost '/': received '{received}' but current is '{current}'",
        )

    t.refused("equal", lambda ch: ch.exchange_declare(name, "direct", durable=True, arguments=args), want="ok")
    t.refused(
        "type", lambda ch: ch.exchange_declare(name, "topic", durable=True, arguments=args), want=inequivalent("type", "topic", "direct")
    )
    t.refused("durable", lambda ch: ch.exchange_declare(name, "direct", arguments=args), want=inequivalent("durable", "false", "true"))
    t.refused(
        "auto_delete",
        lambda ch: ch.exchange_declare(name, "direct", durable=True, auto_delete=True, arguments=args),
        want=inequivalent("auto_delete", "true", "false"),
    )
    t.refused(
        "internal",
        lambda ch: ch.exchange_declare(name, "direct", durable=True, internal=True, arguments=args),
        want=inequivalent("internal", "true", "false"),
    )
    t.refused(
        "another alternate-exchange",
        lambda ch: ch.exchange_declare(name, "direct", durable=True, arguments={"alternate-exchange": "amq.topic"}),
    )
    t.refused("no alternate-exchange", lambda ch: ch.exchange_declare(name, "direct", durable=True))
    t.refused("type and durable: the first is told", lambda ch: ch.exchange_declare(name, "topic", arguments=args))
    t.refused("passive ignores everything", lambda ch: ch.exchange_declare(name, "fanout", passive=True, auto_delete=True), want="ok")
    plain = t.exchange(t.channel(), "y", "direct")
    t.refused("alternate-exchange added", lambda ch: ch.exchange_declare(plain, "direct", arguments=args))


@case("exchange.names")
def names(t):
    ch = t.channel()
    name = t.exchange(ch, "cr\r\nlf", "fanout")
    t.refused("CR and LF are stripped", lambda ch: ch.exchange_declare(t.name("crlf"), passive=True), want="ok")
    t.refused("and in a passive declare too", lambda ch: ch.exchange_declare(name, passive=True), want="ok")
    long = t.name("x" * (255 - len(t.name(""))))
    t.refused("255 bytes", lambda ch: ch.exchange_declare(long, "fanout", auto_delete=True), want="ok")
    t.refused("delete it", lambda ch: ch.exchange_delete(long), want="ok")
    t.refused("unicode", lambda ch: ch.exchange_declare(t.name("größe-漢"), "fanout", auto_delete=True), want="ok")
    t.refused("delete it", lambda ch: ch.exchange_delete(t.name("größe-漢")), want="ok")
    t.refused("its error text", lambda ch: ch.exchange_declare(t.name("größe-漢"), passive=True))
    ch.exchange_delete(t.name("crlf"))


@case("exchange.delete")
def delete(t):
    ch = t.channel()
    queue = t.queue(ch, exclusive=True)
    name = t.exchange(ch, "x", "direct")
    ch.queue_bind(queue, name, "k")
    t.refused(
        "if-unused while bound",
        lambda ch: ch.exchange_delete(name, if_unused=True),
        want=channel_error(406, f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use"),
    )
    t.refused("deleted", lambda ch: ch.exchange_delete(name), want="ok")
    t.refused("publish to it", lambda ch: publish(ch, name, "k"), want=channel_error(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"))
    ch.exchange_declare(name, "direct")
    publish(ch, name, "k")
    t.see("bindings went with it", reached(ch, [queue]), want=[])


@case("exchange.direct")
def direct(t):
    ch = t.channel()
    a, b = t.queue(ch, "a", exclusive=True), t.queue(ch, "b", exclusive=True)
    x = t.exchange(ch, "x", "direct")
    ch.queue_bind(a, x, "one")
    ch.queue_bind(a, x, "two")
    ch.queue_bind(b, x, "two")
    ch.queue_bind(b, x, "two")  # the same binding again is one binding
    for key, want in (("one", ["a"]), ("two", ["a", "b"]), ("three", []), ("", []), ("ONE", [])):
        publish(ch, x, key)
        t.see(key, reached(ch, [a, b]), want=want)
    ch.queue_unbind(a, x, "two")
    publish(ch, x, "two")
    t.see("after unbind", reached(ch, [a, b]), want=["b"])
    ch.queue_bind(a, x, "one", {"some": "argument"})
    publish(ch, x, "one")
    t.see("two bindings with one key, differing by arguments", reached(ch, [a, b]), want=["a"])
    ch.queue_unbind(a, x, "one")
    publish(ch, x, "one")
    t.see("one of them unbound", reached(ch, [a, b]), want=["a"])
    publish(ch, "", a)
    t.see("default exchange", reached(ch, [a, b]), want=["a"])


@case("exchange.consistent-hash")
def consistent_hash(t):
    kind = "x-consistent-hash"
    name = t.name("refused")

    def declared(**arguments):
        arguments = {name.replace("_", "-"): value for name, value in arguments.items()}

        def declare(ch):
            ch.exchange_declare(name, kind, arguments=arguments)
            ch.exchange_delete(name)

        return declare

    t.refused("hash-header", declared(hash_header="h"), want="ok")
    t.refused("hash-property", declared(hash_property="message_id"), want="ok")
    t.refused("a property that cannot be hashed", declared(hash_property="app_id"))
    t.refused("header and property", declared(hash_header="h", hash_property="message_id"))
    ch = t.channel()
    ch.confirm_delivery()
    x = t.exchange(ch, "x", kind)
    queues = [t.queue(ch, short, exclusive=True) for short in "abc"]
    for weight in ("x", "0", "-1", "1.5"):
        t.refused(f"weight {weight}", lambda ch: ch.queue_bind(queues[0], x, weight))
    publish(ch, x, "key")
    t.see("nothing bound", reached(ch, queues), want=[])
    for queue in queues:
        ch.queue_bind(queue, x, "1")
    for number in range(300):
        publish(ch, x, f"key {number % 30}", str(number))
    got = {queue: [int(method_body) for method_body in drain(ch, queue)] for queue in queues}
    places = [{queue for queue in queues if key in {number % 30 for number in got[queue]}} for key in range(30)]
    t.see("all arrive", sum(map(len, got.values())), want=300)
    t.see("each key in one queue", [len(each) for each in places], want=[1] * 30)
    t.see("in order", all(numbers == sorted(numbers) for numbers in got.values()), want=True)
    t.see("not all in one", sum(map(bool, got.values())) > 1, want=True)


@case("exchange.fanout")
def fanout(t):
    ch = t.channel()
    queues = [t.queue(ch, short, exclusive=True) for short in "abc"]
    x = t.exchange(ch, "x", "fanout")
    for queue in queues:
        ch.queue_bind(queue, x, "ignored")
    ch.queue_bind(queues[0], x, "again")
    publish(ch, x, "anything")
    t.see("one copy each", reached(ch, queues), want=["a", "b", "c"])
    ch.queue_unbind(queues[0], x, "ignored")
    publish(ch, x, "anything")
    t.see("one of two bindings left", reached(ch, queues), want=["a", "b", "c"])
    ch.queue_unbind(queues[0], x, "again")
    publish(ch, x)
    t.see("none left", reached(ch, queues), want=["b", "c"])


def topic_matches(pattern, key):
    """The specification, 3.1.3.3, by plain recursion."""

    def match(patterns, words):
        if not patterns:
            return not words
        if patterns[0] == "#":
            return match(patterns[1:], words) or bool(words) and match(patterns, words[1:])
        return bool(words) and patterns[0] in ("*", words[0]) and match(patterns[1:], words[1:])

    def split(text):
        return text.split(".") if text else []

    return match(split(pattern), split(key))


@case("exchange.topic")
def topic(t):
    ch = t.channel()
    x = t.exchange(ch, "x", "topic")
    patterns = [
        "",
        "#",
        "*",
        "a",
        "a.b",
        "a.*",
        "*.b",
        "a.#",
        "#.b",
        "*.*",
        "#.#",
        "#.*",
        "*.#",
        "a.#.b",
        "a.*.b",
        "#.a.#",
        "a.b.c",
        "*.#.*",
        "a.#.#.b",
        "#.*.#.c",
        "..",
        ".a",
        "a.",
        "a*",
        "**",
        "##",
        "A",
    ]
    queues = {}
    for number, pattern in enumerate(patterns):
        queues[pattern] = t.queue(ch, f"q{number}", exclusive=True)
        ch.queue_bind(queues[pattern], x, pattern)
    words = ["a", "b", "c"]
    keys = ["", ".", "..", ".a", "a.", "a..b", "*", "#", "a.#", "aa", "a*", "A", "a.b.c.d", "a.x.y.z.b"]
    keys += [".".join(word) for size in (1, 2, 3) for word in itertools.product(words, repeat=size)]
    for key in keys:
        publish(ch, x, key)
        got = [pattern for pattern, queue in queues.items() if drain(ch, queue)]
        if "" in key.split(".") and key:
            t.see(f"key {key!r}", got)  # empty words: as RabbitMQ does
        else:
            t.see(f"key {key!r}", got, want=[pattern for pattern in patterns if topic_matches(pattern, key)])
    both = t.queue(ch, "both", exclusive=True)
    ch.queue_bind(both, x, "over.#")
    ch.queue_bind(both, x, "#.lap")
    publish(ch, x, "over.lap")
    t.see("overlapping bindings, one copy", len(drain(ch, both)), want=1)
    ch.queue_unbind(both, x, "over.#")
    publish(ch, x, "over.lap")
    t.see("one removed", len(drain(ch, both)), want=1)
    ch.queue_unbind(both, x, "#.lap")
    publish(ch, x, "over.lap")
    t.see("both removed", len(drain(ch, both)), want=0)


@case("exchange.headers")
def headers(t):
    ch = t.channel()
    x = t.exchange(ch, "x", "headers")
    bindings = {
        "all-ab": {"x-match": "all", "a": "1", "b": 2},
        "default-ab": {"a": "1", "b": 2},
        "any-ab": {"x-match": "any", "a": "1", "b": 2},
        "all-empty": {"x-match": "all"},
        "any-empty": {"x-match": "any"},
        "none-at-all": {},
        "void-a": {"x-match": "all", "a": None},
        "any-void-a": {"x-match": "any", "a": None, "zz": "z"},
        "all-x": {"x-match": "all", "x-a": "1", "a": "1"},
        "any-x": {"x-match": "any", "x-a": "1"},
        "all-with-x": {"x-match": "all-with-x", "x-a": "1", "a": "1"},
        "any-with-x": {"x-match": "any-with-x", "x-a": "1", "q": "r"},
        "bool": {"b": True},
        "int-one": {"a": 1},
        "table": {"t": {"k": "v"}},
        "list": {"l": ["v", 1]},
    }
    queues = {}
    refused = {}
    for short, arguments in bindings.items():
        queue = t.queue(ch, short, exclusive=True)
        saw = t.outcome(lambda ch: ch.queue_bind(queue, x, "", arguments))
        if saw == "ok":
            queues[short] = queue
        else:
            refused[short] = saw
    t.see("refused bindings", refused)
    messages = {
        "nothing": None,
        "empty table": {},
        "a=1": {"a": "1"},
        "a=1 b=2": {"a": "1", "b": 2},
        "a=1 b=2 c": {"a": "1", "b": 2, "c": "more"},
        "b=2": {"b": 2},
        "b='2'": {"b": "2"},
        "b=2 as a long": {"b": 2**40 - 2**40 + 2},
        "a=1 as an int": {"a": 1},
        "a=True": {"a": True},
        "b=True": {"b": True},
        "a is void": {"a": None},
        "a=2 b=3": {"a": "2", "b": 3},
        "x-a=1": {"x-a": "1"},
        "x-a=1 a=1": {"x-a": "1", "a": "1"},
        "q=r": {"q": "r"},
        "a table": {"t": {"k": "v"}},
        "another table": {"t": {"k": "w"}},
        "a list": {"l": ["v", 1]},
        "zz": {"zz": "z"},
    }
    for what, values in messages.items():
        publish(ch, x, "some.key", headers=values)
        t.see(what, reached(ch, queues.values()))
    queue = t.queue(ch, "bad", exclusive=True)
    t.refused("x-match unknown", lambda ch: ch.queue_bind(queue, x, "", {"x-match": "some", "a": "1"}))
    t.refused("x-match not a string", lambda ch: ch.queue_bind(queue, x, "", {"x-match": 1, "a": "1"}))
    t.refused("unbind with other arguments", lambda ch: ch.queue_unbind(queues["all-ab"], x, "", {"a": "1"}), want="ok")
    publish(ch, x, headers={"a": "1", "b": 2})
    t.see("still bound", "all-ab" in reached(ch, queues.values()), want=True)
    t.refused("unbind with its arguments", lambda ch: ch.queue_unbind(queues["all-ab"], x, "", bindings["all-ab"]), want="ok")
    publish(ch, x, headers={"a": "1", "b": 2})
    t.see("no longer bound", "all-ab" in reached(ch, queues.values()), want=False)


@case("exchange.policy")
def policy(t):
    """Both brokers have the policies `unrouted` and `urgent` for exchanges whose names contain `.policy.`."""
    ch = t.channel()
    queues = {}
    for name in ("policed.unrouted", "policed.urgent", t.name("own").replace(".policy.", ".")):
        ch.exchange_declare(name, "fanout")
        t.cleanup.append(lambda ch, name=name: ch.exchange_delete(name))
        queues[name] = t.queue(ch, name)
        ch.queue_bind(queues[name], name)
    own = name

    def where(exchange):
        ch.confirm_delivery()
        try:
            ch.basic_publish(exchange, "k", "m", mandatory=True)
        except pika.exceptions.UnroutableError:
            return "returned"
        return [place.split(".")[-1] for place, queue in queues.items() if drain(ch, queue)]

    plain = t.exchange(ch, "x", "direct")
    t.see("by policy", where(plain), want=["unrouted"])
    t.see("by the policy of higher priority", where(t.exchange(ch, "x.urgent", "direct")), want=["urgent"])
    argued = t.exchange(ch, "y.urgent", "direct", arguments={"alternate-exchange": own})
    t.see("the argument goes before it", where(argued), want=["own"])
    nowhere = t.exchange(ch, "z", "direct", arguments={"alternate-exchange": "nowhere"})
    t.see("also when it leads nowhere", where(nowhere), want="returned")
    other = t.name("free").replace(".policy.", ".")
    ch.exchange_declare(other, "direct")
    t.cleanup.append(lambda ch: ch.exchange_delete(other))
    t.see("no policy", where(other), want="returned")
    t.refused("a policy is no argument", lambda ch: ch.exchange_declare(plain, "direct"), want="ok")


@case("exchange.alternate")
def alternate(t):
    ch = t.channel()
    last = t.exchange(ch, "last", "fanout")
    middle = t.exchange(ch, "middle", "direct", arguments={"alternate-exchange": last})
    first = t.exchange(ch, "first", "direct", arguments={"alternate-exchange": middle})
    absent = t.exchange(ch, "absent", "direct", arguments={"alternate-exchange": t.name("nowhere")})
    a, b, c = (t.queue(ch, short, exclusive=True) for short in "abc")
    ch.queue_bind(a, first, "a")
    ch.queue_bind(b, middle, "b")
    publish(ch, first, "a")
    t.see("matched: the alternate is not asked", reached(ch, [a, b, c]), want=["a"])
    publish(ch, first, "b")
    t.see("the second of the chain", reached(ch, [a, b, c]), want=["b"])
    ch.queue_bind(c, last, "")
    publish(ch, first, "zzz")
    t.see("the third", reached(ch, [a, b, c]), want=["c"])
    ch.confirm_delivery()
    ch.queue_unbind(c, last, "")

    def returned(exchange, key):
        try:
            ch.basic_publish(exchange, key, b"m", mandatory=True)
            return "routed"
        except pika.exceptions.UnroutableError as error:
            method = error.messages[0].method
            return [method.reply_code, method.reply_text, method.exchange, method.routing_key]

    t.see("returned when the whole chain finds none", returned(first, "zzz"), want=[312, "NO_ROUTE", first, "zzz"])
    t.see("an absent alternate", returned(absent, "zzz"), want=[312, "NO_ROUTE", absent, "zzz"])
    one, two = t.name("one"), t.name("two")
    t.exchange(ch, "one", "direct", arguments={"alternate-exchange": two})
    t.exchange(ch, "two", "direct", arguments={"alternate-exchange": one})
    t.see("a cycle", returned(one, "k"), want=[312, "NO_ROUTE", one, "k"])
    ch.queue_bind(a, two, "k")
    t.see("a cycle that finds a queue", [returned(one, "k"), reached(ch, [a])], want=["routed", ["a"]])
    itself = t.exchange(ch, "itself", "direct", arguments={"alternate-exchange": t.name("itself")})
    t.see("itself", returned(itself, "k"), want=[312, "NO_ROUTE", itself, "k"])


@case("exchange.to-exchange")
def to_exchange(t):
    ch = t.channel()
    source = t.exchange(ch, "source", "topic")
    destination = t.exchange(ch, "destination", "direct")
    a, b = t.queue(ch, "a", exclusive=True), t.queue(ch, "b", exclusive=True)
    ch.exchange_bind(destination, source, "k.#")
    ch.queue_bind(a, destination, "k.1")
    ch.queue_bind(b, source, "#")
    publish(ch, source, "k.1")
    t.see("through", reached(ch, [a, b]), want=["a", "b"])
    publish(ch, source, "k.2")
    t.see("not matched further", reached(ch, [a, b]), want=["b"])
    ch.queue_bind(a, source, "k.1")
    publish(ch, source, "k.1")
    t.see("two ways, one copy", reached(ch, [a, b]), want=["a", "b"])
    ch.exchange_bind(source, destination, "k.1")
    publish(ch, source, "k.1")
    t.see("a cycle of exchanges", reached(ch, [a, b]), want=["a", "b"])
    ch.exchange_bind(source, source, "#")
    publish(ch, source, "k.1")
    t.see("bound to itself", reached(ch, [a, b]), want=["a", "b"])
    ch.queue_unbind(a, source, "k.1")
    ch.exchange_unbind(destination, source, "k.#")
    publish(ch, source, "k.1")
    t.see("unbound", reached(ch, [a, b]), want=["b"])
    nowhere = t.name("nowhere")
    missing = channel_error(404, f"NOT_FOUND - no exchange '{nowhere}' in vhost '/'")
    t.refused("bind an absent destination", lambda ch: ch.exchange_bind(nowhere, source, "k"), want=missing)
    t.refused("bind to an absent source", lambda ch: ch.exchange_bind(source, nowhere, "k"), want=missing)
    t.refused("unbind an absent binding", lambda ch: ch.exchange_unbind(destination, source, "zz"), want="ok")
    t.refused("unbind an absent destination", lambda ch: ch.exchange_unbind(nowhere, source, "k"), want="ok")
    t.refused("unbind from an absent source", lambda ch: ch.exchange_unbind(source, nowhere, "k"), want="ok")


@case("exchange.internal")
def internal(t):
    ch = t.channel()
    hidden = t.exchange(ch, "hidden", "fanout", internal=True)
    front = t.exchange(ch, "front", "fanout")
    queue = t.queue(ch, exclusive=True)
    ch.exchange_bind(hidden, front)
    ch.queue_bind(queue, hidden)
    text = f"ACCESS_REFUSED - cannot publish to internal exchange '{hidden}' in vhost '/'"
    t.refused("publish to it", lambda ch: publish(ch, hidden), want=channel_error(403, text))
    publish(ch, front)
    t.see("through another", reached(ch, [queue]), want=["q"])
    other = t.exchange(ch, "other", "direct", arguments={"alternate-exchange": hidden})
    publish(ch, other, "nothing")
    t.see("as an alternate", reached(ch, [queue]))
    t.refused("publish to amq.rabbitmq.trace", lambda ch: publish(ch, "amq.rabbitmq.trace"))


@case("exchange.auto-delete")
def auto_delete(t):
    ch = t.channel()

    def exists(name):
        return t.outcome(lambda ch: ch.exchange_declare(name, passive=True)) == "ok"

    queue = t.queue(ch, exclusive=True)
    x = t.name("x")
    ch.exchange_declare(x, "direct", auto_delete=True)
    t.see("not before its first binding", exists(x), want=True)
    ch.queue_bind(queue, x, "1")
    ch.queue_bind(queue, x, "2")
    ch.queue_unbind(queue, x, "1")
    t.see("not while a binding is left", exists(x), want=True)
    ch.queue_unbind(queue, x, "2")
    t.see("gone with the last", exists(x), want=False)
    ch.exchange_declare(x, "direct", auto_delete=True)
    other = t.queue(ch, "other", exclusive=True)
    ch.queue_bind(other, x, "1")
    ch.queue_delete(other)
    t.see("gone with the queue", exists(x), want=False)
    first, second = t.name("first"), t.name("second")
    ch.exchange_declare(first, "direct", auto_delete=True)
    ch.exchange_declare(second, "direct", auto_delete=True)
    ch.exchange_bind(second, first, "k")
    ch.queue_bind(queue, second, "k")
    ch.queue_unbind(queue, second, "k")
    t.see("cascading from destination to source", [exists(second), exists(first)], want=[False, False])
    ch.exchange_declare(first, "direct", auto_delete=True)
    ch.exchange_declare(second, "direct", auto_delete=True)
    ch.exchange_bind(second, first, "k")
    ch.exchange_unbind(second, first, "k")
    t.see("being a destination does not keep or end it", [exists(second), exists(first)], want=[True, False])
    ch.exchange_delete(second)


@case("exchange.nowait")
def nowait(t):
    x, queue = t.name("x"), t.name("q")
    with opened(t.uri) as raw:
        raw.method(1, spec.Exchange.Declare(exchange=x, type="fanout", auto_delete=True, nowait=True))
        raw.method(1, spec.Queue.Declare(queue=queue, exclusive=True, nowait=True))
        raw.method(1, spec.Queue.Bind(queue=queue, exchange=x, nowait=True))
        raw.method(1, spec.Exchange.Bind(destination=x, source="amq.fanout", nowait=True))
        raw.method(1, spec.Exchange.Unbind(destination=x, source="amq.fanout", nowait=True))
        raw.publish(1, x, "", b"1")
        raw.method(1, spec.Basic.Get(queue=queue, no_ack=True))
        t.see("nothing is answered before get-ok", raw.next_method().NAME, want="Basic.GetOk")
        raw.method(1, spec.Queue.Purge(queue=queue, nowait=True))
        raw.method(1, spec.Confirm.Select(nowait=True))
        raw.method(1, spec.Basic.Consume(queue=queue, consumer_tag="tag", nowait=True))
        raw.method(1, spec.Basic.Cancel(consumer_tag="tag", nowait=True))
        raw.method(1, spec.Queue.Delete(queue=queue, nowait=True))
        raw.method(1, spec.Exchange.Delete(exchange=x, nowait=True))
        raw.method(1, spec.Basic.Qos())
        t.see("nor before qos-ok", raw.next_method().NAME, want="Basic.QosOk")
        raw.method(1, spec.Exchange.Declare(exchange=x, type="fanout", passive=True, nowait=True))
        t.see("an error is told", raw.fate())
