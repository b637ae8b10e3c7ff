#!/usr/bin/env python3
"""Windows with RabbitMQ's PerfTest instead of our generator: what it says of the knee, and of the brokers beside each other.

    bench/neutral.py --programs target/release               20 publishers, 10 queues, 20 consumers; Forebay, RabbitMQ classic and quorum
    bench/neutral.py --windows 4,16,59,256 --repeat 3        windows of a publisher, for instance the knee that `forebay bench` found

PerfTest tunes nothing by itself, so its knee is to be compared with the one that `forebay bench run stress-2 --knee` finds.
"""
import argparse
import os
import random
import statistics
import sys
from pathlib import Path

import broker_rabbitmq
import generator
import measures

REPO = Path(__file__).resolve().parent.parent
SHAPE = [*measures.PERFTEST_PERSISTENT, *measures.PERFTEST_QUEUES, "--producers", "20", "--consumers", "20"]
WINDOWS = "1,4,16,64,256,1024"
# From this share of the best rate on, a rate is as good as the best (docs/bench.md).
ENOUGH = 0.95


def knee(points):
    """The best rate, and the least window with nearly all of it: {window: [(rate, p99 in ms), ...]}.

    >>> knee({1: [(10, 1)], 16: [(96, 2), (98, 3), (97, 2)], 64: [(100, 9)]})
    (100, 16)
    """
    rates = {window: statistics.median(rate for rate, _ in runs) for window, runs in points.items() if runs}
    best = max(rates.values())
    return best, min(window for window, rate in rates.items() if rate >= ENOUGH * best)


def measured(setting, columns, windows, repeat):
    """Every window on every broker, in any order, again and again."""
    points = {column: {window: [] for window in windows} for column in columns}
    order = [(column, window) for column in columns for window in windows]
    for repetition in range(repeat):
        random.Random(repetition).shuffle(order)
        for column, window in order:
            result = measures.neutral(*SHAPE, "--confirm", str(window))(setting, column)
            rate, p99_ms = result["consumed_per_s"], result["end_to_end_p99_ms"]
            print(f"{repetition + 1}/{repeat} {column}, window {window}: {rate:.0f}/s, p99 {p99_ms:.1f} ms", file=sys.stderr, flush=True)
            points[column][window].append((rate, p99_ms))
    return points


def table(points):
    lines, bests = [], {}
    for column, windows in points.items():
        best, at = knee(windows)
        bests[column] = best
        knee_p99_ms = statistics.median(p99_ms for _, p99_ms in windows[at])
        lines += [f"\n{column}", "  window   consumed/s   of the best   p99 ms   of the knee's"]
        for window, runs in sorted(windows.items()):
            rate, p99_ms = (statistics.median(values) for values in zip(*runs, strict=True))
            mark = "  knee" if window == at else ""
            lines.append(f"  {window:>6} {rate:>12.0f} {100 * rate / best:>11.0f} % {p99_ms:>8.1f} {p99_ms / knee_p99_ms:>13.2f} x{mark}")
    ours = bests.get(measures.FOREBAY)
    lines += [f"\nForebay's best rate is {ours / best:.2f} times that of {column}" for column, best in bests.items() if column != measures.FOREBAY and ours]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", default=WINDOWS, help="unconfirmed messages of a publisher [%(default)s]")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each [%(default)s]")
    parser.add_argument("--seconds", type=float, default=10, help="of each, after 3 for the Java machine [%(default)s]")
    parser.add_argument("--only", action="append", choices=measures.PERSISTENT, help="brokers; all otherwise. May be repeated")
    parser.add_argument("--programs", help="directory of the binaries [target/release]")
    parser.add_argument("--dir", help="where the brokers keep their data: their disk is what is measured [.cache/bench]")
    options = parser.parse_args()
    try:
        windows = sorted({int(window) for window in options.windows.split(",")})
    except ValueError:
        parser.error(f"--windows: {options.windows!r} are no numbers")
    if not windows or windows[0] < 1 or options.repeat < 1 or options.seconds <= 0:
        parser.error("windows, runs and seconds are above 0")
    if not generator.perftest_version():
        sys.exit("neutral.py: PerfTest cannot run here; it needs java and mvn")
    target = os.environ.get("CARGO_TARGET_DIR", str(REPO / "target"))
    directory = Path(options.dir or REPO / ".cache" / "bench").absolute()
    directory.mkdir(parents=True, exist_ok=True)
    setting = measures.Setting(
        programs=os.path.abspath(options.programs or os.path.join(target, "release")), directory=str(directory),
        seconds=options.seconds, warm_up=3.0, connections=0, queues=0, backlog=0, perftest_seconds=options.seconds, perftest_warm_up=3,
    )  # fmt: skip
    columns = options.only or [column for column in measures.PERSISTENT if column == measures.FOREBAY or broker_rabbitmq.installed()]
    try:
        print(table(measured(setting, columns, windows, options.repeat)))
    except generator.Failed as error:
        sys.exit(f"neutral.py: {error}")


if __name__ == "__main__":
    main()
