"""From one broker to another: `forebay move` and `forebay definitions`, between ours and RabbitMQ both ways, and between two
RabbitMQs. Called by run.py."""
import json
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent.parent
# Written by `rabbitmqctl export_definitions`.
DEFINITIONS = REPO / "crates" / "forebay-cli" / "tests" / "rabbitmq-3.10.8-definitions.json"
MOVE_S = 150
# Which leaves internal exchanges out, and their bindings in; what comes by HTTP has both.
INTERNAL = {"vhost": "shop", "name": "unrouted", "type": "fanout", "durable": True, "auto_delete": False, "internal": True, "arguments": {}}
LOST_BINDING = "binding of `audit` to `unrouted` in vhost `shop`: "
# The ways a queue's messages go: its name, from, to, and which of the two queues is a quorum queue.
WAYS = (
    ("forebay-to-classic", "forebay", "rabbitmq", ()),
    ("forebay-to-quorum", "forebay", "rabbitmq", ("--to-quorum",)),
    ("classic-to-forebay", "rabbitmq", "forebay", ()),
    ("quorum-to-forebay", "rabbitmq", "forebay", ("--from-quorum",)),
    ("classic-to-quorum", "rabbitmq", "other", ("--to-quorum",)),
    ("quorum-to-classic", "rabbitmq", "other", ("--from-quorum",)),
)


