"""What floods cost the rescue process: SYNs through a Service, and resets of its endpoints.

    python -m tests.tools.bench.floods [--seconds N] [--per-s N]

as root; in network namespaces. A client sends SYNs, each from another address and port. First the endpoints answer,
then they refuse, then they are silent. Printed are CPU time and memory of the rescue process and the control process,
and how long ordinary clients waited meanwhile. The kernel tracks at most 262,144 connections by default.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from kubeproxy.model import Family
from kubeproxy.rescue.packets import Side, Syn, again, packed
from tests.rescue.stage import PODS, Stage, stage

CLIENT = "10.2.0.2"
FIRST_NETWORK = 77
PARTS = {
    "endpoints answer": "",
    "endpoints refuse": "meta l4proto tcp reject with tcp reset",
    "endpoints are silent": "drop",
}
_TICKS = os.sysconf("SC_CLK_TCK")


def flood(address: str, port: int, seconds: float, per_s: float, network: int) -> int:
    """Send SYNs, each of a connection of its own; their number. `network`: the second byte of the clients' addresses,
    which are behind this host, so that its kernel does not answer the SYN-ACKs by resets."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    packets = [
        _syn(f"10.{network}.{number >> 8 & 255}.{number & 255}", 1024 + (number >> 16), address, port, sequence=number)
        for number in range(1, round(seconds * per_s))
    ]
    began, sent = time.monotonic(), 0
    while sent < len(packets) and (passed := time.monotonic() - began) < 2 * seconds:
        if sent > passed * per_s:
            time.sleep(0.001)
            continue
        for packet in packets[sent : sent + 20]:
            sock.sendto(packet, (address, 0))
        sent += 20
    return sent


def _syn(source: str, source_port: int, address: str, port: int, *, sequence: int) -> bytes:
    client, service = Side(packed(source), source_port), Side(packed(address), port)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, socket.IPPROTO_TCP, 0) + client.address + service.address
    segment = struct.pack("!HHIIBBHHH", source_port, port, sequence, 0, 0x50, 0x02, 65535, 0, 0)
    made = again(Syn(client, service, sequence, header + segment))
    assert made is not None
    return made


def cpu_s(pid: int) -> float:
    """Seconds that a process has used a processor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mib(pid: int) -> float:
    """The resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(name: str, made: Stage, seconds: float, per_s: float, network: int) -> None:
    """One flood."""
    pid = made.rescue_pid()
    assert pid is not None
    control_pid = made.guardian.pid
    before = cpu_s(pid), cpu_s(control_pid)
    flooder = made.network.client.popen(
        [
            *(sys.executable, "-m", "tests.tools.bench.floods", "flood"),
            *map(str, (*made.service, seconds, per_s, network)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    waits = []
    most = 0.0
    while flooder.poll() is None:
        began = time.monotonic()
        made.ask(made.network.node)
        waits.append(time.monotonic() - began)
        most = max(most, memory_mib(pid))
        time.sleep(0.05)
    assert flooder.stdout is not None
    sent = int(flooder.stdout.read())
    waits.sort()
    rescue, control = ((cpu_s(each) - spent) / seconds for each, spent in zip((pid, control_pid), before, strict=True))
    print(
        f"{name}: {sent:,} SYNs in {seconds:g} s; rescue process {rescue:.0%} of a core, at most {most:.0f} MiB; "
        f"control process {control:.0%}; alive {made.alive()}; "
        f"{len(waits)} ordinary clients waited ms p50 {1000 * waits[len(waits) // 2]:.1f} max {1000 * waits[-1]:.1f}",
        flush=True,
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--per-s", type=float, default=20_000.0)
    arguments = parser.parse_args()
    with stage(Family.IPV4) as made:
        for network, (name, verdict) in enumerate(PARTS.items(), start=FIRST_NETWORK):
            made.network.client.ip(f"route add blackhole 10.{network}.0.0/16")
            made.network.node.ip(f"route add 10.{network}.0.0/16 via {CLIENT}")
            for pod in range(PODS):
                if verdict:
                    made.filter(pod, f"ip saddr 10.{network}.0.0/16 {verdict}")
            measure(name, made, arguments.seconds, arguments.per_s, network)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["flood", address, port, seconds, per_s, network]:
            print(flood(address, int(port), float(seconds), float(per_s), int(network)))
        case _:
            main()
