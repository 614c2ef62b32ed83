"""The rules of the kernel path alone: ``python -m tests.tools.bench.kernel_rules [SERVICES [ENDPOINTS]]``, as root.

In a network namespace of its own it loads 10,000 Services of 10 endpoints each, or as many as are given. One endpoint
changes after the other, by netlink and by the program nft, which gets the difference of all rules; then one endpoint of
all Services at once. It prints times, processor times of this process and its children, and the memory of this process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from kubeproxy.model import Address, Destination, Protocol, Target, Traffic
from kubeproxy.netfilter.interface import Feature
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.ruleset import ProxyPort, RuleChange, RuleSet, Spread
from tests.support.lab import Host

CHANGES = 300
BY_PROGRAM = 40


def rule_set(services: int, endpoints: int = 10, *, spread: bool) -> RuleSet:
    """So many Services, with the kernel path or without it."""
    redirects: dict[Traffic, int] = {}
    spreads: dict[Traffic, Spread] = {}
    for number in range(services):
        traffic = Traffic(Destination(Address(f"10.96.{number >> 8}.{number & 255}"), Protocol.TCP, 80))
        redirects[traffic] = 10_000 + number
        targets = tuple(_target(number * endpoints + index) for index in range(endpoints))
        spreads[traffic] = Spread(f"namespace-{number % 100}/service-{number}:http", targets, targets)
    ports = {ProxyPort(Protocol.TCP, port) for port in redirects.values()}
    return RuleSet(redirects=redirects, spreads=spreads if spread else {}, proxy_ports=ports)


def _target(number: int) -> Target:
    return Target(Address(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"), 8080)


def changes(rules: RuleSet) -> Iterator[dict[Traffic, Spread | None]]:
    """One endpoint leaves, and comes back; each time at another Service."""
    every = list(rules.spreads)
    for count in range(CHANGES):
        traffic = every[count * len(every) // CHANGES]
        spread = rules.spreads[traffic]
        left = tuple(target for index, target in enumerate(spread.targets) if index != count % len(spread.targets))
        yield {traffic: replace(spread, targets=left, endpoints=left)}
        yield {traffic: spread}


async def measure(services: int, endpoints: int) -> None:
    """Print the figures."""
    for spread in (False, True):
        nftables = Nftables()
        await nftables.probe(Feature.SPREADS)
        rules = rule_set(services, endpoints, spread=spread)
        before = _resident_mib()
        used, took = _cpu_s(), await _timed(nftables, rules, verify=True)
        path = "kernel path" if spread else "userspace path"
        grown = _resident_mib() - before
        print(f"{path}: loaded in {took:.2f} s, CPU {_cpu_s() - used:.2f} s, {grown:.1f} MiB")
        took = await _timed(nftables, replace(rules, landing={}), verify=False)
        print(f"  compared with itself in {1e3 * took:.1f} ms")
        if spread:
            await _change(nftables, rules)
            await _change_all(nftables, rules)
            other = Nftables()
            used, took = _cpu_s(), await _timed(other, rules, verify=True)
            print(f"  read by another instance in {took:.2f} s, CPU {_cpu_s() - used:.2f} s")
            await other.close()
        await nftables.cleanup()
        await nftables.close()


async def _timed(nftables: Nftables, rules: RuleSet, *, verify: bool) -> float:
    began = time.perf_counter()
    await nftables.apply(rules, verify=verify)
    return time.perf_counter() - began


async def _change(nftables: Nftables, rules: RuleSet) -> None:
    """One endpoint of one Service after the other."""
    times: list[float] = []
    used = _cpu_s()
    for change in changes(rules):
        began = time.perf_counter()
        if not await nftables.change(RuleChange(change)):
            raise SystemExit("the adapter refused a change")
        times.append(time.perf_counter() - began)
    _print("one endpoint changed by netlink", times, _cpu_s() - used)
    times, used = [], _cpu_s()
    for change in islice(changes(rules), BY_PROGRAM):
        changed = {each: it for each, it in change.items() if it is not None}
        times.append(await _timed(nftables, replace(rules, spreads={**rules.spreads, **changed}), verify=False))
    _print("one endpoint changed by the program nft", times, _cpu_s() - used)
    await nftables.apply(rules, verify=False)


async def _change_all(nftables: Nftables, rules: RuleSet) -> None:
    """One endpoint of every Service at once, by netlink."""
    left: dict[Traffic, Spread | None] = {
        each: replace(it, targets=it.targets[1:]) for each, it in rules.spreads.items()
    }
    for change in (left, dict(rules.spreads)):
        used, began = _cpu_s(), time.perf_counter()
        await nftables.change(RuleChange(change))
        took = time.perf_counter() - began
        print(f"  one endpoint of all Services changed in {took:.2f} s, CPU {_cpu_s() - used:.2f} s")


def _print(what: str, times_s: list[float], cpu_s: float) -> None:
    times = sorted(1e3 * took for took in times_s)
    p50, p99 = (times[len(times) * part // 100] for part in (50, 99))
    cpu_ms = 1e3 * cpu_s / len(times)
    print(f"  {what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest {times[-1]:.2f} ms, CPU {cpu_ms:.2f} ms")


def _cpu_s() -> float:
    """Processor seconds of this process and of the programs that have ended."""
    return sum(os.times()[:4])


def _resident_mib() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


if __name__ == "__main__":
    with Host("rules") as host, host.entered():
        services, endpoints = (*map(int, sys.argv[1:]), *(10_000, 10)[len(sys.argv) - 1 :])
        asyncio.run(measure(services, endpoints))
