"""Tables from results: medians with their spread, targets, ratios, and whether a target was met."""
from dataclasses import dataclass
from statistics import median
from typing import Callable, Optional

from measures import CLASSIC, DISK, FOREBAY, QUORUM


def _rate(value):
    if value >= 999_500:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.1f} k" if value >= 1000 and value < 99_950 else f"{value / 1e3:.0f} k" if value >= 1000 else f"{value:.0f}"


def _sized(value):
    """Three digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


RATE, US, MS, S, MB, KB, BYTES = (
    (_rate, "/s"), (_sized, " µs"), (_sized, " ms"), (_sized, " s"), (_sized, " MB"), (_sized, " KB"), (_sized, " B"),
)  # fmt: skip


@dataclass
class Row:
    """One line: a metric of a measure, its target for Forebay, and its floor."""

    what: str
    measure: str
    metric: str
    unit: tuple
    target: Optional[float] = None
    more_is_better: bool = False
    floor: Optional[float] = None  # what the prototype reached (rates) or cost (CPU)
    target_of: Optional[Callable] = None  # results -> (target, text), where it depends on the run


def rate(what, measure, target=None, floor=None, metric="consumed_per_s"):
    return Row(what, measure, metric, RATE, target, True, floor)


def cpu(measure, target=None, floor=None, metric="broker_cpu_us"):
    return Row("… broker CPU a message", measure, metric, US, target, floor=floor)


def flush_target(results):
    flush = values(results, "confirm-latency", DISK, "overwrite_p50_us")
    return ((median(flush) + 100) / 1e3, f"≤ flush ({median(flush):.0f} µs) + 100 µs") if flush else None


def fourteen_times(results):
    best = max((median(got) for column in (CLASSIC, QUORUM) if (got := values(results, "persistent-100x100", column, "consumed_per_s"))), default=None)
    return (14 * best, f"≥ 14 x RabbitMQ ({_rate(14 * best)}/s)") if best else None


# Targets: the budget of the design. Floors: a prototype without features on a machine of this kind (see the document).
SECTIONS = {
    "throughput": [
        rate("transient, 16 B, 1:1:1", "transient-16B", 1.5e6, 4.73e6),
        cpu("transient-16B", None, 0.209),
        rate("transient, 100 B, 1:1:1", "transient-100B", 1.5e6, 4.29e6),
        cpu("transient-100B", 0.4, 0.231),
        rate("transient, 1 KB, 1:1:1", "transient-1KB", 600e3, 1.00e6),
        cpu("transient-1KB", 1.4, 1.0),
        rate("transient, 100 B, 10:10:10", "transient-100B-10p", 1.5e6, 4.29e6),
        cpu("transient-100B-10p", 0.4, 0.231),
        rate("transient, 1 KB, 10:10:10", "transient-1KB-10p", 600e3, 1.00e6),
        cpu("transient-1KB-10p", 1.4, 1.0),
        rate("persistent, 1 KB, 1:1:1, window 1000", "persistent-1x1000", 300e3),
        cpu("persistent-1x1000", 1.8),
        rate("persistent, 1 KB, 100 publishers x window 100, 10 queues, 10 consumers", "persistent-100x100", 300e3, 562e3),
        Row("… the same rate against RabbitMQ's better one", "persistent-100x100", "consumed_per_s", RATE, None, True, target_of=fourteen_times),
        Row("… confirm p99", "persistent-100x100", "confirm_p99_ms", MS, 50, floor=22.4),
        cpu("persistent-100x100", 1.8, 1.358 + 0.353),
        rate("persistent, 1 KB, 20:10:20, window 60", "persistent-20-10-20", 300e3),
        cpu("persistent-20-10-20", 1.8),
    ],
    "latency": [
        Row("confirm p50, one publisher, window 1, 1 KB", "confirm-latency", "confirm_p50_ms", MS, floor=0.181, target_of=flush_target),
        Row("… confirm p99", "confirm-latency", "confirm_p99_ms", MS, 1.0, floor=0.330),
        rate("… messages a second", "confirm-latency", None, 4.5e3),
        cpu("confirm-latency", None, 43 + 79),
    ],
    "perftest": [
        rate("transient, 1 KB, 1:1:1", "perftest-transient"),
        cpu("perftest-transient"),
        rate("persistent, 1 KB, 1:1:1, window 1000", "perftest-persistent-1x1000"),
        Row("… confirm p99", "perftest-persistent-1x1000", "confirm_p99_ms", MS),
        cpu("perftest-persistent-1x1000"),
        rate("persistent, 1 KB, 20:10:20, window 60", "perftest-persistent-20-10-20"),
        Row("… confirm p99", "perftest-persistent-20-10-20", "confirm_p99_ms", MS),
        cpu("perftest-persistent-20-10-20"),
    ],
    "memory": [
        Row("resident, empty", "connections", "empty_mb", MB, 15, floor=None),
        Row("per idle connection, no channel", "connections", "connection_kb", KB, 4),
        Row("per idle connection with a channel", "connections", "connection_with_channel_kb", KB, 4),
        Row("per idle durable queue", "queues", "queue_kb", KB, 1),
        rate("queues declared (durable, 100 in flight)", "queues", metric="declared_per_s"),
        rate("connections opened, one after another", "connections", metric="opened_per_s"),
    ],
    "backlog": [
        Row("start, empty", "connections", "start_s", S, 0.1),
        rate("fill, 4 publishers x window 1000, confirmed", "backlog", 200e3, metric="fill_per_s"),
        cpu("backlog", metric="fill_cpu_us"),
        Row("resident when full", "backlog", "rss_mb", MB, 256),
        Row("resident at most until then", "backlog", "rss_peak_mb", MB, 256),
        Row("each message of the second half adds", "backlog", "beyond_budget_bytes", BYTES, 1),
        Row("clean stop", "backlog", "stop_s", S),
        Row("restart after it", "backlog", "restart_s", S, 1),
        Row("restart after kill -9", "backlog", "restart_after_kill_s", S, 1),
        Row("messages found after both", "backlog", "depth_after_kill", (lambda value: f"{value:.0f}", "")),
        rate("drain, one consumer, prefetch 1000, acked", "backlog", 200e3, metric="drain_per_s"),
        cpu("backlog", metric="drain_cpu_us"),
    ],
}


def values(results, measure, column, metric):
    runs = results["measures"].get(measure, {}).get(column, [])
    return [run[metric] for run in runs if run.get(metric) is not None]


def cell(row, got, failed):
    if not got:
        return "failed" if failed else "–"
    show, unit = row.unit
    text = f"{show(median(got))}{unit}"
    if len(got) > 1 and show(min(got)) != show(max(got)):
        text += f" ({show(min(got))} to {show(max(got))})"
    return text


def ratio(row, results):
    """How many times better Forebay is than the better of RabbitMQ's columns."""
    own = values(results, row.measure, FOREBAY, row.metric)
    others = [median(got) for column in (CLASSIC, QUORUM) if (got := values(results, row.measure, column, row.metric))]
    if not own or not others or row.unit[1] == "":
        return ""
    own, other = median(own), (max if row.more_is_better else min)(others)
    if own <= 0 or other <= 0:
        return ""
    times = own / other if row.more_is_better else other / own
    return f"{times:.0f} x" if times >= 10 else f"{times:.1f} x" if times >= 0.95 else f"{times:.2f} x"


