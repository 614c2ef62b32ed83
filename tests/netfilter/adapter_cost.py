"""Measures the costs of the adapters.

    python -m tests.netfilter.adapter_cost [SERVICES]      (as root; 10,000 by default)

On a host of its own, each adapter is given that many services, and then one change at a time. For each step the median
of several: the time it takes, and the processor time of this process and of the programs that it runs.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from kubeproxy.model import Protocol
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.iptables.adapter import Iptables
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from kubeproxy.netfilter.with_routing import WithRouting
from tests.netfilter.stage import destination, rule_set
from tests.support.lab import Host

ROUNDS = 7


def rules(services: int, *, refused: int = 0) -> RuleSet:
    """So many Services with one TCP port each, some without endpoints."""
    redirects = {
        destination(f"10.{100 + (number >> 16)}.{number >> 8 & 255}.{number & 255}", Protocol.TCP): 10_000 + number
        for number in range(services)
    }
    made = rule_set(redirects, landing=("10.2.0.1",))
    return replace(made, refused={ProxyPort(Protocol.TCP, 10_000 + number) for number in range(refused)})


def cpu() -> float:
    """The CPU seconds of this process and of its ended children."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


async def measure(what: str, steps: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Run each step and print the medians."""
    times, cpus = [], []
    for step in steps:
        begun, used = time.perf_counter(), cpu()
        await step()
        times.append((time.perf_counter() - begun) * 1e3)
        cpus.append((cpu() - used) * 1e3)
    print(f"  {what:42} {statistics.median(times):8.1f} ms   {statistics.median(cpus):8.1f} ms CPU", flush=True)


async def go(netfilter: Netfilter, services: int) -> None:
    """Measure one adapter."""
    print(f"{netfilter.name}, {services:,} services")
    full, less, refusing = rules(services), rules(services - 1), rules(services, refused=1)
    try:
        await measure("all of them, at start", [lambda: netfilter.apply(full, verify=True)])
        for what, to in (("one service less, or more", less), ("one without endpoints, or with them", refusing)):
            both = [partial(netfilter.apply, it, verify=False) for it in (to, full)]
            await measure(what, both * ROUNDS)
        await measure("nothing new", [lambda: netfilter.apply(full, verify=False)] * ROUNDS)
        await measure("nothing new, verified", [lambda: netfilter.apply(full, verify=True)] * ROUNDS)
        await measure("paused", [netfilter.pause])
        await measure("all of them, after the pause", [lambda: netfilter.apply(full, verify=True)])
        await measure("removed", [netfilter.cleanup])
    finally:
        await netfilter.close()
    print(
        f"  largest memory of the process so far: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"
    )


def main() -> None:
    """Measure both adapters."""
    services = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.NamedTemporaryFile() as lock, Host("node") as node, node.entered():
        os.environ["XTABLES_LOCKFILE"] = lock.name
        for adapter in (Nftables, Iptables):
            asyncio.run(go(WithRouting(adapter()), services))


if __name__ == "__main__":
    main()
