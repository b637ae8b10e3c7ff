"""What was measured on: cores, model, kernel, and how long the disk takes to make a write durable."""
import os
import platform
import re
import time


def describe(directory):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = re.search(r"^model name\s*: (.*)$", file.read(), re.M)
    with open("/proc/meminfo", encoding="utf-8") as file:
        memory_kib = int(re.search(r"^MemTotal:\s*(\d+)", file.read(), re.M)[1])
    return {
        "cores": len(os.sched_getaffinity(0)),
        "model": model[1] if model else "unknown",
        "memory_gb": round(memory_kib * 1024 / 1e9, 1),
        "kernel": platform.release(),
        "file_system": file_system(directory),
    }


def busy_cores(seconds=2.0):
    """Cores that everybody together uses now; measured while nothing of ours runs, it is what others take."""

    def busy():
        with open("/proc/stat", encoding="utf-8") as file:
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        return user + nice + system + irq + softirq + steal

    before = busy()
    time.sleep(seconds)
    return (busy() - before) / os.sysconf("SC_CLK_TCK") / seconds


def file_system(directory):
    """Type of the file system that holds the brokers' data."""
    directory = os.path.realpath(directory)
    best = ("", "unknown")
    with open("/proc/mounts", encoding="utf-8") as file:
        for line in file:
            mount, kind = line.split()[1:3]
            inside = directory == mount or directory.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best[0]):
                best = (mount, kind)
    return best[1]


def flush_us(directory, seconds=1.0, bytes_each=1100):
    """p50 and p99, in microseconds, of a write of one message and fdatasync.

    Into space that was written before, which is what a log that recycles its segments does and the least the disk can do;
    and at the end of a growing file, where the file system has to note the new length, too.
    """
    result = {}
    for kind, prepared in (("overwrite", True), ("append", False)):
        path = os.path.join(directory, f"flush-{kind}")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            size = 64 << 20
            if prepared:
                for offset in range(0, size, 1 << 20):
                    os.pwrite(file, b"\xa5" * (1 << 20), offset)
                os.fsync(file)
            data, took, offset = b"\x5a" * bytes_each, [], 0
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if offset + bytes_each > size:
                    offset = 0
                began = time.perf_counter_ns()
                os.pwrite(file, data, offset)
                os.fdatasync(file)
                took.append((time.perf_counter_ns() - began) / 1000)
                offset += bytes_each
        finally:
            os.close(file)
            os.unlink(path)
        took.sort()
        result[f"{kind}_p50_us"] = round(took[len(took) // 2], 1)
        result[f"{kind}_p99_us"] = round(took[int((len(took) - 1) * 0.99)], 1)
    return result
