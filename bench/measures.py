"""What is measured: a list of measures, each of which runs once against a fresh broker and gives a flat dictionary of numbers."""
import time
from dataclasses import dataclass
from typing import Callable

import connection
import generator
import machine
import process
from broker_forebay import Forebay
from broker_rabbitmq import RabbitMQ

# Columns. RabbitMQ's classic queues confirm without syncing, its quorum queues sync: equal promises stand in the third column.
FOREBAY, CLASSIC, QUORUM, DISK = "forebay", "rabbitmq_classic", "rabbitmq_quorum", "disk"
QUEUE = "forebay-load.0"
SETTLE_S = 3.0  # until an idle broker has collected its garbage and put its processes to sleep


@dataclass
class Setting:
    """How long and how much."""

    programs: str
    directory: str
    seconds: float
    warm_up: float
    connections: int
    queues: int
    backlog: int
    perftest_seconds: int
    perftest_warm_up: int


@dataclass
class Measure:
    name: str
    columns: tuple
    run: Callable  # (setting, column) -> dict
    repeat_max: int = 99  # what takes long and varies little is repeated less
    only_once: tuple = ()  # columns that are measured in the first repetition only, because they take minutes


def broker_for(setting, column, **options):
    return (Forebay if column == FOREBAY else RabbitMQ)(setting.programs, setting.directory, **options)


class Fresh:
    """A fresh broker for the time of a `with` block."""

    def __init__(self, setting, column, **options):
        self.broker = broker_for(setting, column, **options)

    def __enter__(self):
        try:
            self.start_s = self.broker.start()
        except BaseException:
            self.broker.discard()
            raise
        return self

    def __exit__(self, *_):
        self.broker.discard()


def load(*options):
    """A measure's `run` with the lean generator."""

    def run(setting, column):
        more = ["--queue-type", "quorum"] if column == QUORUM else []
        with Fresh(setting, column) as fresh:
            return generator.lean(setting.programs, fresh.broker, [*options, *more], setting.seconds, setting.warm_up)

    return run


def latency(setting, column):
    """One publisher that waits for each confirm, and the disk's own flush beside it."""
    if column == DISK:
        return machine.flush_us(setting.directory, min(1.0, setting.seconds))
    return load("-p", "1", "-c", "1", "-s", "1024", "--persistent", "-w", "1")(setting, column)


def neutral(*options):
    """A measure's `run` with PerfTest."""

    def run(setting, column):
        more = ["--quorum-queue"] if column == QUORUM else []
        with Fresh(setting, column) as fresh:
            return generator.perftest(fresh.broker, [*options, *more], setting.perftest_seconds, setting.perftest_warm_up)

    return run


def connections(setting, column):
    """Start of an empty broker, its memory, and what an idle connection adds, without and with a channel."""
    with Fresh(setting, column) as fresh:
        pid = fresh.broker.pid
        time.sleep(1.0)
        empty = process.resident_bytes(pid)
        held = []
        try:
            began = time.monotonic()
            for _ in range(setting.connections):
                held.append(connection.Connection(fresh.broker.port))
            opened_per_s = setting.connections / (time.monotonic() - began)
            time.sleep(SETTLE_S)
            bare = process.resident_bytes(pid)
            for each in held:
                each.open_channel()
            time.sleep(SETTLE_S)
            with_channel = process.resident_bytes(pid)
        finally:
            for each in held:
                each.close()
    return {
        "start_s": fresh.start_s,
        "empty_mb": empty / 1e6,
        "connections": setting.connections,
        "opened_per_s": opened_per_s,
        "connection_kb": (bare - empty) / setting.connections / 1e3,
        "connection_with_channel_kb": (with_channel - empty) / setting.connections / 1e3,
    }


def queues(setting, column):
    """What one more idle durable queue adds to the memory of a broker that has some: buffers of the whole broker do not count."""
    window = 100  # declared before their answers are read

    def declare(numbers):
        for first in range(numbers.start, numbers.stop, window):
            names = range(first, min(first + window, numbers.stop))
            client.send(b"".join(connection.queue_declare(1, f"idle.{name:06}") for name in names))
            for _ in names:
                client.expect(connection.QUEUE_DECLARE_OK)

    some = setting.queues // 10
    with Fresh(setting, column) as fresh:
        client = connection.Connection(fresh.broker.port)
        try:
            client.open_channel()
            declare(range(0, some))
            time.sleep(SETTLE_S)
            before = process.resident_bytes(fresh.broker.pid)
            began = time.monotonic()
            declare(range(some, some + setting.queues))
            declared_per_s = setting.queues / (time.monotonic() - began)
            time.sleep(SETTLE_S)
            after = process.resident_bytes(fresh.broker.pid)
        finally:
            client.close()
    return {"queues": setting.queues, "declared_per_s": declared_per_s, "queue_kb": (after - before) / setting.queues / 1e3}