def verdict(row, results):
    """(target as text, "met" / "**not met**" / "")."""
    target, text = row.target, None
    if row.target_of:
        found = row.target_of(results)
        if not found:
            return "", ""
        target, text = found
    if target is None:
        return "", ""
    text = text or f"{'≥' if row.more_is_better else '≤'} {row.unit[0](target)}{row.unit[1]}"
    got = values(results, row.measure, FOREBAY, row.metric)
    if not got:
        return text, ""
    met = median(got) >= target if row.more_is_better else median(got) <= target
    return text, "met" if met else "**not met**"


def _failed(results, row, column):
    return any("error" in run for run in results["measures"].get(row.measure, {}).get(column, []))


def section(results, rows):
    rows = [row for row in rows if row.measure in results["measures"]]
    if not rows:
        return ""
    quorum = any(values(results, row.measure, QUORUM, row.metric) for row in rows)
    columns = [FOREBAY, CLASSIC] + ([QUORUM] if quorum else [])
    heads = {FOREBAY: "Forebay", CLASSIC: "RabbitMQ classic (no sync)" if quorum else "RabbitMQ", QUORUM: "RabbitMQ quorum (syncs)"}
    lines = ["| | target | " + " | ".join(heads[column] for column in columns) + " | better by | |", "|---|---|" + "---|" * (len(columns) + 2)]
    for row in rows:
        target, met = verdict(row, results)
        cells = [cell(row, values(results, row.measure, column, row.metric), _failed(results, row, column)) for column in columns]
        lines.append(f"| {row.what} | {target} | " + " | ".join(cells) + f" | {ratio(row, results)} | {met} |")
    return "\n".join(lines)


def floors(results):
    lines = ["| | floor | Forebay | of the floor | |", "|---|---|---|---|---|"]
    measured = None
    for row in SECTIONS["throughput"] + SECTIONS["latency"]:
        got = values(results, row.measure, FOREBAY, row.metric)
        if not row.what.startswith("…"):
            measured = row.what
        if row.floor is None or not got:
            continue
        show, unit = row.unit
        share = median(got) / row.floor if row.more_is_better else row.floor / median(got)
        what = f"{measured},{row.what[1:]}" if row.what.startswith("…") else row.what
        lines.append(f"| {what} | {show(row.floor)}{unit} | {show(median(got))}{unit} | {share * 100:.0f} % | {'**below half**' if share < 0.5 else ''} |")
    return "\n".join(lines) if len(lines) > 2 else ""


