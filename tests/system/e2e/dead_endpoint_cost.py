"""The cost of a dead endpoint: time to first byte of many clients at once, compared with healthy endpoints and HAProxy.

    python -m tests.system.e2e.dead_endpoint_cost [--count N] [--at-once N] [--per-s N] [--rounds N] [PEER ...]

as root, with HAProxy installed (it also answers as the endpoints: four addresses of one host). Each line is a fresh
proxy, and the fault is there before its first client. HAProxy has a configuration for dead servers: checks every
second, a first failure takes a server out, 250 ms for a connection, the next try at another server.

Clients start as fast as the proxy serves them, unless --per-s limits that. So the healthy line shows the share of the
machine in a figure: fifty clients at once wait fifty times as long as one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.lab import Host
from tests.system.e2e.first_bytes import FirstBytes, Seen, first_bytes, summary
from tests.tools.bench.cpu_pinning import Cores
from tests.tools.bench.peers import HAProxy, Kubeproxy, Peer
from tests.tools.bench.stage import BACKENDS, BULK, HTTP, Stage, make_stage
from tests.tools.bench.traffic import QUESTION

DROP, RESET = "drop", "reject with tcp reset"
FAULTS: Mapping[str, tuple[str, int]] = {
    "all healthy": (DROP, 0),
    "1 of 4 black-holed": (DROP, 1),
    "1 of 4 refuses": (RESET, 1),
    "3 of 4 black-holed": (DROP, 3),
}
ALL = "4 of 4 black-holed"


class WaryHAProxy(HAProxy):
    """HAProxy with a configuration for dead servers."""

    def command(self, directory: Path) -> list[str]:
        """With checks, a short connect timeout, and another server for the next try."""
        command = super().command(directory)
        config = directory / "haproxy.cfg"
        wary = (
            "    timeout connect 250ms\n    retries 4\n    option redispatch 1\n"
            "    default-server check inter 1s fall 1 rise 1 observe layer4 error-limit 1 on-error mark-down\n"
        )
        config.write_text(config.read_text().replace("    timeout connect 5s\n", wary))
        return command


PEERS: Mapping[str, Callable[[], Peer]] = {
    "workers-0": lambda: Kubeproxy("--workers 0", workers=0),
    "workers-2": lambda: Kubeproxy("--workers 2", workers=2),
    "haproxy": lambda: WaryHAProxy("HAProxy"),
    "haproxy-2": lambda: WaryHAProxy("HAProxy, 2 threads", lanes=2),
}


@contextmanager
def broken(pods: Host, verdict: str, number: int) -> Iterator[None]:
    """The HTTP ports of the first `number` backends do not answer."""
    pods.run(["nft", "add table inet fault"])
    try:
        pods.run(["nft", "add chain inet fault input { type filter hook input priority 0; }"])
        for address in BACKENDS[:number]:
            pods.run(["nft", f"add rule inet fault input ip daddr {address} tcp dport {HTTP} {verdict}"])
        yield
    finally:
        pods.run(["nft", "delete table inet fault"])


@contextmanager
def serving(peer: Peer) -> Iterator[Stage]:
    """A new process of the peer. It shares its cores with the pods, as on a node."""
    with make_stage("dead", Cores.shared()) as stage:
        peer.start(stage)
        yield stage
        peer.stop()


@dataclass(frozen=True, slots=True)
class Load:
    """The clients of the Service with dead endpoints."""

    count: int
    at_once: int
    per_s: float

    def put_on(self, stage: Stage, peer: Peer) -> Seen:
        """The results of the clients."""
        return first_bytes(
            stage.client,
            peer.address(HTTP),
            self.count,
            at_once=self.at_once,
            per_s=self.per_s,
            question=QUESTION.decode(),
        )


def one_fault(make: Callable[[], Peer], fault: str, load: Load) -> None:
    """Print one line of the table."""
    peer = make()
    verdict, number = FAULTS[fault]
    with serving(peer) as stage, broken(stage.backends, verdict, number):
        seen = load.put_on(stage, peer)
    print(
        f"{peer.name:20} {fault:20} failed {len(seen.failed)}; all {summary(seen.times())};"
        f" after the first second {summary(seen.times(since_s=1.0))}",
        flush=True,
    )


def all_dead(make: Callable[[], Peer], load: Load) -> None:
    """Four of four endpoints are dead: the errors of their clients, and the delays of clients of another port."""
    peer = make()
    with serving(peer) as stage:

        def other(count: int) -> Seen:
            return first_bytes(stage.client, peer.address(BULK), count, at_once=1, question=QUESTION.decode())

        before = other(1000)
        with (
            broken(stage.backends, DROP, len(BACKENDS)),
            FirstBytes(stage.client, peer.address(BULK), question=QUESTION.decode()) as beside,
        ):
            seen = replace(load, count=4 * load.at_once).put_on(stage, peer)
    ends = sorted({why for _, _, why in seen.failed})
    took = sorted(took for _, took, _ in seen.failed)
    print(
        f"{peer.name:20} {ALL:20} {len(seen.answered)} answered; {len(took)} failed, {', '.join(ends)} after"
        f" {took[0]:.2f} to {took[-1]:.2f} s; clients of another service before: {summary(before.times())}; beside:"
        f" {len(beside.seen.failed)} failed, {summary(beside.seen.times())}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.e2e.dead_endpoint_cost", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"{', '.join(PEERS)} (default: all)")
    parser.add_argument("--count", type=int, default=20_000, help="connections a line (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=50, help="clients at once (default: %(default)s)")
    parser.add_argument("--per-s", type=float, default=0.0, help="clients a second, at most (default: no bound)")
    parser.add_argument("--rounds", type=int, default=1, help="how often (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if strangers := set(chosen.peers) - set(PEERS):
        parser.error(f"unknown: {', '.join(strangers)}; there are {', '.join(PEERS)}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; milliseconds to the first byte")
    load = Load(chosen.count, chosen.at_once, chosen.per_s)
    for _ in range(chosen.rounds):
        for fault in FAULTS:
            for name in chosen.peers or PEERS:
                one_fault(PEERS[name], fault, load)
        for name in chosen.peers or PEERS:
            all_dead(PEERS[name], load)


if __name__ == "__main__":
    main()