def backlog(setting, column):
    """Fill without a consumer, memory, restart after a clean stop and after a kill, drain."""
    half, options = setting.backlog // 2, ["-c", "0", "-q", "1", "-s", "1024", "--persistent", "--keep"]
    longest_s = 300
    with Fresh(setting, column, memory_budget="256MB") as fresh:
        broker, result = fresh.broker, {"messages": setting.backlog}

        def fill():
            took = generator.lean(setting.programs, broker, ["-p", "4", "-w", "1000", "--messages", str(half), *options], longest_s, 0)
            return took, process.resident_bytes(broker.pid)

        (first, rss_half), (second, rss_full) = fill(), fill()
        result["fill_per_s"] = 2 / (1 / first["confirmed_per_s"] + 1 / second["confirmed_per_s"])
        result["fill_cpu_us"] = (first["broker_cpu_us"] + second["broker_cpu_us"]) / 2
        result["rss_mb"] = rss_full / 1e6
        result["rss_peak_mb"] = process.resident_bytes_peak(broker.pid) / 1e6
        result["beyond_budget_bytes"] = (rss_full - rss_half) / half
        result["depth_filled"] = connection.depth(broker.port, QUEUE)
        result["stop_s"] = broker.stop()
        result["restart_s"] = broker.start()
        result["depth_restarted"] = connection.depth(broker.port, QUEUE)
        result["rss_restarted_mb"] = process.resident_bytes(broker.pid) / 1e6
        broker.kill()
        result["restart_after_kill_s"] = broker.start()
        result["depth_after_kill"] = ready = connection.depth(broker.port, QUEUE)
        drain = ["-p", "0", "-c", "1", "-q", "1", "-s", "1024", "--persistent", "--keep", "--messages", str(ready)]
        drained = generator.lean(setting.programs, broker, drain, longest_s, 0)
        result["drain_per_s"] = drained["consumed_per_s"]
        result["drain_cpu_us"] = drained["broker_cpu_us"]
        result["rss_drain_mb"] = drained["broker_rss_mb"]
        result["depth_drained"] = connection.depth(broker.port, QUEUE)
        return result


TRANSIENT = (FOREBAY, CLASSIC)
PERSISTENT = (FOREBAY, CLASSIC, QUORUM)
# A prefetch that does not bound the smallest messages by its round trips; the same for both brokers.
WIDE = ("--prefetch", "5000")
PERFTEST = ["--auto-delete", "false", "--size", "1024", "--qos", "1000"]
PERFTEST_PERSISTENT = [*PERFTEST, "--flag", "persistent"]
PERFTEST_QUEUES = ["--queue-pattern", "perf-%d", "--queue-pattern-from", "1", "--queue-pattern-to", "10"]

MEASURES = [
    Measure("transient-16B", TRANSIENT, load("-p", "1", "-c", "1", "-s", "16", *WIDE)),
    Measure("transient-100B", TRANSIENT, load("-p", "1", "-c", "1", "-s", "100", *WIDE)),
    Measure("transient-1KB", TRANSIENT, load("-p", "1", "-c", "1", "-s", "1024", *WIDE)),
    # The floor prototype was loaded by ten publishers; without this one cannot compare.
    Measure("transient-100B-10p", (FOREBAY,), load("-p", "10", "-c", "10", "-q", "10", "-s", "100")),
    Measure("transient-1KB-10p", (FOREBAY,), load("-p", "10", "-c", "10", "-q", "10", "-s", "1024")),
    Measure("persistent-1x1000", PERSISTENT, load("-p", "1", "-c", "1", "-s", "1024", "--persistent", "-w", "1000")),
    Measure("persistent-100x100", PERSISTENT, load("-p", "100", "-c", "10", "-q", "10", "-s", "1024", "--persistent", "-w", "100")),
    Measure("persistent-20-10-20", PERSISTENT, load("-p", "20", "-c", "20", "-q", "10", "-s", "1024", "--persistent", "-w", "60")),
    Measure("confirm-latency", (DISK, *PERSISTENT), latency),
    Measure("perftest-transient", TRANSIENT, neutral(*PERFTEST, "--queue", "perf"), repeat_max=2),
    Measure("perftest-persistent-1x1000", PERSISTENT, neutral(*PERFTEST_PERSISTENT, "--queue", "perf", "--confirm", "1000"), repeat_max=2),
    Measure(
        "perftest-persistent-20-10-20",
        PERSISTENT,
        neutral(*PERFTEST_PERSISTENT, *PERFTEST_QUEUES, "--producers", "20", "--consumers", "20", "--confirm", "60"),
        repeat_max=2,
    ),
    Measure("connections", TRANSIENT, connections, repeat_max=2),
    Measure("queues", TRANSIENT, queues, repeat_max=2),
    Measure("backlog", TRANSIENT, backlog, only_once=(CLASSIC,)),
]
