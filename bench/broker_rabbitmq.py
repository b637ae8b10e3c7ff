"""RabbitMQ as the distribution ships it, default settings, a node of its own through scripts/rabbitmq.sh."""
import os
import shutil
import subprocess
import time
from pathlib import Path

import connection
import process

REPO = Path(__file__).resolve().parent.parent
SCRIPT = str(REPO / "scripts" / "rabbitmq.sh")


class RabbitMQ:
    name = "rabbitmq"

    def __init__(self, programs, directory, memory_budget=None):
        # It has no memory budget; its own watermark (40 % of the machine) stays as it is.
        self.directory = os.path.join(directory, "rabbitmq")
        self.port = process.free_port()
        shutil.rmtree(self.directory, ignore_errors=True)
        os.makedirs(self.directory)

    @property
    def url(self):
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"

    @property
    def pid(self):
        """The Erlang VM, beam.smp: the process in which everything runs."""
        return int(Path(self.directory, "pid").read_text())

    def start(self):
        """Starts it and returns the seconds until a client had an open channel."""
        began = time.monotonic()
        starter = subprocess.Popen([SCRIPT, "start", self.directory, str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            connection.wait_until_ready(self.port, lambda: starter.poll() in (None, 0))
            took = time.monotonic() - began
        finally:
            error = starter.communicate()[1]
        if starter.returncode != 0:
            raise RuntimeError(f"RabbitMQ did not start: {error.strip()}")
        return took

    def _script(self, command):
        subprocess.run([SCRIPT, command, self.directory], check=True, stdout=subprocess.DEVNULL, timeout=120)

    def stop(self):
        """Orderly stop; the data stay. Returns the seconds it took."""
        began = time.monotonic()
        self._script("stop")
        return time.monotonic() - began

    def kill(self):
        self._script("kill")

    def discard(self):
        """Ends it, the fast way, and forgets its data: nothing is measured any more."""
        try:
            if os.path.exists(os.path.join(self.directory, "ports")):
                self._script("kill")
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


def installed():
    return os.access("/usr/lib/rabbitmq/bin/rabbitmq-server", os.X_OK)


def version():
    packages = ["rabbitmq-server", "erlang-base"]
    try:
        got = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}, ", *packages], capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return got.stdout.strip().rstrip(",") or "unknown"
