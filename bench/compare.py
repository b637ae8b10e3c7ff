#!/usr/bin/env python3
"""Forebay and RabbitMQ side by side on this machine, in one run.

    bench/compare.py                    everything, about 20 minutes; prints tables, writes bench/results/latest.json
    bench/compare.py --quick            each measure once and briefly: does everything work here? (no figures to quote)
    bench/compare.py --only NAME        only measures whose name contains NAME; may be repeated
    bench/compare.py --record           and writes docs/benchmarks.json and the tables in docs/benchmarks.md
    bench/compare.py --from FILE        runs nothing, makes tables from an earlier run's JSON (also with --record and --add)

`make bench` builds the programs first. Run it on a machine that does nothing else.
"""
import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import broker_forebay
import broker_rabbitmq
import generator
import machine
import measures
import process
import table

REPO = Path(__file__).resolve().parent.parent
LATEST = REPO / "bench" / "results" / "latest.json"
RECORDED = REPO / "docs" / "benchmarks.json"
DOCUMENT = REPO / "docs" / "benchmarks.md"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs, one repetition")
    parser.add_argument("--only", action="append", metavar="NAME", help=", ".join(each.name for each in measures.MEASURES))
    parser.add_argument("--seconds", type=float, help="seconds of a load that are measured (4; quick: 1)")
    parser.add_argument("--repeat", type=int, help="repetitions (3; quick: 1)")
    parser.add_argument("--programs", help="directory of forebay and forebay-load (default: the release build)")
    parser.add_argument("--dir", help="where the brokers' data go: their disk is what is measured (default: .cache/bench)")
    parser.add_argument("--record", action="store_true", help="write the results into docs/")
    parser.add_argument("--add", metavar="FILE", help="with --from: further repetitions, from another run's JSON")
    parser.add_argument("--from", dest="from_file", metavar="FILE", help="tables from earlier results")
    options = parser.parse_args()
    if options.record and not options.from_file and (options.quick or options.only):
        parser.error("--record wants all measures in full length, or --from FILE")
    return options


def add(results, more):
    """Repetitions may come from several calls, as long as their settings are the same."""
    if results["setting"] != more["setting"]:
        sys.exit("compare.py: the two files were not measured with the same settings")
    for name, columns in more["measures"].items():
        for column, runs in columns.items():
            results["measures"].setdefault(name, {}).setdefault(column, []).extend(runs)
    results["command"] += " + " + more["command"]
    results["versions"]["forebay"] += " and " + more["versions"]["forebay"]
    results["took_s"] += more["took_s"]


def setting_of(options):
    target = os.environ.get("CARGO_TARGET_DIR", str(REPO / "target"))
    directory = Path(options.dir or REPO / ".cache" / "bench").absolute()
    directory.mkdir(parents=True, exist_ok=True)
    files = process.raise_open_files()
    quick = options.quick
    seconds = options.seconds or (1.0 if quick else 4.0)
    return measures.Setting(
        programs=os.path.abspath(options.programs or os.path.join(target, "release")),
        directory=str(directory),
        seconds=seconds,
        warm_up=0.5 if quick else 3.0,  # Forebay writes its spare segments, RabbitMQ compiles
        connections=min(200 if quick else 5000, files - 500),
        queues=500 if quick else 10_000,
        backlog=20_000 if quick else 1_000_000,
        perftest_seconds=2 if quick else 5,
        perftest_warm_up=1 if quick else 3,
    )


