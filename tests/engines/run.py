#!/usr/bin/env python3
"""One suite of the client over every engine, a cluster that is hurt, and the table of differences; what goes from one broker
to another, and logins over TLS.

    tests/engines/run.py [--forebay BINARY] [--engines BINARY] [--record] [--engine NAME]...

Starts each engine, runs `forebay-engines suite` on it, and on the cluster `forebay-engines adversity` after it; and the
modules migration and logins beside this file. A promise has
to hold on every engine. Where answers differ they make the table in docs/engines.md: with --record it is written, without it
has to be true as it stands. The last line counts.
"""
import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import logins
import migration

REPO = Path(__file__).resolve().parent.parent.parent
DOCUMENT = REPO / "docs" / "engines.md"
BEGIN, END = "<!-- differences: written by tests/engines/run.py --record -->", "<!-- end of differences -->"
SUITE_S, CLUSTER_S = 150, 400
LANES = 2  # the cluster waits for its nodes much of the time; the others go through beside it, one after another

spec = importlib.util.spec_from_file_location("conformance", REPO / "tests" / "conformance" / "run.py")
conformance = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conformance)

TITLES = {
    "embedded": "embedded",
    "serve": "`forebay serve`",
    "rabbitmq": "RabbitMQ 3.10, one node, classic queues",
    "cluster": "RabbitMQ 3.10, three nodes, quorum queues",
}
# What is tried beside the engines: nothing of it is in the table.
BESIDE = {
    "migration": ("moves and definitions, between Forebay and RabbitMQ", migration.run),
    "logins": ("logins at a RabbitMQ over TLS", logins.run),
}


def free_ports(count):
    """Ports that nobody has, held together so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return numbers


def lines_of(command, seconds, environment=None):
    """What a program printed, as objects; and what is wrong with it, or None."""
    child = subprocess.Popen(command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment)
    timer = threading.Timer(seconds, child.terminate)
    timer.start()
    try:
        lines = [json.loads(line) for line in child.stdout]
        code = child.wait()
    finally:
        timer.cancel()
    return lines, None if code == 0 else f"{Path(command[0]).name} ended with code {code}"


def suite(engines, uri):
    return lines_of([engines, "suite", *(["--uri", uri] if uri else [])], SUITE_S)


def on_broker(engines, broker):
    try:
        broker.start()
        lines, problem = suite(engines, broker.uri)
    finally:
        broker.stop()
    faults = list(broker.faults)
    return lines, "; ".join(faults + [problem] * bool(problem)) or None


def on_cluster(engines):
    both = '"$0" suite --uri "$AMQP_URI" --quorum && exec "$0" adversity'
    script = REPO / "scripts" / "rabbitmq-cluster.py"
    return lines_of([script, "run", "--seconds", str(CLUSTER_S), "--", "sh", "-c", both, engines], CLUSTER_S + 15)


def run(name, options, work):
    if name in BESIDE:
        return BESIDE[name][1](options, work / name, conformance, lines_of, free_ports)
    if name == "embedded":
        return suite(options.engines, None)
    if name == "serve":
        return on_broker(options.engines, conformance.Forebay(work / "forebay", Path(options.forebay).resolve()))
    if name == "rabbitmq":
        return on_broker(options.engines, conformance.RabbitMq(work / "rabbitmq"))
    return on_cluster(options.engines)


def table(answers):
    """The differences, and what is the same, as Markdown. answers: engine -> question -> answer."""
    questions = list(dict.fromkeys(question for told in answers.values() for question in told))
    rows = {question: [answers[engine].get(question, "not asked") for engine in TITLES] for question in questions}
    text = ["| | " + " | ".join(TITLES.values()) + " |", "|---" * (len(TITLES) + 1) + "|"]
    text += [f"| {question} | " + " | ".join(row) + " |" for question, row in rows.items() if len(set(row)) > 1]
    same = [f"- {question}: {row[0]}" for question, row in rows.items() if len(set(row)) == 1]
    text += ["", "The same everywhere:", "", *same] if same else []
    return "\n".join(text)


def document(text, found, record):
    """Puts the table into the document, or says that it is another one."""
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    if record:
        DOCUMENT.write_text(f"{before}{BEGIN}\n{found}\n{END}{after}")
    elif old.strip() != found.strip():
        return f"docs/engines.md does not tell what was found; run with --record and look at the difference. Found:\n{found}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target"))
    parser.add_argument("--forebay", default=str(target / "release" / "forebay"), help="the broker's binary")
    parser.add_argument("--engines", default=str(target / "debug" / "forebay-engines"), help="the suite's binary")
    parser.add_argument("--engine", action="append", choices=[*TITLES, *BESIDE], help="only this one; then the table is not looked at")
    parser.add_argument("--record", action="store_true", help="write the table of differences")
    options = parser.parse_args()
    options.engines, options.forebay = (str(Path(path).resolve()) for path in (options.engines, options.forebay))
    passed, failed, answers = 0, [], {}
    chosen = options.engine or [*TITLES, *BESIDE]
    with tempfile.TemporaryDirectory(prefix="forebay-engines-") as work, ThreadPoolExecutor(LANES) as lanes:
        longest_first = sorted(chosen, key=lambda name: name != "cluster")
        tries = {name: lanes.submit(run, name, options, Path(work)) for name in longest_first}
        for name in chosen:
            lines, problem = tries[name].result()
            print(f"--- {TITLES.get(name) or BESIDE[name][0]}: {len(lines)} cases", flush=True)
            if problem or not lines:
                failed.append(f"{name}: {problem or 'nothing was tried'}")
            answers[name] = {}
            for line in lines:
                answers[name].update(line["saw"])
                if line["failed"]:
                    failed.append(f"{name}: {line['case']}: {line['failed']}\n     promised: {line['promise']}")
                else:
                    passed += 1
    if not options.engine:
        stale = document(DOCUMENT.read_text(), table(answers), options.record)
        passed += stale is None
        failed += [stale] if stale else []
    for text in failed:
        print(f"FAIL {text}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
