"""Keeps the state of each endpoint on both data paths, and has the rules follow it.

If a worker's dial has ejected an endpoint on the userspace path, the endpoint is ejected here, too: an endpoint has one
state, whichever process noticed the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol as Interface

import structlog

from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.dataplane.messages import MarkEndpoint
from kubeproxy.model import Destination, FrontendName, Protocol, Target
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.model.rescue import Ejection
from kubeproxy.netfilter.routing.route_watch import Prefix, within
from kubeproxy.netfilter.ruleset import RuleSet, Spread
from kubeproxy.rescue.fair_turns import Tenants
from kubeproxy.rescue.kernel_path_ejections import Endpoint, KernelPathEjections
from kubeproxy.runtime.few_by_name import FewByName

log = structlog.get_logger(__name__)

NAMED_MAX, NAMED_S = 10, 5.0
"""The number of ejections, and of their ends, that are logged by name per this many seconds. Further ones are only
counted, so that the log stays readable when a node dies with all its pods, or hundreds of endpoints flap."""
SILENT = ("silent", "timeout")
"""The reasons for ejecting an endpoint that has not answered: first the guardian's, then the workers'."""


class Frontends(Interface):
    """The frontends that are served at present."""

    @property
    def in_force(self) -> RuleSet | None:
        """Return the rules in force, or None before the first transaction."""

    def frontends_with(self, protocol: Protocol, target: Target) -> tuple[FrontendName, ...]:
        """Return the frontends of this protocol that have an endpoint."""


class Applier(Interface):
    """Puts ejections into the rules. For each endpoint the value says whether the endpoint is silent
    (`data_path.Ejected`)."""

    async def eject(self, ejected: Mapping[tuple[Protocol, Target], bool]) -> None:
        """Remove these endpoints from the kernel's choice for new connections. Return when the kernel has the
        change."""

    def set_ejected(self, ejected: Mapping[tuple[Protocol, Target], bool]) -> None:
        """Remove these endpoints from the kernel's choice for new connections with the next sync."""


class Ejector:
    """Keeps the states of endpoints, and updates the rules accordingly."""

    def __init__(self, frontends: Frontends, proxier: Applier, data_plane: DataPlane) -> None:
        self._frontends = frontends
        self._proxier = proxier
        self._data_plane = data_plane
        self._ejections = KernelPathEjections()
        self._changes = self._applied = 0
        """The number of changes of ejections so far, and the number of those that are in force."""
        self._applying = asyncio.Lock()
        self._ejected_log, self._back_log, self._removed_log = (
            FewByName(at_most=NAMED_MAX, interval_s=NAMED_S) for _ in range(3)
        )
        self.totals: dict[tuple[str, str], int] = {}
        """The number of ejections so far, by reason and by the component that noticed the failure."""

    @property
    def ejected(self) -> Mapping[Endpoint, Ejection]:
        return self._ejections.ejected

    def knows(self, protocol: Protocol, target: Target) -> bool:
        """Return whether any Service has this endpoint. Endpoints without a Service are ignored."""
        return bool(self._frontends.frontends_with(protocol, target))

    def translates(self, destination: Destination) -> bool:
        """Return whether our rules send this destination to endpoints. Connections that other programs' rules translate
        are ignored."""
        rules = self._frontends.in_force
        return rules is not None and rules.spreads_to(destination)

    def is_ejected(self, protocol: Protocol, target: Target) -> bool:
        """Return whether the endpoint is ejected, so that the rules do not use it."""
        return Endpoint(protocol, target) in self._ejections.ejected

    async def failed(self, protocol: Protocol, target: Target, reason: str) -> None:
        """Eject an endpoint. Return when the rules no longer use it."""
        endpoint = Endpoint(protocol, target)
        if self._eject(endpoint, reason, "rescue"):
            await self._apply()
            await self._mark(endpoint, reason)

    async def noticed(self, found: Mapping[Endpoint, str]) -> None:
        """Eject endpoints that workers have ejected. `found` has the reason for each endpoint."""
        if sum(self._eject(endpoint, reason, "worker") for endpoint, reason in found.items()):
            await self._apply()

    async def answered(self, protocol: Protocol, target: Target) -> None:
        """End the ejection of an endpoint that a dial has reached."""
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
        """Record that a dial of an ejected endpoint has failed."""
        self._ejections.unanswered(Endpoint(protocol, target), _now())

    def tenants(self, protocol: Protocol, target: Target) -> Tenants:
        """Return the namespaces of the Services that have an endpoint."""
        return frozenset(name.service_port.namespace for name in self._frontends.frontends_with(protocol, target))

    def due(self) -> list[tuple[Protocol, Target, Tenants]]:
        """Return the ejected endpoints that are due for a dial, each with its tenants, the longest due first.

        An endpoint stays due until it is dialed.
        """
        return [(*endpoint, tenants) for endpoint, tenants in self._ejections.due(_now()).items()]

    def dialed(self, protocol: Protocol, target: Target) -> None:
        """Record that a due endpoint is being dialed now."""
        self._ejections.dialed(Endpoint(protocol, target), _now())

    def endpoints(self) -> Iterator[tuple[Protocol, Target]]:
        """Yield the endpoints of the kernel path in the present rules. Those of several Services may come again."""
        for protocol, spread in self._spreads():
            for target in spread.targets:
                yield protocol, target

    def endpoints_in(self, prefixes: Collection[Prefix]) -> list[tuple[Protocol, Target]]:
        """Return the endpoints of the kernel path with these addresses. This takes some 40 ms for 250,000
        endpoints."""
        lost = within(prefixes)
        found = {
            (protocol, target): None
            for protocol, spread in self._spreads()
            for target in spread.targets
            if target.address in lost
        }
        return list(found)

    def _spreads(self) -> list[tuple[Protocol, Spread]]:
        """Return the spreads of the rules in force. All addresses of a frontend share one."""
        rules = self._frontends.in_force
        spreads = {} if rules is None else {(to.protocol, id(it)): it for (to, _), it in rules.spreads.items()}
        return [(protocol, spread) for (protocol, _), spread in spreads.items()]

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
        """Log how many ejections, and ends of ejections, were not logged by name."""
        if more := self._ejected_log.others(now):
            log.warning("more endpoints ejected", endpoints=more, remedy="list all with `kubeproxy status`")
        if more := self._back_log.others(now):
            log.info("more endpoints restored", endpoints=more)
        if more := self._removed_log.others(now):
            log.info("more ejected endpoints removed", endpoints=more)

    async def forget_all(self) -> None:
        """Forget all endpoints and their ejections."""
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
        """Eject the endpoint on the workers for `reason`, too. If `reason` is None, end the ejection there."""
        names = self._frontends.frontends_with(*endpoint)
        try:
            await self._data_plane.send([MarkEndpoint(name, endpoint.target, reason) for name in names])
        except KubeproxyError as error:  # The workers find out by their own dials.
            log.info("workers do not know of the endpoint", endpoint=str(endpoint.target), reason=str(error))

    async def _apply(self) -> None:
        """Put all changes so far into force. Changes of the same moment share one call of the proxier.

        So at most one call waits for the proxier, and a change of Services never waits behind thousands of such calls.
        """
        self._changes += 1
        mine = self._changes
        async with self._applying:
            if self._applied >= mine:
                return
            await asyncio.sleep(0)  # Failures that are reported in the same turn of the loop share this call.
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
