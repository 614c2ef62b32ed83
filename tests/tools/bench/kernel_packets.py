"""What the kernel path's rules cost each packet: ``python -m tests.tools.bench.kernel_packets [BATCHES]``, as root.

One thread is the client and the endpoint, with a node between them. All that the kernel does for a packet happens in
the system calls of this thread, so its CPU time is the cost: of a question and an answer on an open connection, and of
a whole connection. Other programs on the machine only add to it; so the table has the tenth percentile of many short
batches, in turn with plain DNAT's. Where a line names a part, the rules are ours without that part.

The rescue process is not there: another one reads the copies of first packets, and drops them. What it costs is not in
the table.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from kubeproxy.model import Address, Destination, Protocol, Target, Traffic
from kubeproxy.netfilter.nftables.declarations import TABLE
from kubeproxy.netfilter.nftables.rescue import ALIVE
from kubeproxy.netfilter.nftables.transaction import difference
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet, Spread
from kubeproxy.rescue import nflog
from kubeproxy.rescue.main import open_log
from tests.support.lab import Host, Network, make_network

SERVICE, ENDPOINT = ("10.96.0.10", 80), ("10.3.0.2", 8080)
QUESTIONS, CONNECTIONS = 300, 60
"""Of a batch: some milliseconds."""
_GROUP = nflog.GROUPS[0]
_PROXY_PORT = 7001


def rule_set() -> RuleSet:
    """One Service on the kernel path, with everything that a node of a cluster has."""
    spread = Spread("default/bench:http", targets := (Target(Address(ENDPOINT[0]), ENDPOINT[1]),), targets)
    destination = Destination(Address(SERVICE[0]), Protocol.TCP, SERVICE[1])
    return RuleSet(
        redirects={Traffic(destination): _PROXY_PORT},
        proxy_ports={ProxyPort(Protocol.TCP, _PROXY_PORT)},
        spreads={Traffic(destination): spread},
        hairpins={Address(ENDPOINT[0])},
        node_addresses=frozenset({Address("10.2.0.1")}),
        guard_sockets=True,
        rescue=_GROUP,
    )


def ours(rules: RuleSet, *, without: tuple[str, ...] = ()) -> str:
    """The commands that load a rule set, and then flush some of its chains; those with a hook are deleted."""
    commands = "".join(difference(None, rules))
    if rules.rescue is not None:
        commands += f"add element {TABLE} {ALIVE} {{ tcp timeout 1h, icmp timeout 1h, udp timeout 1h }}\n"
    for chain in without:
        commands += f"flush chain {TABLE} {chain}\n"
        if f"{chain} {{ type filter" in commands:
            commands += f"delete chain {TABLE} {chain}\n"
    return commands


DNAT = (
    "add table ip plain\nadd chain ip plain prerouting { type nat hook prerouting priority -100; }\n"
    f"add rule ip plain prerouting ip daddr {SERVICE[0]} tcp dport {SERVICE[1]} "
    f"dnat to numgen random mod 1 map {{ 0 : {ENDPOINT[0]} . {ENDPOINT[1]} }}\n"
)


@dataclass(slots=True)
class Variant:
    """A network with rules, and its figures."""

    commands: str
    network: Network
    to: tuple[str, int]
    question_ns: list[float] = field(default_factory=list)
    connection_ns: list[float] = field(default_factory=list)
    listener: socket.socket = field(init=False)
    client: socket.socket = field(init=False)
    server: socket.socket = field(init=False)

    def start(self, stack: ExitStack) -> None:
        """Load the rules, and open the connection for questions."""
        if self.commands:
            self.network.node.run(["nft", "-f", "-"], input=self.commands)
            self.network.node.sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", 10)
        self.listener = stack.enter_context(self.network.pods[0].listen(ENDPOINT))
        self.client = stack.enter_context(self.network.client.connect(self.to))
        self.server = stack.enter_context(self.listener.accept()[0])
        for sock in (self.client, self.server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> None:
        """A batch of questions and answers."""
        client, server, message = self.client, self.server, bytes(100)
        self.question_ns.append(
            _cost(QUESTIONS, lambda: (client.send(message), server.recv(200), server.send(message), client.recv(200)))
        )

    def connect(self) -> None:
        """A batch of connections, each for one question."""
        with self.network.client.entered():
            self.connection_ns.append(_cost(CONNECTIONS, self._connect))

    def _connect(self) -> None:
        client = socket.socket()
        client.connect(self.to)
        server, _ = self.listener.accept()
        client.send(b"question")
        server.recv(200)
        server.close()
        client.recv(1)
        client.close()


def _cost(count: int, once: Callable[[], object]) -> float:
    began = time.thread_time_ns()
    for _ in range(count):
        once()
    return (time.thread_time_ns() - began) / count


def start_reader(node: Host) -> None:
    """Start a process that reads the packet log of a node and drops what it reads. It ends with the node."""
    reader: subprocess.Popen[Any] = node.popen(
        [sys.executable, "-m", __spec__.name, "read"], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline(), "no packet log"


def read() -> None:
    """Such a process."""
    log, group = open_log(_GROUP)
    print(group, flush=True)
    room = bytearray(nflog.READ_BYTES)
    while True:
        log.recv_into(room)


def variants() -> Mapping[str, tuple[str, bool]]:
    """The names of all, their commands, and whether a process reads the packet log."""
    rules = rule_set()
    parts = {
        "the chain of answers from other hosts": ("rescue_prerouting",),
        "the chain of answers from this host": ("rescue_output",),
        "the chain of packets to this host": ("input",),
        "the copy of a first packet": ("rescue_copy4",),
        "the time at which an endpoint is asked": ("rescue_asked",),
        "the time at which an endpoint answers": ("rescue_answer",),
        "masquerading, and that time": ("postrouting",),
    }
    return {
        "direct": ("", False),
        "plain DNAT": (DNAT, False),
        "kernel path": (ours(rules), True),
        **{f"without {name}": (ours(rules, without=chains), True) for name, chains in parts.items()},
        "without a reader of copies": (ours(rules), False),
        "without the rescue": (ours(replace(rules, rescue=None)), False),
    }


def measure(batches: int) -> None:
    """Print the table."""
    with ExitStack() as stack:
        made: dict[str, Variant] = {}
        for name, (commands, is_read) in variants().items():
            network = stack.enter_context(make_network(pods=1))
            made[name] = variant = Variant(commands, network, ENDPOINT if name == "direct" else SERVICE)
            variant.start(stack)
            if is_read:
                start_reader(network.node)
        for _ in range(batches):
            for variant in made.values():
                variant.ask()
                variant.connect()
        dnat = made["plain DNAT"]
        print(f"{'CPU ns, and × plain DNAT':<48}{'question, answer':>18}{'connection':>20}")
        for name, variant in made.items():
            print(
                f"{name:<48}{_beside(variant.question_ns, dnat.question_ns):>18}"
                f"{_beside(variant.connection_ns, dnat.connection_ns):>20}"
            )


def _beside(ours: list[float], dnat: list[float]) -> str:
    low, other = (sorted(each)[len(each) // 10] for each in (ours, dnat))
    return f"{low:,.0f} · {low / other:.3f}"


if __name__ == "__main__":
    if sys.argv[1:] == ["read"]:
        read()
    else:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
