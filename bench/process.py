"""CPU time and resident memory of processes, read from /proc. Linux only."""
import os
import resource
import signal
import socket
import subprocess

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _stat(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The name in parentheses may hold anything, so fields count from the last one on: state, ppid, ...
        return file.read().rpartition(")")[2].split()


def tree(pid):
    """A process and all that descend from it."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                children.setdefault(int(_stat(name)[1]), []).append(int(name))
            except (OSError, IndexError):
                continue  # it ended meanwhile
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting.extend(children.get(found[-1], ()))
    return found


def cpu_seconds(pid):
    """CPU seconds that a process and its living descendants have used, user and system."""
    total = 0
    for each in tree(pid):
        try:
            fields = _stat(each)
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_SECOND


def resident_bytes(pid):
    """Resident memory of one process: shared pages (the program itself) included, sockets in the kernel not."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no memory any more")


def resident_bytes_peak(pid):
    """The most that one process ever had resident."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no memory any more")


def raise_open_files():
    """As many open files as the system allows; returns how many that is. Brokers that are started inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def end(process, number=signal.SIGTERM, timeout_s=60):
    """Signals a process that we started and waits for its end."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
