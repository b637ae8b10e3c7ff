#!/usr/bin/env python3
"""A RabbitMQ cluster of our own on loopback, for as long as one command runs.

    scripts/rabbitmq-cluster.py run [--nodes 3] [--seconds 280] [--keep] -- COMMAND...

starts the nodes, joins them, runs COMMAND with AMQP_URI (all hosts) and FOREBAY_CLUSTER (the directory) set, and ends with
its exit code. Nothing survives it, however it ends. `run -- bash` is for looking around. COMMAND may call:

    scripts/rabbitmq-cluster.py uri [NODE...]      the URI of these nodes, or of all
    scripts/rabbitmq-cluster.py kill NODE          SIGKILL; the data stays
    scripts/rabbitmq-cluster.py stop NODE          orderly stop (SIGTERM), 30 s at most
    scripts/rabbitmq-cluster.py start NODE         starts a node again; returns when it takes clients
    scripts/rabbitmq-cluster.py freeze NODE        SIGSTOP: it keeps its sockets and says nothing
    scripts/rabbitmq-cluster.py thaw NODE          SIGCONT
    scripts/rabbitmq-cluster.py cut NODE           no packet passes between it and the other nodes; clients still reach it
    scripts/rabbitmq-cluster.py heal               all cuts are mended
    scripts/rabbitmq-cluster.py leader QUEUE       number of the node that leads a quorum queue of vhost /
    scripts/rabbitmq-cluster.py whole SECONDS [QUEUE...]  waits until all nodes are running and see one another, and these quorum
                                                   queues have a leader and all their members; restarts a node that stays apart
    scripts/rabbitmq-cluster.py ctl NODE ARG...    rabbitmqctl

NODE is 1, 2, 3. Node N lives on 127.0.0.1N. All of it runs in namespaces of its own (network, processes, mounts): a cut is
two routing rules, and when the command is gone the kernel ends what is left. Where namespaces are not allowed it runs without
them on free ports, says so, and a cut node is stopped with SIGSTOP instead, which its peers cannot tell from a cut.

Differences from a cluster as installed, all to be quick and small: a silent peer is given up after 8 s (net_ticktime, 60 s as
installed), quorum queues suspect one after about 1 s (aten, 5 s), a log of 16 MiB, one scheduler thread, and a node that sees
only a minority pauses (pause_minority).
"""
import argparse
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
REPO = HERE.parent.parent
# The distribution's own wrapper insists on a system user and system directories; the scripts behind it do not.
BIN = Path("/usr/lib/rabbitmq/bin")
RESTARTS = 2  # of nodes that stay apart, in one wait
RULE_PREFERENCE = "10"  # of cuts; the table of local addresses is moved behind them, to 100


def die(text):
    sys.exit(f"rabbitmq-cluster.py: {text}")


