"""Schedulers beside HAProxy's: endpoints of different speed, and connections of different length."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from statistics import median

from tests.tools.bench import scheduled_traffic
from tests.tools.bench.cpu_pinning import pinned
from tests.tools.bench.measures import Measure, Meter, Metric
from tests.tools.bench.peers import Peer
from tests.tools.bench.report import Results
from tests.tools.bench.stage import BACKENDS, SCHEDULED, Stage

_CLIENTS_NET = "172.20.0.0/16"
_PATIENCE_S = 60.0


class _Spread(Measure):
    """What clients of four endpoints see, and what is open to each endpoint meanwhile."""

    program: str
    delays_s: Sequence[float]
    metrics = (
        Metric("per_s", "connections per second"),
        Metric("p50_ms", "p50, ms", digits=1),
        Metric("p99_ms", "p99, ms", digits=1),
        Metric("most", "open, fullest endpoint", digits=1),
        Metric("least", "open, emptiest endpoint", digits=1),
        Metric("spread_percent", "their difference, % of the mean", digits=1, compared=False),
        Metric("cpu_ms", "proxy CPU ms per connection", digits=3),
        Metric("failed", "failed", rare=True, compared=False),
    )

    @abstractmethod
    def load(self, seconds: float) -> tuple[list[str], float]:
        """Return the client's program behind its name, address and port, and from when on what is open counts."""

    def run(self, stage: Stage, peer: Peer, seconds: float) -> Mapping[str, float]:
        """Serve, load, and compare. The connections have ended before it returns."""
        name, (arguments, settled_s) = self.program, self.load(seconds)
        stage.client.ip(f"route replace local {_CLIENTS_NET} dev lo")
        log = stage.directory / "open"
        delays = [f"{address}={delay}" for address, delay in zip(BACKENDS, self.delays_s, strict=True)]
        with log.open("w") as output:
            server = stage.backends.popen(_program(stage, "serve", str(SCHEDULED), *delays), stdout=output)
        try:
            while "ready" not in log.read_text():
                time.sleep(0.05)
                assert server.poll() is None, "the endpoints do not serve"
            address, port = peer.address(SCHEDULED)
            meter, began = Meter(stage, peer), time.monotonic()
            command = _program(stage, name, address, str(port), *arguments)
            clients = stage.client.popen(command, stdout=subprocess.PIPE, text=True)
            said, _ = clients.communicate(timeout=_PATIENCE_S + 100 * seconds)
            cpu_s, ended = meter.cpu_s(), time.monotonic()
        finally:
            server.kill()
            server.wait()
        waits, failed = json.loads(said)
        if not waits:
            raise AssertionError(f"{peer.name}: not one connection was answered, {failed} failed")
        lines = [json.loads(line) for line in log.read_text().splitlines()[1:-1]]
        found = [list(of.values()) for at, of in lines if began + settled_s <= at <= ended - 0.2] or [[0, 0, 0, 0]]
        most, least = median(map(max, found)), median(map(min, found))
        return {
            "per_s": len(waits) / (ended - began),
            "p50_ms": 1e3 * waits[len(waits) // 2],
            "p99_ms": 1e3 * waits[len(waits) * 99 // 100],
            "most": most,
            "least": least,
            "spread_percent": 100 * (most - least) / max(1, median(map(sum, found)) / len(BACKENDS)),
            "cpu_ms": 1e3 * cpu_s / len(waits),
            "failed": failed,
        }


def _program(stage: Stage, *arguments: str) -> list[str]:
    return pinned(stage.cores.load, sys.executable, "-S", "-E", scheduled_traffic.__file__, *arguments)


class Uneven(_Spread):
    """One endpoint is a hundred times as slow as the others."""

    name, program = "uneven", "ask"
    title = "one endpoint answers in 100 ms, three in 1 ms; 64 clients, each connection asks once"
    delays_s = (0.1, 0.001, 0.001, 0.001)

    def load(self, seconds: float) -> tuple[list[str], float]:
        """Closed loops."""
        return [str(2.5 * seconds), "64"], 0.5 * seconds


class Lasting(_Spread):
    """Connections that last."""

    name, program = "lasting", "keep"
    title = "500 new connections a second, which last up to 60 s (30 times --seconds)"
    delays_s = (0.0, 0.0, 0.0, 0.0)
    per_s = 500

    def load(self, seconds: float) -> tuple[list[str], float]:
        """Until as many end as begin, and half as long again."""
        longest_s = 30 * seconds
        return [str(1.5 * longest_s), str(self.per_s), str(longest_s)], longest_s


SPREADS: tuple[Measure, ...] = (Uneven(), Lasting())


def table(results: Results, peers: Sequence[str]) -> str:
    """Return a table of Markdown for each measure, a line for each peer."""
    parts: list[str] = []
    for measure in SPREADS:
        metrics = [it for it in measure.metrics if not it.rare]
        parts += [
            f"\n{measure.title}:\n",
            f"| | {' | '.join(it.title for it in metrics)} |",
            "|---" * (1 + len(metrics)) + "|",
        ]
        for peer in peers:
            found = [results.median(measure.name, it.key, peer) for it in metrics]
            if None not in found:
                cells = [
                    f"{it:,.{metric.digits}f}" for it, metric in zip(found, metrics, strict=True) if it is not None
                ]
                parts.append(f"| {peer} | {' | '.join(cells)} |")
    return "\n".join(parts)
