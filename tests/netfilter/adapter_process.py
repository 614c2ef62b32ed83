"""Runs an adapter in a process of its own, so that it works on the host of that process.

    python -m tests.netfilter.adapter_process ADAPTER

Reads one JSON request per line and answers each with one line: ``{"do": "apply", "rules": {…}, "verify": bool}``,
``{"do": "pause", "for_s": seconds}``, ``{"do": "cleanup"}``, ``{"do": "reach", "rules": …}``,
``{"do": "why_not", "feature": "TRANSPARENT"}``, ``{"do": "watch"}`` and then
``{"do": "foreign", "within_s": seconds}`` (whether another process has changed our rules),
``{"do": "pause_stale_rules", "for_s": seconds}``, ``{"do": "cleanup_all", "keep": …}``,
``{"do": "select", "order": […]}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

import structlog

from kubeproxy.model import Destination, Family, Origin, Protocol, Target, Traffic, parse_address
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.cleanup import cleanup_all, pause_stale_rules
from kubeproxy.netfilter.interface import Feature, Netfilter
from kubeproxy.netfilter.iptables.adapter import Iptables
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet, Spread
from kubeproxy.netfilter.select import select
from kubeproxy.netfilter.with_routing import WithRouting


def to_json(rules: RuleSet) -> dict[str, Any]:
    """A rule set as the driver reads it."""
    return {
        "redirects": [[*destination, origin, port] for (destination, origin), port in rules.redirects.items()],
        "internal_sources": sorted(rules.internal_sources),
        "uplinks": sorted(rules.uplinks),
        "node_addresses": sorted(rules.node_addresses),
        "allowed_sources": [[*destination, sorted(cidrs)] for destination, cidrs in rules.allowed_sources.items()],
        "transparent": rules.transparent,
        "guard_sockets": rules.guard_sockets,
        "proxy_ports": [list(port) for port in rules.proxy_ports],
        "refused": [list(port) for port in rules.refused],
        "dropped": [list(port) for port in rules.dropped],
        "landing": {str(family.value): address for family, address in rules.landing.items()},
        "bind": {str(family.value): address for family, address in rules.bind.items()},
        "spreads": [
            [*destination, origin, [it.service_port, it.targets, it.affinity_timeout_s]]
            for (destination, origin), it in rules.spreads.items()
        ],
        "hooks": [list(each) for each in rules.hooks],
        "hook_port": rules.hook_port,
    }


def from_json(data: dict[str, Any]) -> RuleSet:
    """The inverse of `to_json`."""

    def ports(name: str) -> set[ProxyPort]:
        return {ProxyPort(Protocol(protocol), port) for protocol, port in data[name]}

    def destination(address: str, protocol: str, port: int) -> Destination:
        return Destination(parse_address(address), Protocol(protocol), port)

    def traffic(name: str) -> dict[Traffic, Any]:
        return {Traffic(destination(*to), Origin(origin)): value for *to, origin, value in data[name]}

    def spread(name: str, listed: list[tuple[str, int]], affinity_timeout_s: int | None) -> Spread:
        targets = tuple(Target(parse_address(address), port) for address, port in listed)
        return Spread(name, targets, targets, affinity_timeout_s)

    return RuleSet(
        redirects=traffic("redirects"),
        internal_sources=frozenset(data["internal_sources"]),
        uplinks=frozenset(data["uplinks"]),
        node_addresses=frozenset(map(parse_address, data["node_addresses"])),
        allowed_sources={destination(*to): frozenset(cidrs) for *to, cidrs in data["allowed_sources"]},
        transparent=data["transparent"],
        guard_sockets=data["guard_sockets"],
        proxy_ports=ports("proxy_ports"),
        refused=ports("refused"),
        dropped=ports("dropped"),
        landing={Family(int(family)): parse_address(text) for family, text in data["landing"].items()},
        bind={Family(int(family)): parse_address(text) for family, text in data["bind"].items()},
        hooks={destination(*each) for each in data["hooks"]},
        hook_port=data["hook_port"],
        spreads={key: spread(*fields) for key, fields in traffic("spreads").items()},
    )


def make(adapter: str) -> Netfilter:
    """An adapter by its name."""
    return WithRouting(Nftables() if adapter == "nftables" else Iptables(lock_wait_s=3.0))


async def answer(netfilter: Netfilter, request: dict[str, Any], foreign: asyncio.Event) -> Any:
    """Carry out a request."""
    match request["do"]:
        case "watch":
            netfilter.on_foreign_change(foreign.set)
            return None
        case "foreign":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(foreign.wait(), request["within_s"])
            seen = foreign.is_set()
            foreign.clear()
            return seen
        case "apply":
            return await netfilter.apply(from_json(request["rules"]), verify=request["verify"])
        case "why_not":
            return await netfilter.why_not(Feature[request["feature"]])
        case "pause":
            return await netfilter.pause(request["for_s"])
        case "reach":
            return list(await netfilter.reach(from_json(request["rules"])))
        case "cleanup":
            return await netfilter.cleanup()
        case "pause_stale_rules":
            return await pause_stale_rules(for_s=request["for_s"])
        case "cleanup_all":
            return await cleanup_all(keep=request["keep"], force=True)
        case "select":
            selected, why = await select(request["order"])
            await selected.close()
            return [selected.name, why]
    raise ValueError(f"unknown request {request}")


async def main() -> None:
    """Answer requests until the end of the input."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    netfilter = make(sys.argv[1])
    foreign = asyncio.Event()
    while line := await asyncio.to_thread(sys.stdin.readline):
        started = time.perf_counter()
        try:
            reply = {"result": await answer(netfilter, json.loads(line), foreign)}
        except KernelError as error:
            reply = {"error": str(error)}
        print(json.dumps(reply | {"ms": (time.perf_counter() - started) * 1e3}), flush=True)
    await netfilter.close()


if __name__ == "__main__":
    asyncio.run(main())