def commit():
    """Of the working copy; `-dirty` if files differ from it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=REPO, capture_output=True, text=True, check=True
        )
        return described.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def summary(result):
    names = ("consumed_per_s", "broker_cpu_us", "confirm_p50_ms", "confirm_p99_ms", "generator_cores", "overwrite_p50_us", "append_p50_us",
             "start_s", "empty_mb", "connection_kb", "queue_kb", "fill_per_s", "drain_per_s", "rss_mb", "restart_s", "restart_after_kill_s")  # fmt: skip
    return ", ".join(f"{name} {result[name]:.4g}" for name in names if name in result) or result.get("error", "")


def run_all(options):
    setting = setting_of(options)
    chosen = [each for each in measures.MEASURES if not options.only or any(name in each.name for name in options.only)]
    if not chosen:
        sys.exit("compare.py: no measure has such a name")
    for program in ("forebay", "forebay-load"):
        if not os.access(os.path.join(setting.programs, program), os.X_OK):
            sys.exit(f"compare.py: there is no {program} to run; `make bench` builds it, or say --programs DIR")
    rabbitmq = broker_rabbitmq.installed()
    perftest = generator.perftest_version() if any(each.name.startswith("perftest") for each in chosen) else None
    if not rabbitmq:
        say("RabbitMQ is not installed (scripts/setup-tests.sh does it): Forebay is measured alone")
    if any(each.name.startswith("perftest") for each in chosen) and not perftest:
        say("PerfTest cannot run here (it needs java and mvn): its measures are left out")
        chosen = [each for each in chosen if not each.name.startswith("perftest")]
    repeat = options.repeat or (1 if options.quick else 3)
    flags = [flag for flag, given in (("--quick", options.quick), ("--record", options.record)) if given]
    flags += [f"--only {name}" for name in options.only or ()]
    flags += [f"--seconds {options.seconds:g}"] if options.seconds else []
    flags += [f"--repeat {options.repeat}"] if options.repeat else []
    results = {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["bench/compare.py", *flags]),
        "quick": options.quick,
        "repeat": repeat,
        "setting": {name: value for name, value in vars(setting).items() if name not in ("programs", "directory")},
        "machine": machine.describe(setting.directory),
        "versions": {
            "forebay": f"{broker_forebay.version(setting.programs)}, commit {commit()}",
            "rabbitmq": broker_rabbitmq.version() if rabbitmq else None,
            "perftest": perftest,
            "python": platform.python_version(),
        },
        # Debian has no package of it; a column that nobody here could run is worth nothing.
        "lavinmq": "not installed" if not shutil.which("lavinmq") else "installed, not measured: this run has no column for it",
        "measures": {},
    }
    results["machine"]["busy_before_cores"] = busy = machine.busy_cores()
    if busy > 0.1:
        say(f"WARNING: {busy:.2f} cores are busy with something else; these will be figures of that, too")
    # The whole list again and again, not each measure three times in a row: a machine that changes its speed
    # during the run then changes it for everybody, and shows in the spread.
    began = time.monotonic()
    for repetition in range(repeat):
        for measure in chosen:
            if repetition >= measure.repeat_max:
                continue
            columns = [column for column in measure.columns if rabbitmq or column in (measures.FOREBAY, measures.DISK)]
            if repetition % 2:
                columns.reverse()
            for column in columns:
                if repetition and column in measure.only_once:
                    continue
                started = time.monotonic()
                try:
                    result = measure.run(setting, column)
                except Exception as error:  # noqa: BLE001 (one broker that fails must not hide the others' figures)
                    result = {"error": f"{type(error).__name__}: {error}".replace(str(REPO), "").replace(setting.directory, "")}
                results["measures"].setdefault(measure.name, {}).setdefault(column, []).append(result)
                say(f"{repetition + 1}/{repeat} {measure.name} {column} ({time.monotonic() - started:.0f} s): {summary(result)}")
            results["took_s"] = round(time.monotonic() - began)
            save(LATEST, results)
    results["machine"]["busy_after_cores"] = machine.busy_cores()
    save(LATEST, results)
    return results


def save(path, results):
    def rounded(value):
        if isinstance(value, dict):
            return {key: rounded(each) for key, each in value.items()}
        if isinstance(value, list):
            return [rounded(each) for each in value]
        return float(f"{value:.5g}") if isinstance(value, float) else value

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rounded(results), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    options = arguments()
    # Ended from outside, the brokers that we started end with us: `with` blocks run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("compare.py: ended by a signal"))
    results = json.loads(Path(options.from_file).read_text(encoding="utf-8")) if options.from_file else run_all(options)
    if options.add:
        add(results, json.loads(Path(options.add).read_text(encoding="utf-8")))
    parts = table.parts(results)
    for title, text in ((title, text) for title, text in parts.items() if text):
        print(f"\n== {title}\n\n{text}")
    if options.record:
        save(RECORDED, results)
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(table.insert(document, parts), encoding="utf-8")
        print(f"\nrecorded in {RECORDED.relative_to(REPO)} and {DOCUMENT.relative_to(REPO)}")
    failed = sum("error" in run for columns in results["measures"].values() for runs in columns.values() for run in runs)
    if failed:
        sys.exit(f"compare.py: {failed} runs failed")


if __name__ == "__main__":
    main()
