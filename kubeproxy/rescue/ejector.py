"""Keeps the endpoints' states on both data paths, and the rules that follow from them.

An endpoint that a worker's dial has ejected on the userspace path is ejected here, too: an endpoint has one state,
whichever process has noticed a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol as Interface

import structlog

from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.dataplane.messages import MarkEndpoint
from kubeproxy.model import Destination, FrontendName, Protocol, Target
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.model.rescue import Ejection
from kubeproxy.netfilter.routing.route_watch import Prefix, among
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.rescue.fair_turns import Tenants
from kubeproxy.rescue.kernel_path_ejections import Endpoint, KernelPathEjections
from kubeproxy.runtime.few_by_name import FewByName

log = structlog.get_logger(__name__)

NAMED_MAX, NAMED_S = 10, 5.0
"""How many ejections, and how many ends of them, are logged by name in this many seconds. The others are counted, so
that the log stays readable when a node dies with all its pods, or hundreds of endpoints flap."""
SILENT = ("silent", "timeout")
"""The reasons of endpoints that have not answered: the guardian's reason and the workers'."""


class Frontends(Interface):
    """The frontends that are served at present."""

    @property
    def in_force(self) -> RuleSet | None:
        """Return the rules in force, or None before the first."""

    def frontends_with(self, protocol: Protocol, target: Target) -> tuple[FrontendName, ...]:
        """Return the frontends of this protocol that have an endpoint."""


class Applier(Interface):
    """Puts ejections into the rules. The value of an endpoint is true if it is silent (`data_path.Ejected`)."""

    async def eject(self, ejected: Mapping[tuple[Protocol, Target], bool]) -> None:
        """Have the kernel lead no new connections to these endpoints, and return when that is in force."""

    def set_ejected(self, ejected: Mapping[tuple[Protocol, Target], bool]) -> None:
        """Have the kernel lead no new connections to these endpoints, soon."""


class Ejector:
    """The states of endpoints, and the rules that follow from them."""

    def __init__(self, frontends: Frontends, proxier: Applier, data_plane: DataPlane) -> None:
        self._frontends = frontends
        self._proxier = proxier
        self._data_plane = data_plane
        self._ejections = KernelPathEjections()
        self._changes = self._applied = 0
        """How many changes of the ejections there were so far, and how many of them the proxier has put in force."""
        self._applying = asyncio.Lock()
        self._ejected_log, self._back_log, self._removed_log = (
            FewByName(at_most=NAMED_MAX, interval_s=NAMED_S) for _ in range(3)
        )
        self.totals: dict[tuple[str, str], int] = {}
        """The number of ejections so far, by reason and by the part that has noticed the failure."""

    @property
    def ejected(self) -> Mapping[Endpoint, Ejection]:
        return self._ejections.ejected

    def knows(self, protocol: Protocol, target: Target) -> bool:
        """Return whether a Service has this endpoint. Other endpoints are left alone."""
        return bool(self._frontends.frontends_with(protocol, target))

    def translates(self, destination: Destination) -> bool:
        """Return whether our rules lead this destination to endpoints. Connections that others translate are left
        alone."""
        rules = self._frontends.in_force
        return rules is not None and rules.spreads_to(destination)

    def is_ejected(self, protocol: Protocol, target: Target) -> bool:
        """Return whether the rules leave an endpoint out."""
        return Endpoint(protocol, target) in self._ejections.ejected

    async def failed(self, protocol: Protocol, target: Target, reason: str) -> None:
        """Eject an endpoint, and return when the rules leave it out."""
        endpoint = Endpoint(protocol, target)
        if self._eject(endpoint, reason, "rescue"):
            await self._apply()
            await self._mark(endpoint, reason)

    async def noticed(self, found: Mapping[Endpoint, str]) -> None:
        """Eject endpoints that workers have ejected, for these reasons."""
        if sum(self._eject(endpoint, reason, "worker") for endpoint, reason in found.items()):
            await self._apply()

    async def answered(self, protocol: Protocol, target: Target) -> None:
        """Bring an ejected endpoint back, because a dial has reached it."""
        endpoint = Endpoint(protocol, target)
        found = self._ejections.ejected.get(endpoint)
        if found is not None and self._ejections.answered(endpoint, _now()):
            if self._back_log.allow(_now()):
                log.info(
                    "endpoint restored", endpoint=str(target), protocol=protocol, after_s=round(_now() - found.since, 3)
                )
            await self._apply()
            await self._mark(endpoint, None)

    async def restore(self, target: Target) -> bool:
        """End the ejections of an endpoint on both data paths. Return whether there were any."""
        names = [name for protocol in Protocol for name in self._frontends.frontends_with(protocol, target)]
        by_workers = await self._data_plane.ejected()
        known = any(one.target == target for name in names for one in by_workers.get(name, ()))
        for protocol in Protocol:
            if self.is_ejected(protocol, target):
                known = True
                await self.answered(protocol, target)
        await self._data_plane.send([MarkEndpoint(name, target, None) for name in names])
        return known

    def unanswered(self, protocol: Protocol, target: Target) -> None:
        """Note that a dial has not reached an ejected endpoint."""
        self._ejections.unanswered(Endpoint(protocol, target), _now())

    def tenants(self, protocol: Protocol, target: Target) -> Tenants:
        """Return the namespaces of the Services that have an endpoint."""
        return frozenset(name.service_port.namespace for name in self._frontends.frontends_with(protocol, target))

    def due(self) -> list[tuple[Protocol, Target, Tenants]]:
        """Return the ejected endpoints to dial now with their tenants, the longest due first.

        Each one is due until it is dialed.
        """
        return [(*endpoint, tenants) for endpoint, tenants in self._ejections.due(_now()).items()]

    def dialed(self, protocol: Protocol, target: Target) -> None:
        """Note that a due endpoint is being dialed now."""
        self._ejections.dialed(Endpoint(protocol, target), _now())

    def endpoints_in(self, prefixes: Collection[Prefix]) -> list[tuple[Protocol, Target]]:
        """Return the endpoints of the kernel path with these addresses."""
        rules = self._frontends.in_force
        if rules is None:
            return []
        # The traffic of a frontend shares one spread.
        spreads = {(to.protocol, id(spread)): spread for (to, _), spread in rules.spreads.items()}
        lost = among({target.address for it in spreads.values() for target in it.targets}, prefixes)
        found = (
            (protocol, target)
            for (protocol, _), it in spreads.items()
            for target in it.targets
            if target.address in lost
        )
        return [(protocol, target) for protocol, target in dict.fromkeys(found) if self.knows(protocol, target)]

    def forget(self, now: float) -> None:
        """Forget endpoints that no Service has any more."""
        gone = self._ejections.keep(_Known(self._frontends), now)
        for endpoint, ejection in gone.items():
            if self._removed_log.allow(now):
                log.info(
                    "ejected endpoint removed from its Service",
                    endpoint=str(endpoint.target),
                    protocol=endpoint.protocol,
                    after_s=round(now - ejection.since, 3),
                )
        if gone:
            self._proxier.set_ejected(self._pairs())

    def log_others(self, now: float) -> None:
        """Log how many ejections, and ends of them, were not logged by name."""
        if more := self._ejected_log.others(now):
            log.warning("more endpoints ejected", endpoints=more, remedy="list all with `kubeproxy status`")
        if more := self._back_log.others(now):
            log.info("more endpoints restored", endpoints=more)
        if more := self._removed_log.others(now):
            log.info("more ejected endpoints removed", endpoints=more)

    async def forget_all(self) -> None:
        """Forget everything."""
        self._ejections = KernelPathEjections()
        await self._apply()

    def _eject(self, endpoint: Endpoint, reason: str, noticed_by: str) -> bool:
        if not self.knows(*endpoint):
            return False
        ejected = self._ejections.failed(
            endpoint, _now(), reason=reason, noticed_by=noticed_by, tenants=self.tenants(*endpoint)
        )
        if ejected:
            self.totals[reason, noticed_by] = self.totals.get((reason, noticed_by), 0) + 1
            if self._ejected_log.allow(_now()):
                log.warning(
                    "endpoint ejected",
                    endpoint=str(endpoint.target),
                    protocol=endpoint.protocol,
                    reason=reason,
                    noticed_by=noticed_by,
                )
        return ejected

    async def _mark(self, endpoint: Endpoint, reason: str | None) -> None:
        """Have the workers leave the endpoint out, too, or use it again."""
        names = self._frontends.frontends_with(*endpoint)
        try:
            await self._data_plane.send([MarkEndpoint(name, endpoint.target, reason) for name in names])
        except KubeproxyError as error:  # The workers find out by themselves, by a dial.
            log.info("workers do not know of the endpoint", endpoint=str(endpoint.target), reason=str(error))

    async def _apply(self) -> None:
        """Put all changes so far in force. Changes that come together are one call.

        So at most one call waits for the proxier, and a change of endpoints never waits for thousands of calls.
        """
        self._changes += 1
        mine = self._changes
        async with self._applying:
            if self._applied >= mine:
                return
            await asyncio.sleep(0)  # Failures of the same turn join this call.
            taken = self._changes
            await self._proxier.eject(self._pairs())
            self._applied = taken

    def _pairs(self) -> Mapping[tuple[Protocol, Target], bool]:
        return {(each.protocol, each.target): it.reason in SILENT for each, it in self._ejections.ejected.items()}


class _Known:
    """The endpoints of all Services."""

    def __init__(self, frontends: Frontends) -> None:
        self._frontends = frontends

    def __contains__(self, endpoint: object) -> bool:
        return isinstance(endpoint, Endpoint) and bool(self._frontends.frontends_with(*endpoint))


def _now() -> float:
    return asyncio.get_running_loop().time()
