#!/usr/bin/env python3
"""Runs every client program against the brokers and compares what they saw. See README.md beside this file."""

import argparse
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
CACHE = REPO / ".cache"
LONGEST = "pika"  # of the programs, on RabbitMQ


# --------------------------------------------------------------------------------------------------------------- brokers


class RabbitMq:
    name = "rabbitmq"
    faults = ()
    script = REPO / "scripts" / "rabbitmq.sh"

    def __init__(self, directory):
        self.directory = directory
        extra = directory.with_suffix(".conf")
        # 3.10 allows 128 MiB by default; Forebay's level is 16 MiB.
        extra.write_text("max_message_size = 16777216\n")
        self.environment = dict(
            os.environ,
            RABBITMQ_DEFINITIONS=str(HERE / "rabbitmq-definitions.json"),
            RABBITMQ_EXTRA_CONF=str(extra),
            # No key of rabbitmq.conf switches the firehose on.
            RABBITMQ_EXTRA_ERL_ARGS='-rabbit trace_vhosts [<<"traced">>]',
        )

    def _script(self, command):
        done = subprocess.run([self.script, command, self.directory], env=self.environment, stdout=subprocess.PIPE, text=True, timeout=120)
        if done.returncode:
            raise SystemExit(f"run.py: scripts/rabbitmq.sh {command} failed")
        return done.stdout.strip()

    def start(self):
        self.uri = self._script("start")

    def stop(self):
        self._script("stop")

    def kill(self):
        self._script("kill")


class Forebay:
    name = "forebay"

    def __init__(self, directory, binary):
        self.directory = directory
        self.binary = binary
        self.port = 0
        self.process = None
        self.faults = []  # what a broker must not do whatever the clients do
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "forebay.toml"
        self.config.write_text((HERE / "forebay.toml").read_text())

    def start(self):
        command = [
            self.binary, "serve", "--config", self.config, "--data-dir", self.directory / "data",
            "--amqp", f"127.0.0.1:{self.port}", "--http", "127.0.0.1:0",
        ]  # fmt: skip
        log = open(self.directory / "log", "ab")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        line = self.process.stdout.readline().decode()
        if not line.startswith("forebay ready "):
            tail = (self.directory / "log").read_text()[-2000:]
            raise SystemExit(f"run.py: forebay serve said {line!r} and not that it is ready\n{tail}")
        told = dict(word.split("=", 1) for word in line.split()[2:])
        self.port = int(told["amqp"].rsplit(":", 1)[1])  # a restart comes back on the same port
        self.http = told["http"]
        self.uri = f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"

    def _end(self, with_signal):
        if self.process is None:
            return
        if self.process.poll() is not None:
            self.faults.append(f"forebay ended by itself with code {self.process.returncode}")
            print((self.directory / "log").read_text()[-2000:], file=sys.stderr)
        else:
            self.process.send_signal(with_signal)
            try:
                code = self.process.wait(30)
                if with_signal == signal.SIGTERM and code != 0:
                    self.faults.append(f"forebay ended with code {code} on SIGTERM")
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                self.faults.append("forebay did not stop within 30 s of SIGTERM and was killed")
        self.process.stdout.close()
        self.process = None

    def stop(self):
        self._end(signal.SIGTERM)

    def kill(self):
        self._end(signal.SIGKILL)


# -------------------------------------------------------------------------------------------------------------- programs