def rabbitmq(conformance, directory, port):
    """A RabbitMQ with its management plugin on that port, and guest alone."""
    broker = conformance.RabbitMq(directory)
    broker.http = f"http://guest:guest@127.0.0.1:{port}"
    extra = directory.with_suffix(".conf")
    extra.write_text(f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n")
    broker.environment = dict(broker.environment, RABBITMQ_EXTRA_PLUGINS="rabbitmq_management", RABBITMQ_DEFINITIONS="")
    return broker


class Definitions:
    """`forebay definitions` at one broker."""

    def __init__(self, options, http):
        self.options, self.http = options, http

    def command(self, name, text=None, path=None):
        command = [self.options.forebay, "definitions", name, "--http", self.http, *([path] if path else [])]
        return subprocess.run(command, input=text or "", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)

    def export(self):
        ended = self.command("export")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def import_all(self, text):
        ended = self.command("import", text)
        assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr + ended.stdout


def named(document, part, *keys):
    """The entries of a part by their names."""
    entries = {tuple(entry.get(key) for key in keys): entry for entry in document.get(part, [])}
    assert len(entries) == len(document.get(part, [])), f"{part} holds something twice"
    return entries


KEYS = {
    "vhosts": ("name",), "users": ("name",), "permissions": ("user", "vhost"), "topic_permissions": ("user", "vhost", "exchange"),
    "policies": ("vhost", "name"), "queues": ("vhost", "name"), "exchanges": ("vhost", "name"),
    "bindings": ("vhost", "source", "destination", "destination_type", "routing_key"),
}  # fmt: skip
# What makes an entry what it is; the rest brokers write or leave out.
SAID = {
    "users": ("password_hash", "tags"), "permissions": ("configure", "write", "read"), "topic_permissions": ("write", "read"),
    "policies": ("pattern", "apply-to", "priority", "definition"), "queues": ("durable", "auto_delete", "arguments"),
    "exchanges": ("type", "durable", "auto_delete", "arguments"), "bindings": ("arguments",),
}  # fmt: skip


def said(document, leaves_out=lambda part, key: False):
    """What a document says, to be compared with another one."""
    found = {}
    for part, keys in KEYS.items():
        for key, entry in named(document, part, *keys).items():
            if not leaves_out(part, key):
                found[(part, *key)] = {what: entry.get(what) for what in SAID.get(part, ())}
    return found


def differ(found, expected):
    """The differences of two documents, in words."""
    keys = [*found, *(key for key in expected if key not in found)]
    wrong = [f"{key}: {found.get(key)} instead of {expected.get(key)}" for key in keys if found.get(key) != expected.get(key)]
    assert not wrong, "; ".join(wrong[:5])


def left_behind(part, key):
    """What of DEFINITIONS a Forebay cannot have: a user whom it had keeps the password that he had."""
    return (part, key) == ("users", ("guest",))


def definitions(options, conformance, work, brokers):
    """Yields (case, promise, function). The RabbitMQs serve already, and have nothing declared."""
    one, two = (Definitions(options, brokers[name].http) for name in ("rabbitmq", "other"))
    document = json.loads(DEFINITIONS.read_text())
    whole = dict(document, exchanges=[*document["exchanges"], INTERNAL])

    def into_rabbitmq():
        ended = one.command("import", json.dumps(document))
        # RabbitMQ itself says nothing of it.
        assert ended.returncode == 1 and ended.stderr.startswith(LOST_BINDING + "it is not there"), ended.stderr
        one.import_all(json.dumps(whole))
        differ(said(one.export()), said(whole))

    def between_rabbitmqs():
        exported = one.export()
        two.import_all(json.dumps(exported))
        differ(said(two.export()), said(exported))

    def into_forebay():
        ours = conformance.Forebay(work / "definitions", options.forebay)
        ours.config.write_text("")
        exported = json.dumps(one.export())
        ours.start()
        try:
            ended = Definitions(options, ours.http).command("import", exported)
            assert ended.returncode == 1 and "put what is on standard output in their place" in ended.stderr, ended.stderr
        finally:
            ours.stop()
        ours.config.write_text(ended.stdout)
        ours.start()
        try:
            at = Definitions(options, ours.http)
            ended = at.command("import", exported)
            lines = ended.stderr.splitlines()
            assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
            assert len(lines) == 1 and lines[0].endswith(" 0 left to do"), lines
            assert not ours.faults, ours.faults
            kept = at.export()
            differ(said(kept, left_behind), said(whole, left_behind))
            (work / "kept.json").write_text(json.dumps(kept))
            # Whoever had a password has it here: it travelled as a hash.
            url = ours.uri.replace("guest:guest", "app:limited-pass").replace("%2f", "shop")
            command = [options.forebay, "consume", "--url", url, "--queue", "orders", "--until-empty"]
            login = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
            assert login.returncode == 0, login.stderr
        finally:
            ours.stop()

    def back_into_rabbitmq():
        kept = json.loads((work / "kept.json").read_text())
        # Of the two, `other` has all of it already, with more arguments: another virtual host is empty.
        elsewhere = json.loads(json.dumps(kept).replace('"shop"', '"branch"'))
        two.import_all(json.dumps(elsewhere))
        differ(said(two.export(), lambda part, key: "shop" in key), said(elsewhere))

    yield (
        "definitions.rabbitmq",
        "RabbitMQ's own file comes in by forebay definitions, and out again; what RabbitMQ leaves out in silence is named",
        into_rabbitmq,
    )
    yield (
        "definitions.rabbitmq-to-rabbitmq",
        "what one RabbitMQ has another one has after an import",
        between_rabbitmqs,
    )
    yield (
        "definitions.rabbitmq-to-forebay",
        "of a RabbitMQ's export a Forebay takes all, with the configuration that the import prints",
        into_forebay,
    )
    yield "definitions.forebay-to-rabbitmq", "what a Forebay kept goes back into a RabbitMQ whole", back_into_rabbitmq


def run(options, work, conformance, lines_of, ports):
    """Lines as the engines' program prints them, and what is wrong with the whole, or None."""
    work.mkdir(exist_ok=True)
    lines, problems = [], []
    one, other = ports(2)
    brokers = {
        "rabbitmq": rabbitmq(conformance, work / "one", one),
        "other": rabbitmq(conformance, work / "other", other),
        "forebay": conformance.Forebay(work / "ours", options.forebay),
    }
    try:
        for broker in brokers.values():
            broker.start()
        for name, from_, to, kinds in WAYS:
            ends = ["--from", brokers[from_].uri, "--to", brokers[to].uri]
            command = [options.engines, "moves", "--name", name, "--forebay", options.forebay, *ends, *kinds]
            found, problem = lines_of(command, MOVE_S)
            lines += found
            problems += [f"{name}: {problem}"] * bool(problem)
        for case, promise, function in definitions(options, conformance, work, brokers):
            failed = None
            try:
                function()
            except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
                failed = str(error) or repr(error)
            lines.append({"case": case, "promise": promise, "failed": failed, "saw": {}})
    finally:
        for broker in brokers.values():
            broker.stop()
    problems += [fault for broker in brokers.values() for fault in broker.faults]
    return lines, "; ".join(problems) or None
