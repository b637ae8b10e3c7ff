"""Forebay, as `forebay serve` with default settings: a fresh data directory for each instance."""
import os
import shutil
import signal
import subprocess
import time

import connection
import process


class Forebay:
    name = "forebay"

    def __init__(self, programs, directory, memory_budget=None):
        self.program = os.path.join(programs, "forebay")
        self.directory = os.path.join(directory, "forebay")
        self.memory_budget = memory_budget
        self.port = process.free_port()
        self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)
        os.makedirs(self.directory)

    @property
    def url(self):
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"

    @property
    def pid(self):
        return self.process.pid

    def start(self):
        """Starts it and returns the seconds until a client had an open channel."""
        arguments = [self.program, "serve", "--amqp", f"127.0.0.1:{self.port}", "--http", "off", "--log-level", "warn"]
        arguments += ["--data-dir", os.path.join(self.directory, "data")]
        if self.memory_budget:
            arguments += ["--memory-budget", self.memory_budget]
        # A setting of the caller's shell must not change what is measured.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
        began = time.monotonic()
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        connection.wait_until_ready(self.port, lambda: self.process.poll() is None)
        return time.monotonic() - began

    def stop(self):
        """Orderly stop; the data stay. Returns the seconds it took."""
        began = time.monotonic()
        if self.process:
            process.end(self.process)
        return time.monotonic() - began

    def kill(self):
        process.end(self.process, signal.SIGKILL)

    def discard(self):
        """Stops it and forgets its data."""
        try:
            if self.process:
                process.end(self.process)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


def version(programs):
    return subprocess.run([os.path.join(programs, "forebay"), "--version"], capture_output=True, text=True, check=True).stdout.strip()