class Program:
    def __init__(self, descriptor):
        text = descriptor.read_text()
        python = CACHE / "venv" / "bin" / "python"
        places = {"cache": CACHE, "python": python, "here": descriptor.parent, "repo": REPO}
        for word, place in places.items():
            text = text.replace("{%s}" % word, str(place))
        fields = json.loads(text)
        self.name = fields["name"]
        self.directory = descriptor.parent
        self.build_steps = fields.get("build", [])
        self.command = fields["command"]
        self.timeout_s = fields.get("timeout_s", 120)

    def build(self):
        for step in self.build_steps:
            if subprocess.run(step, cwd=self.directory).returncode:
                return f"could not be built: {' '.join(step)}"
        return None

    def run(self, broker, pattern, verbose):
        """Runs against one broker. Returns (trace lines, problem or None)."""
        errors = tempfile.TemporaryFile()
        command = [*self.command, broker.uri] + ([pattern] if pattern else [])
        child = subprocess.Popen(command, cwd=self.directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        timed_out = threading.Event()

        def give_up():
            timed_out.set()
            child.kill()

        timer = threading.Timer(self.timeout_s, give_up)
        timer.start()
        lines, problem = [], None
        for text in child.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                print(f"  [{self.name} on {broker.name}] {text.rstrip()}", file=sys.stderr)
                continue
            if line.get("restart") or line.get("kill"):
                broker.stop() if line.get("restart") else broker.kill()
                broker.start()
                child.stdin.write("restarted\n")
                child.stdin.flush()
            else:
                lines.append(line)
        code = child.wait()
        timer.cancel()
        errors.seek(0)
        said = errors.read().decode(errors="replace")
        if timed_out.is_set():
            problem = f"was not finished after {self.timeout_s} s"
        elif code:
            problem = f"ended with code {code}"
        if said and (problem or verbose):
            print(f"--- {self.name} on {broker.name}, standard error:\n{said[-6000:]}", file=sys.stderr)
        return lines, problem


# --------------------------------------------------------------------------------------------------------------- judging


class KnownDifferences:
    def __init__(self, path):
        self.entries = json.loads(path.read_text()) if path.exists() else []
        for entry in self.entries:
            if not entry.get("reason"):
                raise SystemExit(f"run.py: a known difference without a reason: {entry}")
        self.used = set()

    def accepts(self, broker, program, line):
        accepted = False
        for number, entry in enumerate(self.entries):
            if (
                entry["broker"] == broker
                and fnmatch.fnmatchcase(program, entry.get("program", "*"))
                and fnmatch.fnmatchcase(line["case"], entry["case"])
                and entry.get("step") in (None, line["step"])
                and ("saw" not in entry or entry["saw"] == line["saw"])
                and ("text" not in entry or fnmatch.fnmatchcase(text_of(line["saw"]), entry["text"]))
            ):
                self.used.add(number)
                accepted = True
        return accepted

    def stale(self):
        return [entry for number, entry in enumerate(self.entries) if number not in self.used]


def text_of(saw):
    return str(saw.get("text") or saw.get("exception", "")) if isinstance(saw, dict) else ""


def by_case(lines):
    cases = {}
    for line in lines:
        cases.setdefault(line["case"], {})[line["step"]] = line
    return cases


def show(value):
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def judge(program, traces, known):
    """traces: broker name -> lines. Yields (case, list of complaints)."""
    cases = {broker: by_case(lines) for broker, lines in traces.items()}
    names = list(dict.fromkeys(name for per_case in cases.values() for name in per_case))
    for name in names:
        complaints = []
        steps = sorted({step for per_case in cases.values() for step in per_case.get(name, {})})
        for step in steps:
            lines = {broker: per_case.get(name, {}).get(step) for broker, per_case in cases.items()}
            accepted = False
            label = ""
            for broker, line in lines.items():
                if line is None:
                    continue
                label = line.get("what", "")
                fine = known.accepts(broker, program, line)
                accepted = accepted or fine
                if isinstance(line["saw"], dict) and "exception" in line["saw"] and not fine:
                    complaints.append(f"step {step}: {broker}: {line['saw']['exception']}")
                elif "want" in line and line["saw"] != line["want"] and not fine:
                    complaints.append(
                        f"step {step} ({label}): {broker}:\n        saw  {show(line['saw'])}\n        want {show(line['want'])}"
                    )
            if accepted or len(lines) < 2:
                continue
            missing = [broker for broker, line in lines.items() if line is None]
            if missing:
                if any(known.accepts(b, program, {"case": name, "step": step, "saw": None}) for b in missing):
                    continue
                complaints.append(f"step {step} ({label}): did not happen on {', '.join(missing)}")
                continue
            if len({show(line["saw"]) for line in lines.values()}) > 1:
                told = "".join(f"\n        {broker:8} {show(line['saw'])}" for broker, line in lines.items())
                complaints.append(f"step {step} ({label}): the brokers differ:{told}")
        yield name, complaints


# ------------------------------------------------------------------------------------------------------------ once again

AGAIN_CASES = 5  # more than a few cases that fail are no accident


def in_doubt(programs, traces, known):
    """The cases that failed though Forebay, judged by itself, saw what it should: [(program, case)]."""
    doubtful = []
    for program in programs:
        here = traces[program.name]
        alone = dict(judge(program.name, {broker: lines for broker, lines in here.items() if broker == Forebay.name}, known))
        for case, complaints in judge(program.name, here, known):
            if complaints and len(here) == 2 and not alone.get(case):
                doubtful.append((program, case))
    return doubtful


def ask_rabbitmq_again(doubtful, traces, directory, verbose):
    """Has RabbitMQ, started afresh and with nothing beside it, answer these cases once more.

    RabbitMQ is the measure here and not what is tested: on a busy machine it now and then lets a client wait
    longer than the client's patience. A difference that is real is seen again. Forebay is never asked twice.
    """
    broker = RabbitMq(directory)
    broker.start()
    try:
        for program, case in doubtful:
            print(f"  again on {broker.name}: {program.name} {case}", file=sys.stderr)
            lines, problem = program.run(broker, case, verbose)
            if problem is None:
                others = [line for line in traces[program.name][broker.name] if line["case"] != case]
                traces[program.name][broker.name] = others + [line for line in lines if line["case"] == case]
    finally:
        broker.stop()


# ------------------------------------------------------------------------------------------------------------------ main


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=["forebay", "rabbitmq", "both"], default="both")
    parser.add_argument("--forebay", default=str(REPO / "target" / "release" / "forebay"), help="path of the binary")
    parser.add_argument("--program", default="*", help="pattern of program names")
    parser.add_argument("--case", help="pattern of case names")
    parser.add_argument("--keep", action="store_true", help="keep the brokers' directories")
    parser.add_argument("-v", "--verbose", action="store_true", help="show passed cases and standard error")
    options = parser.parse_args()

    programs = [Program(path) for path in sorted(HERE.glob("*/*.program.json"))]
    programs = [program for program in programs if fnmatch.fnmatchcase(program.name, options.program)]
    if not programs:
        raise SystemExit(f"run.py: no program matches {options.program!r}")
    if options.broker != "rabbitmq" and not os.access(options.forebay, os.X_OK):
        raise SystemExit(f"run.py: there is no forebay binary at {options.forebay}; build it or give --forebay")

    passed, failed = 0, []
    runnable = []
    for program in programs:
        problem = program.build()
        if problem:
            failed.append(f"{program.name} {problem}")
        else:
            runnable.append(program)

    work = Path(tempfile.mkdtemp(prefix="forebay-conformance-"))
    # Two lanes. RabbitMQ takes twice as long, so the lane that is done with Forebay goes on with another RabbitMQ.
    ours = [Forebay(work / "forebay", Path(options.forebay).resolve())]
    theirs = [RabbitMq(work / name) for name in ("rabbitmq", "rabbitmq-2")]
    lanes = {"forebay": [ours], "rabbitmq": [theirs], "both": [theirs[:1], ours + theirs[1:]]}[options.broker]
    known = KnownDifferences(HERE / "known-differences.json")
    outcomes = {program.name: {} for program in runnable}  # program -> broker -> (lines, problem)
    trouble = []

    longest_first = sorted(runnable, key=lambda program: program.name != LONGEST)
    waiting = {Forebay.name: deque(runnable), RabbitMq.name: deque(longest_first)}

    def take(broker):
        """The next program for a broker of this name, or None: of two lanes that ask for the last one, one gets it."""
        try:
            return waiting[broker.name].popleft()
        except IndexError:
            return None

    def drive(lane):
        for broker in lane:
            if waiting[broker.name]:
                run_on(broker)

    def run_on(broker):
        try:
            broker.start()
            while program := take(broker):
                started = time.monotonic()
                outcomes[program.name][broker.name] = program.run(broker, options.case, options.verbose)
                print(f"  {program.name} on {broker.name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
        except BaseException as error:  # a broker that does not start must fail the run, not hang it
            trouble.append(f"{broker.name}: {error}")
        finally:
            broker.stop()

    threads = [threading.Thread(target=drive, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed += trouble + [fault for lane in lanes for broker in lane for fault in broker.faults]

    traces = {program.name: {} for program in runnable}
    for program in runnable:
        for broker, (lines, problem) in outcomes[program.name].items():
            if problem:
                failed.append(f"{program.name} on {broker} {problem}")
            if options.case:
                lines = [line for line in lines if fnmatch.fnmatchcase(line["case"], options.case)]
            traces[program.name][broker] = lines
    doubtful = in_doubt(runnable, traces, known)
    if 0 < len(doubtful) <= AGAIN_CASES:
        ask_rabbitmq_again(doubtful, traces, work / "rabbitmq-again", options.verbose)

    for program in runnable:
        for broker, lines in traces[program.name].items():
            kept = CACHE / "conformance" / broker / f"{program.name}.jsonl"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        for case, complaints in judge(program.name, traces[program.name], known):
            if complaints:
                failed.append(f"{program.name} {case}\n    " + "\n    ".join(complaints))
            else:
                passed += 1
                if options.verbose:
                    print(f"ok   {program.name} {case}")
    for text in failed:
        print(f"FAIL {text}")
    if options.broker == "both" and options.program == "*" and not options.case:
        for entry in known.stale():
            print(f"stale known difference: {show(entry)}")
    if options.keep:
        print(f"brokers' directories: {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
