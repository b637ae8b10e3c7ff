#!/usr/bin/env python3
"""Runs what README and guide tell people to type, as written.

    tests/docs/run.py --forebay target/release/forebay

What counts as a test, in the documents listed below:

    ```python                             every such block runs against a fresh broker
    <!-- test --> then ```sh              runs with `forebay` on the path, against that broker
    <!-- test --> then ```toml            `forebay serve` starts with it
    <!-- celery --> then ```python, ```sh a module with tasks and its worker's command: celery_worker.py
    <!-- from FILE --> then ```rust       stands word for word in FILE, which the compiler has seen

The broker listens on a free port. Shell commands learn of it by FOREBAY_URL and FOREBAY_HTTP_URL, pika by its default port, so the
texts need no change. The last line is `N passed, N failed`.
"""
import argparse
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import celery_worker
import report

REPO = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = ["README.md", "docs/guide.md", "docs/watching.md", "docs/moving.md", "docs/programs.md", "docs/bench.md"]
PATIENCE_S = 30
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^>]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


class Broker:
    """`forebay serve` in a directory of its own."""

    def __init__(self, binary, directory, arguments):
        environment = {**os.environ, "FOREBAY_AMQP": "127.0.0.1:0", "FOREBAY_HTTP": "127.0.0.1:0"}
        environment["FOREBAY_DATA_DIR"] = str(Path(directory) / "data")
        self.log = open(Path(directory) / "log", "w+")
        self.process = subprocess.Popen(
            [binary, "serve", *arguments], cwd=directory, env=environment,
            stdout=subprocess.PIPE, stderr=self.log, text=True,
        )
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline() if ready else ""
        match = re.match(r"forebay ready amqp=127\.0\.0\.1:(\d+) http=(\S+) ", line)
        if not match:
            self.process.kill()
            self.log.seek(0)
            raise RuntimeError(f"forebay serve was not ready: {line!r}\n{self.log.read()}")
        self.port = int(match[1])
        self.http = match[2]

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if failure is None:
            self.stop()
        else:
            # What failed is told already; no broker stays behind.
            self.process.kill()
            self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        if code:
            self.log.seek(0)
            raise RuntimeError(f"forebay serve ended with code {code}\n{self.log.read()}")


def run(command, **options):
    """Runs a command; its output if it succeeds, else an error with the output."""
    done = subprocess.run(
        command, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode:
        raise RuntimeError(f"ended with code {done.returncode}\n{done.stdout}")
    return done.stdout


def run_python(text, binary, directory):
    with Broker(binary, directory, []) as broker:
        program = f"import pika\npika.connection.Parameters.DEFAULT_PORT = {broker.port}\n{text}"
        run([sys.executable, "-c", program], cwd=directory)


def run_shell(text, binary, directory):
    with Broker(binary, directory, []) as broker:
        environment = {
            **os.environ,
            "PATH": f"{Path(binary).parent}:{os.environ['PATH']}",
            "FOREBAY_URL": f"amqp://guest:guest@127.0.0.1:{broker.port}/%2f",
            "FOREBAY_HTTP_URL": broker.http,
        }
        run(["bash", "-euo", "pipefail", "-c", text], cwd=directory, env=environment)


def run_celery(document, binary, directory):
    with Broker(binary, directory, []) as broker:
        celery_worker.check(document, broker, directory)


def run_toml(text, binary, directory):
    (Path(directory) / "forebay.toml").write_text(text)
    Broker(binary, directory, ["--config", "forebay.toml"]).stop()


def check_excerpt(text, name):
    source = (REPO / name).read_text()
    # What stands in a documentation comment is compared without its slashes.
    plain = re.sub(r"^\s*//[/!] ?", "", source, flags=re.MULTILINE)
    wanted = "\n".join(line.strip() for line in text.strip().split("\n"))
    have = ["\n".join(line.strip() for line in text.split("\n")) for text in (source, plain)]
    if not any(wanted in text for text in have):
        raise RuntimeError(f"these lines do not stand in {name} any more:\n{text}")


def tests(binary):
    """(name, function of a directory) for each block that is a test."""
    for document in DOCUMENTS:
        content = (REPO / document).read_text()
        for match in BLOCK.finditer(content):
            mark, language, text = match["mark"] or "", match["language"], match["text"]
            name = f"{document}:{content[: match.start('language')].count(chr(10)) + 1} {language}"
            if language == "python" and mark == "celery":
                yield name, lambda directory, content=content: run_celery(content, binary, directory)
            elif language == "python":
                yield name, lambda directory, text=text: run_python(text, binary, directory)
            elif language == "sh" and mark == "test":
                yield name, lambda directory, text=text: run_shell(text, binary, directory)
            elif language == "toml" and mark == "test":
                yield name, lambda directory, text=text: run_toml(text, binary, directory)
            elif language == "rust" and mark.startswith("from "):
                yield name, lambda _, text=text, source=mark[5:]: check_excerpt(text, source)
            elif language == "rust":
                yield name, lambda _: (_ for _ in ()).throw(RuntimeError("a Rust block must say where it is from"))
    yield "report of `forebay bench` in Chromium", lambda directory: report.check(binary, directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", default=str(REPO / "target" / "release" / "forebay"), help="path of the binary")
    binary = str(Path(parser.parse_args().forebay).resolve())
    passed = failed = 0
    for name, test in tests(binary):
        with tempfile.TemporaryDirectory(prefix="forebay-docs-") as directory:
            try:
                test(directory)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                failed += 1
                print(f"FAIL {name}\n     {error}")
            else:
                passed += 1
                print(f"ok   {name}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
