"""Runs a Proxier with a real packet filter and a fake data plane in a process of its own.

    python -m tests.netfilter.proxier_process ADAPTER

Reads one JSON request per line and answers each with one line: ``{"services": {name: address}}`` (all that there are,
each with one endpoint), ``{}`` (nothing new). The answer is how things stand. A Service called ``limited`` also has an
address for some sources only, so its rules need the program nft.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from kubeproxy.model import Family, parse_address
from kubeproxy.netfilter.iptables.adapter import Iptables
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.with_routing import WithRouting
from kubeproxy.proxier import Kernel, Periods, PortSystemCalls, Proxier, ProxierSettings, Tracker
from kubeproxy.runtime.tasks import TaskSet
from tests.proxier.builders import endpoint_slice, service
from tests.support.doubles.data_plane import FakeDataPlane, FakePortReserver

SOURCE = "test"


def set_services(tracker: Tracker, services: Mapping[str, str]) -> None:
    """Set all Services."""
    every = {name: service(name, address) for name, address in services.items()}
    if "limited" in every:
        every["limited"] = replace(
            every["limited"],
            load_balancer_ips=(parse_address("203.0.113.7"),),
            load_balancer_source_ranges=("192.0.2.0/24",),
        )
    tracker.replace_services(SOURCE, list(every.values()))
    tracker.replace_slices(SOURCE, [endpoint_slice(name, "10.3.0.2") for name in services])


def state(proxier: Proxier) -> dict[str, Any]:
    """The present state."""
    snapshot = proxier.view.snapshot()
    return {
        "failing": snapshot.failing,
        "failures": snapshot.failures,
        "pending": snapshot.pending_since is not None,
        "services": len(snapshot.owners),
    }


async def main() -> None:
    """Answer requests until the end of the input."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    netfilter = WithRouting(Nftables(timeout_s=1.0) if sys.argv[1] == "nftables" else Iptables(lock_wait_s=0.5))
    tracker = Tracker([SOURCE])
    proxier = Proxier(
        tracker=tracker,
        data_plane=FakeDataPlane(),
        kernel=Kernel(netfilter),
        ports=PortSystemCalls(FakePortReserver()),
        settings=ProxierSettings(periods=Periods(min_sync_s=0.05, sync_s=1000.0), families=frozenset({Family.IPV4})),
    )
    tasks = TaskSet(lambda name, error: sys.exit(f"{name}: {error!r}"))
    tasks.start(proxier.run(), name="proxier")
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        if "services" in request:
            set_services(tracker, request["services"])
        print(json.dumps(state(proxier)), flush=True)
    await proxier.stop(cleanup=False)
    await tasks.close()
    await netfilter.close()


if __name__ == "__main__":
    asyncio.run(main())
