"""Memory of one idle connection, and of a daemon without load."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping

from tests.support.lab import Daemon
from tests.tools.bench import traffic
from tests.tools.bench.clusters import start_apiserver, write_manifests
from tests.tools.bench.cpu_pinning import Cores, pinned
from tests.tools.bench.measures import Metric
from tests.tools.bench.peers import Peer, start_daemon
from tests.tools.bench.processes import Memory, family, memory, memory_of
from tests.tools.bench.stage import HTTP, Stage, make_stage

CONNECTIONS = 3000
_WARM = 100
_SETTLE_S = 1.0
SERVICES = 10
WORKERS = 2


class IdleConnections:
    """Connections that are used once, and then kept."""

    name = "idle"
    title = f"{CONNECTIONS:,} idle connections, all processes"
    metrics = (
        Metric("pss_kib", "PSS per connection, KiB", digits=2),
        Metric("rss_kib", "RSS per connection, KiB", digits=2, compared=False),
    )

    def run(self, peer: Peer) -> Mapping[str, float]:
        """Measure a peer that was started for this. Earlier load would have left free memory in it. A few connections
        come before, for memory that is allocated once."""
        with make_stage(peer.name, peer.cores) as stage:
            try:
                peer.start(stage)
                _hold(stage, peer, _WARM).kill()
                time.sleep(_SETTLE_S)
                before = _memory(peer)
                _hold(stage, peer, CONNECTIONS)
                grown = _memory(peer) - before
            finally:
                peer.stop()
        return {"pss_kib": grown.pss / CONNECTIONS, "rss_kib": grown.rss / CONNECTIONS}


def _memory(peer: Peer) -> Memory:
    pid = peer.pid()
    return memory(pid) if pid is not None else Memory(0, 0)


def _hold(stage: Stage, peer: Peer, count: int) -> subprocess.Popen[str]:
    """Open so many connections; back when all have been open for a moment."""
    address, port = peer.address(HTTP)
    holder = stage.client.popen(
        pinned(stage.cores.load, *traffic.program("hold", address, str(port), str(count))),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != "held\n":
        raise AssertionError(f"{peer.name}: not all of {count} connections could be opened")
    time.sleep(_SETTLE_S)
    return holder


class IdleDaemon:
    """A control process and two workers with ten Services, from manifests or from an API server."""

    name = "standing"
    title = f"idle daemon, {SERVICES} services, control process and {WORKERS} workers"
    metrics = (
        Metric("pss_mib", "PSS, MiB", digits=1, compared=False),
        Metric("rss_mib", "RSS, MiB", digits=1, compared=False),
        Metric("worker_mib", "PSS of a worker, MiB", digits=1, compared=False),
    )
    sources = ("manifests", "API")

    def run(self, source: str) -> Mapping[str, float]:
        """Measure a daemon that serves, after a moment to settle."""
        with make_stage("idle", Cores.shared()) as stage, _started(stage, source) as daemon:
            time.sleep(3 * _SETTLE_S)
            root, *workers = family(daemon.process.pid)
            of_workers = [memory_of(pid) for pid in workers]
            whole = sum(of_workers, memory_of(root))
        figures = {"pss_mib": whole.pss / 1024, "rss_mib": whole.rss / 1024}
        if of_workers:
            figures["worker_mib"] = sum(each.pss for each in of_workers) / len(of_workers) / 1024
        return figures


def _started(stage: Stage, source: str) -> Daemon:
    if source == "API":
        options = ["--master", start_apiserver(stage, services=SERVICES)]
        return start_daemon(stage, workers=WORKERS, options=options)
    manifests = stage.directory / "manifests"
    write_manifests(manifests, services=SERVICES)
    return start_daemon(stage, workers=WORKERS, manifests=manifests)