NAMES = {FOREBAY: "Forebay", CLASSIC: "classic", QUORUM: "quorum"}


def limit(measure, column, broker, own, cores):
    """Which process was the bottleneck, in words; `broker` and `own` are the cores that broker and generator used.

    Forebay and forebay-load have one busy thread each, so one core is their limit; PerfTest and RabbitMQ take what they get.
    """
    full = own + broker >= 0.85 * cores
    lean = not measure.startswith("perftest")
    if lean and own >= 0.9 and broker >= 0.9:
        return "both: each uses its core"
    if lean and own >= 0.9:
        return "the generator's thread"
    if full and own < 0.3 * (own + broker):
        return "the broker"
    if full and not lean and own >= broker:
        return "PerfTest"
    if full:
        return "the machine: broker and generator together"
    if column == FOREBAY and broker >= 0.9 or broker >= 0.7 * cores:
        return "the broker"
    return "neither: waiting (disk, window)"


def limits(results):
    lines = ["| load | broker | broker cores | generator cores | generator's share | limit |", "|---|---|---|---|---|---|"]
    for measure, columns in results["measures"].items():
        for column, name in NAMES.items():
            broker = values(results, measure, column, "broker_cores")
            if column not in columns or not broker:
                continue
            broker, own = median(broker), median(values(results, measure, column, "generator_cores"))
            share = 100 * own / (own + broker) if own + broker else 0
            what = limit(measure, column, broker, own, results["machine"]["cores"])
            lines.append(f"| {measure} | {name} | {broker:.2f} | {own:.2f} | {share:.0f} % | {what} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def about(results):
    m, v, s = results["machine"], results["versions"], results["setting"]
    flush = {name: values(results, "confirm-latency", DISK, name) for name in ("overwrite_p50_us", "overwrite_p99_us", "append_p50_us", "append_p99_us")}
    lines = [
        "| | |",
        "|---|---|",
        f"| date, command | {results['date']}, `{results['command']}`, {results['took_s'] / 60:.0f} minutes |",
        f"| machine | {m['cores']} cores of {m['model']}, {m['memory_gb']} GB, Linux {m['kernel']}, data on {m['file_system']} |",
        f"| other processes before and after | {m['busy_before_cores']:.2f} and {m.get('busy_after_cores', 0):.2f} cores |",
    ]
    if all(flush.values()):
        o50, o99, a50, a99 = (median(each) for each in flush.values())
        lines.append(f"| flush of the disk, p50 / p99 | {o50:.0f} / {o99:.0f} µs into space written before; {a50:.0f} / {a99:.0f} µs at the end of a growing file |")
    lines.append(f"| versions | {v['forebay']}; {v['rabbitmq'] or 'no RabbitMQ'}; {v['perftest'] or 'no PerfTest'}; LavinMQ {results['lavinmq']} |")
    lines.append(
        f"| amounts | {results['repeat']} repetitions (PerfTest, memory of connections and queues: {min(2, results['repeat'])}; RabbitMQ's backlog: 1); "
        f"{s['seconds']:g} s of load after {s['warm_up']:g} s of warm-up (PerfTest {s['perftest_seconds']} s after {s['perftest_warm_up']} s); "
        f"{s['connections']} connections, {s['queues']} queues, {s['backlog']} messages of backlog |"
    )
    if results["quick"]:
        lines.append("| **quick** | a trial of the script: no figure of it means anything |")
    return "\n".join(lines)


def scorecard(results):
    met, missed = 0, []
    for rows in SECTIONS.values():
        measured = None
        for row in rows:
            if not row.what.startswith("…"):
                measured = row.what
            target, verdict_text = verdict(row, results)
            met += verdict_text == "met"
            if "not" in verdict_text:
                what = f"{measured},{row.what[1:]}" if row.what.startswith("…") else row.what
                missed.append(f"- {what}: {target}, measured {cell(row, values(results, row.measure, FOREBAY, row.metric), False)}")
    text = f"{met} of {met + len(missed)} targets met."
    return text + (" Not met:\n\n" + "\n".join(missed) if missed else "")


def parts(results):
    """Named pieces of Markdown."""
    made = {"about": about(results), "scorecard": scorecard(results)}
    made.update((name, section(results, rows)) for name, rows in SECTIONS.items())
    made.update(limits=limits(results), floors=floors(results))
    return made


def insert(document, pieces):
    """Puts the pieces between their markers, `<!-- begin NAME -->` and `<!-- end NAME -->`."""
    for name, text in pieces.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin not in document or end not in document:
            raise ValueError(f"the document has no place for {name}")
        head, rest = document.split(begin, 1)
        document = f"{head}{begin}\n{text or 'Not measured in this run.'}\n{end}{rest.split(end, 1)[1]}"
    return document
