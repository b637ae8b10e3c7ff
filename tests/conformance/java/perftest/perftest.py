#!/usr/bin/env python3
"""RabbitMQ PerfTest with many sets of options: each must send and receive what it should, exit with 0 and report no error.

Where a message count is given (-C each producer, -D each consumer), PerfTest ends by itself only after all of them went through.
"""

import fnmatch
import json
import os
import re
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPO = Path(__file__).resolve().parents[4]
LIMIT_S = 25
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m"

# name: options, what must be above 0
CASES = {
    "defaults": ("-C 20000 -D 20000", "sent received"),
    "confirms": ("-c 100 -f persistent -C 5000 -D 5000", "sent received confirmed"),
    "confirm-one-by-one": ("-c 1 -C 300 -D 300", "sent received confirmed"),
    "multi-ack": ("-A 100 -q 300 -C 20000 -D 20000", "sent received"),
    "qos-one": ("-q 1 -C 2000 -D 2000", "sent received"),
    "global-qos": ("-Q 10 -C 5000 -D 5000", "sent received"),
    "auto-ack": ("--autoack -C 20000 -D 20000", "sent received"),
    "named-queue": ("-u {own} -ad true -f persistent -C 2000 -D 2000", "sent received"),
    "queue-pattern": ("-qp {own}-%d -qpf 1 -qpt 20 -x 20 -y 20 -C 200 -D 200", "sent received"),
    "channels-a-connection": ("-x 2 -X 4 -y 2 -Y 4 -C 500 -D 500", "sent received"),
    "consumer-latency": ("-L 1000 -q 5 -C 400 -D 400", "sent received"),
    "polling": ("--polling -C 1500 -D 1500", "sent received"),
    "polling-at-intervals": ("--polling -pi 2 --autoack -C 200 -D 200", "sent received"),
    "fanout": ("-t fanout -e {own} -y 3 -C 2000 -D 2000", "sent received"),
    "topic": ("-t topic -e {own} -k one.two.three -C 2000 -D 2000", "sent received"),
    "headers": ("-t headers -e {own} -C 2000 -D 2000", "sent received"),
    "exclusive-queue": ("-E -t fanout -e {own} -C 2000 -D 2000", "sent received"),
    "rate-limited": ("-r 500 -z 4", "sent received paced"),
    "mandatory": ("-f mandatory -C 2000 -D 2000", "sent received"),
    "mandatory-returned": ("-f mandatory -y 0 -k {own} -c 10 -r 500 -z 3", "sent confirmed returned"),
    "transactions": ("-m 10 -n 10 -C 1000 -D 1000", "sent received"),
    "large-messages": ("-s 300000 -C 200 -D 200", "sent received"),
    "empty-messages": ("-s 12 -C 5000 -D 5000", "sent received"),
    "nack-without-requeue": ("--nack --requeue false -q 100 -C 3000 -D 3000", "sent received"),
    "properties": ("-mp priority=5,correlationId=c,custom=header -f persistent -C 2000 -D 2000", "sent received"),
    "heartbeat": ("-b 1 -r 20 -z 4", "sent received"),
    "small-frames": ("-M 4096 -s 20000 -C 500 -D 500", "sent received"),
    "exit-when-empty": ("-C 3000 -ew empty -z 10", "sent received"),
}

printing = threading.Lock()
# What says that something went wrong; the summary's own words do not.
ERROR = re.compile(r"exception|error|refused|shutdown|failed|closed", re.IGNORECASE)


def average(kind, text):
    found = re.findall(rf"{kind} rate avg: (\d+) msg/s", text)
    return int(found[-1]) if found else 0


def samples(kind, text):
    """The one-second samples."""
    return [float(number) for number in re.findall(rf"{kind}: ([\d.]+) msg/s", text)]


def run(uri, name):
    options, wanted = CASES[name]
    command = [REPO / "scripts" / "perftest.sh", "--uri", uri, "--id", name, *options.format(own=f"perftest.{name}").split()]
    environment = dict(os.environ, JAVA_TOOL_OPTIONS=SHORT)
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        text, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        text, code = (late.stdout or b"").decode(errors="replace"), f"not finished after {LIMIT_S} s"
    seen = {
        # It starts counting anew when the last producer and consumer have started: a short run may have ended by then.
        "sent": average("sending", text) > 0 or "Producer reached message limit" in text,
        "received": average("receiving", text) > 0 or "Consumer reached message limit" in text,
        "confirmed": "confirm latency" in text,
        "returned": any(samples("returned", text)),
        # It makes up for its own slow start in the first seconds.
        "paced": 400 <= statistics.median(samples("sent", text) or [0]) <= 600,
    }
    wrong = [line.strip() for line in text.splitlines() if ERROR.search(line) and "JAVA_TOOL_OPTIONS" not in line][:5]
    saw = {"exit": code, "errors": wrong, **{word: seen[word] for word in wanted.split()}}
    want = {"exit": 0, "errors": [], **{word: True for word in wanted.split()}}
    with printing:
        print(json.dumps({"case": f"perftest.{name}", "step": 1, "what": options, "saw": saw, "want": want}), flush=True)
        if saw != want:
            print(f"perftest.{name}:\n{text}", file=sys.stderr)


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: perftest.py AMQP-URI [CASE-PATTERN]")
    pattern = sys.argv[2] if len(sys.argv) > 2 else "*"
    chosen = [name for name in CASES if fnmatch.fnmatchcase(f"perftest.{name}", pattern)]
    # Most of a short run is the start of the Java machine, so two at a time.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: run(sys.argv[1], name), chosen))


main()
