"""A guardian on a node, with the rules of the kernel path for one Service.

Tests run it on a host of the laboratory.

Standard input has the endpoints, ``ADDRESS PORT`` each. With the argument ``affinity`` clients stay with theirs.
Standard output has a line for each change of the ejected ones, for each dial, and for each change of the rescue
process's counts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict

from kubeproxy.model import NODE_PORTS, Address, Destination, Family, Protocol, Target, Traffic, family_of
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.routing.route_watch import Prefix
from kubeproxy.netfilter.ruleset import Masquerade, RuleChange, RuleSet, Spread
from kubeproxy.rescue import dials
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.rescue.fair_turns import Tenants
from kubeproxy.rescue.guardian import Guardian
from kubeproxy.rescue.kernel_path_ejections import Endpoint, KernelPathEjections
from kubeproxy.rescue.probe import Outcome, dial

SERVICE = {4: "10.96.0.10", 6: "fd00:96::10"}
PORT = 80
NODE_PORT = 30080
PROXY_PORT = 7001
"""Of the userspace listener, which takes over when all endpoints are ejected; the tests bind it."""


class OneService(Ejector):
    """The endpoints of one Service, and its rules."""

    def __init__(self, endpoints: Sequence[Target], affinity_timeout_s: int | None) -> None:
        self._endpoints = endpoints
        self._affinity_timeout_s = affinity_timeout_s
        self._family = family_of(endpoints[0].address)
        self._ejections = KernelPathEjections()
        self._adapter = Nftables()
        self._lock = asyncio.Lock()
        self.group: int | None = None

    def knows(self, protocol: Protocol, target: Target) -> bool:
        return target in self._endpoints

    def translates(self, destination: Destination) -> bool:
        return self.rules().spreads_to(destination)

    def is_ejected(self, protocol: Protocol, target: Target) -> bool:
        return Endpoint(protocol, target) in self._ejections.ejected

    async def failed(self, protocol: Protocol, target: Target, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if target in self._endpoints and self._ejections.failed(
            Endpoint(protocol, target), now, reason=reason, noticed_by="rescue"
        ):
            await self._spread()

    async def answered(self, protocol: Protocol, target: Target) -> None:
        if self._ejections.answered(Endpoint(protocol, target), asyncio.get_running_loop().time()):
            await self._spread()

    def unanswered(self, protocol: Protocol, target: Target) -> None:
        self._ejections.unanswered(Endpoint(protocol, target), asyncio.get_running_loop().time())

    def tenants(self, protocol: Protocol, target: Target) -> Tenants:
        return frozenset({"default"})

    def due(self) -> list[tuple[Protocol, Target, Tenants]]:
        due = self._ejections.due(asyncio.get_running_loop().time())
        return [(*endpoint, tenants) for endpoint, tenants in due.items()]

    def dialed(self, protocol: Protocol, target: Target) -> None:
        self._ejections.dialed(Endpoint(protocol, target), asyncio.get_running_loop().time())

    def endpoints(self) -> Iterator[tuple[Protocol, Target]]:
        return iter(())

    def endpoints_in(self, prefixes: Collection[Prefix]) -> list[tuple[Protocol, Target]]:
        return []

    def spreads(self) -> dict[Traffic, Spread]:
        address, spreads = Address(SERVICE[self._family.value]), {}
        for protocol in (Protocol.TCP, Protocol.UDP):
            usable = [each for each in self._endpoints if Endpoint(protocol, each) not in self._ejections.ejected]
            spread = Spread(f"default/web:{protocol}", tuple(usable), tuple(self._endpoints), self._affinity_timeout_s)
            spreads[Traffic(Destination(address, protocol, PORT))] = spread
            spreads[Traffic(Destination(NODE_PORTS[self._family], protocol, NODE_PORT))] = spread
        return spreads

    def rules(self) -> RuleSet:
        spreads = self.spreads()
        return RuleSet(
            redirects=dict.fromkeys(spreads, PROXY_PORT),
            spreads=spreads,
            masquerades={to: Masquerade.ALWAYS for to, _ in spreads if to.port == NODE_PORT},
            hairpins={each.address for each in self._endpoints},
            node_addresses=frozenset({Address("10.2.0.1"), Address("fd00:2::1")}),
            landing={Family.IPV4: Address("10.2.0.1"), Family.IPV6: Address("fd00:2::1")},
            rescue=self.group,
        )

    async def use(self, group: int) -> None:
        """Report to this group of the packet log."""
        async with self._lock:
            self.group = group
            await self._adapter.apply(self.rules(), verify=False)

    async def _spread(self) -> None:
        async with self._lock:
            assert await self._adapter.change(RuleChange(self.spreads()))
            found = sorted(
                (each.protocol.value, str(each.target), it.reason) for each, it in self._ejections.ejected.items()
            )
            print(json.dumps(found), flush=True)


async def main(endpoints: Sequence[Target], *, affinity: bool) -> None:
    service = OneService(endpoints, 10800 if affinity else None)
    uses: set[asyncio.Task[None]] = set()

    def on_group(group: int) -> None:
        uses.add(asyncio.create_task(service.use(group)))

    def on_crash(name: str, error: BaseException) -> None:
        raise error

    async def noted(target: Target) -> Outcome:
        print(json.dumps({"dialed": str(target)}), flush=True)
        return await dial(target)

    dials.dial = noted  # type: ignore[attr-defined]
    guardian = Guardian(service, on_group=on_group, in_force=lambda group: service.group == group, on_crash=on_crash)
    async with asyncio.TaskGroup() as group:
        group.create_task(guardian.run())
        before = None
        while True:
            if (counts := guardian.counts) != before:
                print(json.dumps({"counts": asdict(counts)}), flush=True)
                before = counts
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    pairs = [line.split() for line in sys.stdin.read().splitlines()]
    targets = [Target(Address(address), int(port)) for address, port in pairs]
    asyncio.run(main(targets, affinity=sys.argv[1:] == ["affinity"]))
