"""The two load generators: ours (forebay-load, one lean thread) and RabbitMQ's PerfTest (neutral, a JVM).

Both give the same flat dictionary: rates in messages a second, CPU in cores and microseconds a message.
"""
import json
import os
import queue
import re
import subprocess
import threading
import time
from pathlib import Path

import process

REPO = Path(__file__).resolve().parent.parent
PERFTEST = str(REPO / "scripts" / "perftest.sh")


class Failed(Exception):
    """The generator ended with an error or did not end."""


def lean(programs, broker, options, seconds, warm_up, limit_s=None):
    """Runs forebay-load against a broker."""
    arguments = [os.path.join(programs, "forebay-load"), "--url", broker.url, "--broker-pid", str(broker.pid), "--json"]
    arguments += ["--seconds", str(seconds), "--warm-up", str(warm_up), *options]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
    try:
        run = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=limit_s or seconds + warm_up + 60)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"forebay-load did not end within {error.timeout:.0f} s") from error
    if run.returncode != 0:
        raise Failed(f"forebay-load: {run.stderr.strip()[-300:]}")
    report = json.loads(run.stdout)
    result = {
        "seconds": report["seconds"],
        "published_per_s": report["published_per_s"],
        "consumed_per_s": report["consumed_per_s"],
        "variation": report["variation"],
        "generator_cores": report["generator_cores"],
        "broker_cores": report["broker_cores"],
        "broker_cpu_us": report["broker_cpu_us_per_message"],
        "broker_rss_mb": (report["broker_bytes_max"] or 0) / 1e6,
        "end_to_end_p50_ms": report["end_to_end"]["p50_us"] / 1e3,
        "end_to_end_p99_ms": report["end_to_end"]["p99_us"] / 1e3,
    }
    if report["plan"]["window"] != "none":
        result["confirmed_per_s"] = report["confirmed_per_s"]
        result["confirm_p50_ms"] = report["confirm"]["p50_us"] / 1e3
        result["confirm_p99_ms"] = report["confirm"]["p99_us"] / 1e3
        result["rejected"] = report["rejected"]
    return result


def _number(text):
    return float(text.replace(",", ""))


LINE = re.compile(r"time ([\d.,]+) ?s")
RATE = re.compile(r"\b(sent|received|confirmed): ([\d.,]+) msg/s")
# Where the locale has no µ, Java prints something else there.
LATENCY = re.compile(r"(consumer|confirm) latency: ([\d.,/]+) (\S+)")


def parse_line(line):
    """One second of PerfTest's output: {"time": s, "sent": /s, "received": /s, "confirm_p50_ms": ..., ...} or None.

    >>> parse_line("id: test-1, time 3.000 s, sent: 100 msg/s, received: 90 msg/s, min/median/75th/95th/99th consumer latency: 1/2/3/4/5 ms")
    {'time': 3.0, 'sent': 100.0, 'received': 90.0, 'end_to_end_p50_ms': 2.0, 'end_to_end_p99_ms': 5.0}
    """
    at = LINE.search(line)
    if not at or "msg/s" not in line:
        return None
    result = {"time": _number(at[1])}
    result.update((kind, _number(rate)) for kind, rate in RATE.findall(line))
    for kind, values, unit in LATENCY.findall(line):
        numbers = [_number(value) * (1 if unit.startswith("ms") else 1e-3) for value in values.split("/")]
        name = "end_to_end" if kind == "consumer" else "confirm"
        if len(numbers) == 5:
            result[f"{name}_p50_ms"], result[f"{name}_p99_ms"] = numbers[1], numbers[4]
    return result


def perftest(broker, options, seconds, warm_up):
    """Runs PerfTest against a broker. Its first seconds (the JVM compiling itself) are left out."""
    arguments = [PERFTEST, "--uri", broker.url, "--time", str(int(seconds + warm_up) + 1), *options]
    # The script replaces itself by Java, so its process id is Java's.
    java = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    lines = queue.Queue()

    def read():
        for line in java.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + seconds + warm_up + 60
    samples, printed = [], []
    try:
        while (line := lines.get(timeout=max(0.1, deadline - time.monotonic()))) is not None:
            printed.append(line.strip())
            sample = parse_line(line)
            if sample:
                try:
                    sample["broker_cpu"], sample["java_cpu"] = process.cpu_seconds(broker.pid), process.cpu_seconds(java.pid)
                except OSError:
                    continue
                samples.append(sample)
        java.wait(30)
    except (queue.Empty, subprocess.TimeoutExpired) as error:
        raise Failed("PerfTest did not end") from error
    finally:
        if java.poll() is None:
            java.kill()
            java.wait()
    first = next((index for index, sample in enumerate(samples) if sample["time"] >= warm_up), len(samples))
    # Each line tells of the second before it; the first that counts serves as the start of the clock and of the CPU counters.
    # The last one stands in the middle of closing.
    measured = samples[first + 1 : -1] or samples[first + 1 :]
    if java.returncode != 0 or not measured:
        raise Failed(f"PerfTest: {' | '.join(printed[-3:])[-300:]}")
    start, end = samples[first], measured[-1]
    took = end["time"] - start["time"]

    def mean(name):
        before, total = start["time"], 0.0
        for sample in measured:
            total += sample.get(name, 0.0) * (sample["time"] - before)
            before = sample["time"]
        return total / took

    sent, received = mean("sent"), mean("received")
    broker_cores = (end["broker_cpu"] - start["broker_cpu"]) / took
    result = {
        "seconds": took,
        "published_per_s": sent,
        "consumed_per_s": received,
        "broker_cores": broker_cores,
        "generator_cores": (end["java_cpu"] - start["java_cpu"]) / took,
        "broker_cpu_us": broker_cores * 1e6 / max(sent, received, 1.0),
    }
    for name in ("confirm_p50_ms", "confirm_p99_ms", "end_to_end_p50_ms", "end_to_end_p99_ms"):
        values = sorted(sample[name] for sample in measured if name in sample)
        if values:
            result[name] = values[len(values) // 2]
    return result


def perftest_version():
    """Fetches PerfTest if needed; its version, or None where it cannot run."""
    try:
        if subprocess.run([PERFTEST, "--fetch-only"], capture_output=True, timeout=300).returncode != 0:
            return None
        shown = subprocess.run([PERFTEST, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = re.sub(r"\x1b\[[\d;]*m", "", shown.stdout)
    perf, java = re.search(r"Perf Test ([\d.]+)", text), re.search(r"Java version: ([\d.]+)", text)
    return f"PerfTest {perf[1] if perf else '?'} on Java {java[1] if java else '?'}"