def wait_until(what, seconds, question):
    """Asks until the answer is true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > end:
            die(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def hold_port(address):
    """Below those that the system gives to outgoing connections: once let go, one of those might be taken before its node listens."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        s = socket.socket()
        try:
            s.bind((address, random.randrange(first // 2, first)))
            return s
        except OSError:  # taken, or not ours to take
            s.close()


class Node:
    def __init__(self, cluster, number, port, dist_port):
        self.cluster, self.number, self.port, self.dist_port = cluster, number, port, dist_port
        self.address = f"127.0.0.1{number}"
        self.name = f"rabbit{number}@{self.address}"
        self.directory = cluster.directory / str(number)

    def environment(self):
        own, erlang = self.directory, "{" + self.address.replace(".", ",") + "}"
        arguments = (
            f"-kernel inet_dist_use_interface {erlang} -kernel inet_dist_connect_options [{{ip,{erlang}}}]"
            " -kernel net_ticktime 8 -aten poll_interval 1000"
            # Schedulers that spin take the cores that the clients need.
            " +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
        )
        return dict(
            self.cluster.environment(),
            HOME=str(own),
            ERL_CRASH_DUMP=str(own / "erl_crash.dump"),
            RABBITMQ_NODENAME=self.name,
            RABBITMQ_USE_LONGNAME="true",
            RABBITMQ_NODE_PORT=str(self.port),
            RABBITMQ_NODE_IP_ADDRESS=self.address,
            RABBITMQ_DIST_PORT=str(self.dist_port),
            RABBITMQ_MNESIA_BASE=str(own / "data"),
            RABBITMQ_LOG_BASE=str(own / "log"),
            RABBITMQ_PID_FILE=str(own / "pid"),
            RABBITMQ_CONFIG_FILE=str(own / "rabbitmq"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(own / "enabled_plugins"),
            RABBITMQ_CONF_ENV_FILE=str(own / "no-env"),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=arguments,
            RABBITMQ_IO_THREAD_POOL_SIZE="4",
        )

    def prepare(self):
        self.directory.mkdir()
        cookie = self.directory / ".erlang.cookie"
        cookie.write_text(self.cluster.cookie)
        cookie.chmod(0o400)
        (self.directory / "enabled_plugins").write_text("[rabbitmq_consistent_hash_exchange].\n")
        settings = [
            f"listeners.tcp.default = {self.address}:{self.port}",
            "log.file.level = info",
            "cluster_partition_handling = pause_minority",
            "cluster_formation.peer_discovery_backend = classic_config",
            "vm_memory_high_watermark.absolute = 512MiB",
            "disk_free_limit.absolute = 50MB",
            "raft.wal_max_size_bytes = 16777216",
        ]
        settings += [f"cluster_formation.classic_config.nodes.{n.number} = {n.name}" for n in self.cluster.nodes]
        (self.directory / "rabbitmq.conf").write_text("\n".join(settings) + "\n")

    def pid(self):
        """Of its Erlang VM; None if it is not running. What is dead and not yet collected is not running."""
        try:
            pid = int((self.directory / "pid").read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, ValueError, IndexError):
            return None
        return None if state in "ZX" else pid

    def launch(self):
        if self.pid():
            die(f"node {self.number} is running")
        (self.directory / "pid").unlink(missing_ok=True)
        with open(self.directory / "stdout", "ab") as out:
            self.launcher = subprocess.Popen(
                [BIN / "rabbitmq-server"], env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def ready(self):
        if self.launcher.poll() is not None:
            die(f"node {self.number} ended while starting:\n" + (self.directory / "stdout").read_text()[-3000:])
        # Listeners come last in its start, so an open port means that it is ready.
        try:
            socket.create_connection((self.address, self.port), 1).close()
        except OSError:
            return False
        return self.pid() is not None

    def signal(self, number):
        pid = self.pid() or die(f"node {self.number} is not running")
        os.kill(pid, number)

    def end(self, number):
        self.signal(number)
        wait_until(f"node {self.number} ends", 35, lambda: self.pid() is None)

    def call(self, what):
        """Asks the running node by Erlang's own remote call: 20 ms where rabbitmqctl takes seconds. None: no answer."""
        command = ["erl_call", "-timeout", "5", "-c", self.cluster.cookie, "-name", self.name, "-a", what]
        try:
            done = subprocess.run(
                command, env=self.cluster.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=6
            )
        except subprocess.TimeoutExpired:
            return None
        return done.stdout if done.returncode == 0 else None


class Cluster:
    def __init__(self, directory, facts):
        self.directory, self.facts = directory, facts
        self.cookie, self.epmd_port, self.namespaced = facts["cookie"], facts["epmd_port"], facts["namespaced"]
        self.nodes = [Node(self, n, *ports) for n, ports in enumerate(facts["ports"], 1)]

    @classmethod
    def create(cls, directory, count, namespaced):
        held = [hold_port("127.0.0.1" + str(number or "")) for number in range(count + 1) for _ in range(2)]  # together, so that all differ
        ports = [s.getsockname()[1] for s in held]
        for s in held:
            s.close()
        pairs = list(zip(ports[2::2], ports[3::2]))
        facts = dict(cookie=secrets.token_hex(10), epmd_port=ports[0], namespaced=namespaced, ports=pairs)
        (directory / "cluster.json").write_text(json.dumps(facts))
        return cls(directory, facts)

    @classmethod
    def current(cls):
        directory = os.environ.get("FOREBAY_CLUSTER") or die("there is no cluster; `run -- COMMAND` makes one for COMMAND")
        return cls(Path(directory), json.loads((Path(directory) / "cluster.json").read_text()))

    def node(self, number):
        if not number.isdecimal() or not 1 <= int(number) <= len(self.nodes):
            die(f"there is no node {number}; there are 1 to {len(self.nodes)}")
        return self.nodes[int(number) - 1]

    def environment(self):
        addresses = ",".join(node.address for node in self.nodes)
        return dict(os.environ, ERL_EPMD_PORT=str(self.epmd_port), ERL_EPMD_ADDRESS=addresses)

    def uri(self, nodes):
        hosts = ",".join(f"{node.address}:{node.port}" for node in nodes)
        return f"amqp://guest:guest@{hosts}/%2f"

    def start(self):
        for node in self.nodes:
            node.prepare()
        subprocess.run(["epmd", "-daemon"], env=self.environment(), check=True)
        # The first alone, or three would look for a cluster at once and each might found its own.
        for group in (self.nodes[:1], self.nodes[1:]):
            for node in group:
                node.launch()
            for node in group:
                wait_until(f"node {node.number} starts", 90, node.ready)
        self.whole(30)

    def whole(self, seconds, queues=()):
        """Every node sees all the others, and each of these quorum queues has a leader and all its members: a queue that lacks one
        has no majority left when the next node is hurt. Other queues are not asked after: one that was deleted while a node was
        away leaves a member behind there, which nobody leads.

        A node that woke after its peers had given it up may stay apart for good: Mnesia calls it a partitioned network and
        leaves it to the operator to restart it. So does this, each time so many seconds have passed, RESTARTS times at most."""
        names, restarts = {node.name for node in self.nodes}, 0
        end = time.monotonic() + seconds
        while True:
            views = {node.name: set(re.findall(r"'(rabbit\d@[\d.]+)'", node.call("rabbit_nodes all_running []") or "")) for node in self.nodes}
            members = {node.name: self.members(node, queues) for node in self.nodes}
            apart = any(view != names for view in views.values()) or any(len(member) < len(queues) for member in members.values())
            leaders = [queue for member in members.values() for queue, state in member.items() if state == "leader"]
            if not apart and sorted(leaders) == sorted(queues):
                return
            if time.monotonic() > end:
                seen = f"nodes see {views}, queues' members are {members}"
                if restarts == RESTARTS:
                    die(f"the cluster is not whole after {RESTARTS} restarts and {seconds} s each: {seen}")
                restarts += 1
                # The one that the fewest see; of two, the one that sees fewer; of those that see the same, the one with fewer members.
                alone = min(
                    self.nodes,
                    key=lambda node: (sum(node.name in view for view in views.values()), len(views[node.name]), len(members[node.name])),
                )
                print(f"node {alone.number} stays apart and is restarted: {seen}", file=sys.stderr)
                if alone.pid():
                    alone.end(signal.SIGKILL)  # in this state it does not stop in an orderly way
                alone.launch()
                wait_until(f"node {alone.number} starts", 90, alone.ready)
                end = time.monotonic() + seconds
            time.sleep(0.05)

    def members(self, node, queues):
        """Which of these quorum queues have a member at a node that takes part, and whether it leads. Queues have a member on every
        node here: there are three nodes, as many as RabbitMQ gives a queue."""
        told = (node.call("rabbit_quorum_queue all_replica_states []") or "") if queues else ""
        states = re.findall(r"'%2F_([^']+)' => (\w+)", told)
        return {queue: state for queue, state in states if queue in queues and state in ("leader", "follower")}

    def leader(self, queue):
        """Asked of a member that can reach a majority: one that cannot gives no answer."""
        process = "'%2F_" + queue + "'"
        for node in self.nodes:
            told = node.call(f"ra members [{{{process},'{node.name}'}}]") if node.pid() else None
            found = re.search(r"^\{ok, ?\[.*\], ?\{.*'rabbit(\d)@[\d.]+'\}\}", (told or "").replace("\n", ""))
            if found:
                return int(found[1])
        return None

    def cut(self, node):
        if not self.namespaced:
            return node.signal(signal.SIGSTOP)
        for peer in self.nodes:
            if peer is not node:
                for a, b in ((node, peer), (peer, node)):
                    subprocess.run(["ip", "rule", "add", "pref", RULE_PREFERENCE, "from", a.address, "to", b.address, "blackhole"], check=True)

    def heal(self):
        if not self.namespaced:
            for node in self.nodes:
                if node.pid():
                    node.signal(signal.SIGCONT)
            return
        while subprocess.run(["ip", "rule", "del", "pref", RULE_PREFERENCE], stderr=subprocess.DEVNULL).returncode == 0:
            pass

    def end(self):
        for node in self.nodes:
            pid = node.pid()
            if pid:
                os.kill(pid, signal.SIGKILL)  # a stopped process, too, obeys this
                wait_until(f"node {node.number} ends", 30, lambda: node.pid() is None)
        subprocess.run(["epmd", "-kill"], env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# ------------------------------------------------------------------------------------------------------------------- run


# Two processes: the outer one keeps the time, takes the signals and cleans up; the inner one, in its namespaces, starts the
# nodes and the command. Whatever becomes of the inner one, its namespaces end with it, and it ends with the outer one.


def namespaces():
    """The command that puts another one into namespaces of its own; None if they are not allowed here."""
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    network = "ip link set lo up && ip rule add pref 100 lookup local && ip rule del pref 0"
    trial = network + f" && ip rule add pref {RULE_PREFERENCE} from 127.0.0.11 to 127.0.0.12 blackhole"
    if not all(map(shutil.which, ("unshare", "setpriv", "ip"))) or subprocess.run([*unshare, "sh", "-c", trial], stderr=subprocess.DEVNULL).returncode:
        return None
    return ["setpriv", "--pdeathsig", "KILL", *unshare, "sh", "-c", network + ' && exec "$@"', "sh"]


class Ended(Exception):
    pass


def run(arguments):
    parser = argparse.ArgumentParser(prog="rabbitmq-cluster.py run")
    parser.add_argument("--nodes", type=int, default=3, choices=range(1, 4))
    parser.add_argument("--seconds", type=int, default=280, help="then everything is ended, and that is a failure")
    parser.add_argument("--keep", action="store_true", help="keep the nodes' directories and say where they are")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    (BIN / "rabbitmq-server").exists() or die("RabbitMQ is not installed (scripts/setup-tests.sh does it)")

    def give_up(number, _frame):
        raise Ended(f"after {options.seconds} s" if number == signal.SIGALRM else f"by {signal.Signals(number).name}")

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, give_up)
    signal.signal(signal.SIGINT, lambda *_: None)  # from a terminal the command gets it, too, and decides
    signal.alarm(options.seconds)
    prefix = namespaces()
    if not prefix:
        print("rabbitmq-cluster.py: no namespaces here; nodes are stopped instead of cut off", file=sys.stderr)
    directory = Path(tempfile.mkdtemp(prefix="forebay-cluster-"))
    cluster = Cluster.create(directory, options.nodes, namespaced=bool(prefix))
    environment = dict(os.environ, FOREBAY_CLUSTER=str(directory), FOREBAY_CLUSTER_SCRIPT=str(HERE), AMQP_URI=cluster.uri(cluster.nodes))
    inner, code = None, 1
    try:
        inner = subprocess.Popen([*(prefix or []), sys.executable, str(HERE), "inside", *options.command], env=environment)
        code = inner.wait()
    except Ended as how:
        print(f"rabbitmq-cluster.py: ended {how}", file=sys.stderr)
    finally:
        if inner and inner.poll() is None:
            inner.kill()
            inner.wait()
        if not prefix:  # the numbers in pid files would be those of the namespace
            cluster.end()
        if code:
            logs = REPO / ".cache" / "cluster"
            shutil.rmtree(logs, ignore_errors=True)
            for log in directory.glob("*/log"):
                shutil.copytree(log, logs / log.parent.name)
            print("rabbitmq-cluster.py: the nodes' logs are in .cache/cluster", file=sys.stderr)
        if options.keep:
            print(f"rabbitmq-cluster.py: the nodes' directories: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return code if code >= 0 else 128 - code


def inside(cluster, command):
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the outer process decides
    began = time.monotonic()
    try:
        cluster.start()
        print(f"rabbitmq-cluster.py: {len(cluster.nodes)} nodes after {time.monotonic() - began:.0f} s", file=sys.stderr)
        child = subprocess.Popen(command)
        # As the first process of its namespace it has all orphans to collect.
        while child.returncode is None:
            pid, status = os.wait()
            if pid == child.pid:
                child.returncode = os.waitstatus_to_exitcode(status)
    finally:
        cluster.end()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def main():
    command, *arguments = sys.argv[1:] or die(__doc__)
    if command == "run":
        return run(arguments)
    cluster = Cluster.current()
    if command == "inside":
        return inside(cluster, arguments)
    if command == "uri":
        print(cluster.uri([cluster.node(n) for n in arguments] or cluster.nodes))
    elif command == "leader" and len(arguments) == 1:
        print(wait_until(f"queue {arguments[0]} has a leader", 30, lambda: cluster.leader(arguments[0])))
    elif command == "whole" and arguments:
        cluster.whole(int(arguments[0]), arguments[1:])
    elif command == "heal" and not arguments:
        cluster.heal()
    elif command == "ctl" and arguments:
        node = cluster.node(arguments[0])
        os.execve(BIN / "rabbitmqctl", ["rabbitmqctl", "-n", node.name, "--longnames", *arguments[1:]], node.environment())
    elif command in ("kill", "stop", "start", "freeze", "thaw", "cut") and len(arguments) == 1:
        node = cluster.node(arguments[0])
        if command == "start":
            node.launch()
            wait_until(f"node {node.number} starts", 90, node.ready)
        elif command == "cut":
            cluster.cut(node)
        elif command in ("kill", "stop"):
            node.end({"kill": signal.SIGKILL, "stop": signal.SIGTERM}[command])
        else:
            node.signal({"freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}[command])
    else:
        die(f"this makes no sense: {' '.join(sys.argv[1:])}\n{__doc__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
