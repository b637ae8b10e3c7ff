"""The guide's Celery worker, as written: it does a task, on a fresh broker, who asked for it has the result, and `inspect` an answer.

    <!-- celery -->
    ```python      the module `tasks`; its `localhost` is the broker of the test
    ```sh          the worker's command
"""
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 30
BLOCK = re.compile(r"<!-- celery -->\n```python\n(?P<module>.*?)```.*?```sh\n(?P<command>[^\n]*)\n", re.DOTALL)


def check(document, broker, directory):
    """The worker says that the task has succeeded, and its result comes."""
    match = BLOCK.search(document)
    if not match:
        raise RuntimeError("there is no <!-- celery --> block with a module and a command")
    (Path(directory) / "tasks.py").write_text(match["module"].replace("localhost", f"127.0.0.1:{broker.port}"))
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    worker = subprocess.Popen(
        ["bash", "-c", f"exec {match['command']} --loglevel info --pool solo"], cwd=directory, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        # The queue keeps it until the worker is there.
        ask = f"import tasks; print(tasks.add.delay(40, 2).get(timeout={PATIENCE_S}))"
        caller = subprocess.Popen(
            [sys.executable, "-c", ask], cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            wait_for(worker, r"tasks\.add\[.*succeeded in .*: 42$")
            result, errors = caller.communicate(timeout=PATIENCE_S)
        finally:
            caller.kill()
        if result.strip() != b"42":
            raise RuntimeError(f"the caller has {result!r} as its result:\n{errors.decode(errors='replace')}")
        # Remote control: queues that expire, and messages in them.
        inspect = ["bash", "-c", f"celery --app tasks inspect ping --timeout {PATIENCE_S} --destination celery@$(hostname)"]
        done = subprocess.run(inspect, cwd=directory, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S)
        if "pong" not in done.stdout:
            raise RuntimeError(f"the worker does not answer `inspect ping`:\n{done.stdout}{done.stderr}")
    finally:
        worker.kill()
        worker.wait(PATIENCE_S)


def wait_for(worker, pattern):
    said, until = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        ready, _, _ = select.select([worker.stdout], [], [], 1)
        part = os.read(worker.stdout.fileno(), 65536) if ready else b""
        said += part
        if re.search(pattern, said.decode(errors="replace"), re.MULTILINE):
            return
        if ready and not part:
            break
    raise RuntimeError(f"the worker did not do its task:\n{said.decode(errors='replace')}")
