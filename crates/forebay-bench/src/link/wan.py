"""A long way between two programs of one machine, of IP packets: the kernel's own TCP runs end to end over
it, so that the round trip it measures is the link's. Needs root and a network namespace of its own.

    client ──▶ FAR_US ──▶ tun ──▶ this, waits half a round trip ──▶ tun ──▶ HERE (server)
                                  destination FAR_US becomes HERE, source HERE becomes FAR_THEM
                                  and the other way round on the way back

HERE is this machine. FAR_US and FAR_THEM have the same sum of 16-bit words, so no checksum changes (RFC 1071).
The addresses are those for benchmarks (RFC 2544, 198.18.0.0/15).

Its argument is its bandwidth in each direction, in bytes a second, 0 = no bound. The narrowest point is at the
beginning of each way, with a queue before it; what finds that full is lost.

Commands on standard input, one a line: `rtt US`, `stall US`. Says `ready` once; ends with its input.
"""
import collections
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time

HERE, FAR_US, FAR_THEM = (socket.inet_aton(text) for text in ("198.18.0.1", "198.19.0.2", "198.18.0.3"))
# Ethernet's where each packet has its time; without bounds larger ones, and as many as TCP has together in one piece of up to
# 64 KiB (segmentation offload), as network cards take them: what this program takes for a packet is not the link's to take.
MTU, MTU_PACED = 9000, 1500
# Packets or pieces on their way in each direction, 1.3 GB at most; what comes beyond is lost, as in a router.
QUEUE_MAX = 20_000
# Before the narrowest point, as the time it takes to send that, and in bytes: the larger of both.
QUEUED_S, QUEUED_BYTES_MIN = 0.1, 64 << 10
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
TUNSETOFFLOAD, TUN_F_CSUM, TUN_F_TSO4 = 0x400454D0, 0x01, 0x02
# Before each packet then: what is left to do about its checksum and its segments (struct virtio_net_hdr). It passes as it came.
VNET_HDR = 10


def open_tun(mtu, whole):
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TUN | IFF_NO_PI | (IFF_VNET_HDR if whole else 0)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"wan0", flags))
    if whole:
        fcntl.ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    for words in (
        "link set lo up",
        f"address add {socket.inet_ntoa(HERE)}/15 dev wan0",
        f"link set wan0 mtu {mtu} txqueuelen 10000 up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    return tun


def main():
    half_s, stalled_until = 0.0, 0.0
    bytes_per_s = int(sys.argv[1])
    whole = not bytes_per_s
    tun = open_tun(MTU if whole else MTU_PACED, whole)
    ip = VNET_HDR if whole else 0  # where the packet begins
    ways = {FAR_US: collections.deque(), FAR_THEM: collections.deque()}
    # When the last one arrives, and when the narrowest point is free.
    last, free = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0.0)
    queued_s = max(QUEUED_S, QUEUED_BYTES_MIN / bytes_per_s) if bytes_per_s else 0.0
    changed = {FAR_US: FAR_THEM + HERE, FAR_THEM: FAR_US + HERE}
    print("ready", flush=True)
    unread = b""
    while True:
        now = time.monotonic()
        due = min((way[0][0] for way in ways.values() if way), default=now + 1.0)
        due = max(due, stalled_until)
        readable, _, _ = select.select([tun, 0], [], [], max(0.0, due - now))
        if 0 in readable:
            data = os.read(0, 4096)
            if not data:
                return
            *commands, unread = (unread + data).split(b"\n")
            for command in commands:
                word, number = command.split()
                if word == b"rtt":
                    half_s = int(number) / 2e6
                else:
                    stalled_until = time.monotonic() + int(number) / 1e6
        now = time.monotonic()
        if tun in readable:
            try:
                for _ in range(64):
                    packet = os.read(tun, ip + 65536)
                    to = packet[ip + 16 : ip + 20]
                    way = ways.get(to)
                    if way is None or packet[ip] >> 4 != 4 or len(way) >= QUEUE_MAX:
                        continue
                    sent = now
                    if bytes_per_s:
                        begun = max(free[to], now)
                        if begun - now > queued_s:
                            continue
                        sent = free[to] = begun + len(packet) / bytes_per_s
                    # Nothing overtakes on a way that became shorter.
                    last[to] = max(last[to], sent + half_s)
                    way.append((last[to], packet[: ip + 12] + changed[to] + packet[ip + 20 :]))
            except BlockingIOError:
                pass
        if now >= stalled_until:
            for way in ways.values():
                while way and way[0][0] <= now:
                    os.write(tun, way.popleft()[1])


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
