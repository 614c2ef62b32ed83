"""The rescue of failed connections, while the configuration asks for the kernel path: see docs/rescue.md.

It connects the guardian, which notices failures, with the proxier, which changes the rules. What a worker's dial has
ejected on the userspace path is ejected here, too: an endpoint has one state, whichever process has noticed a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import structlog

from kubeproxy.daemon.data_paths import DataPaths
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.dataplane.messages import MarkEndpoint
from kubeproxy.model import Destination, Protocol, Target
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.model.rescue import Ejection, RescueCounts, RescueState
from kubeproxy.netfilter.conntrack.sysctls import ConntrackLimits, tcp_timeouts
from kubeproxy.netfilter.interface import Feature, Netfilter
from kubeproxy.netfilter.nftables.rescue import BRIDGE_S
from kubeproxy.netfilter.routing.route_watch import Prefix, among
from kubeproxy.observability.logs.ratelimit import FewByName
from kubeproxy.proxier.data_path import Ejected, Wanted
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.rescue.ejections import Ejections, Endpoint
from kubeproxy.rescue.fair_turns import Tenants
from kubeproxy.rescue.guardian import Guardian

log = structlog.get_logger(__name__)

WORKERS_LOOK_S = 2.0
"""How often the workers' ejections are read."""
FORGET_S = 1.0
"""How often endpoints are forgotten that no Service has any more."""
NAMED_MAX, NAMED_S = 10, 5.0
"""So many ejections, and so many ends of them, are logged by name in this time; the others are counted. When a node
dies with all its pods, or hundreds of endpoints flap, the log stays readable."""
READY_S = BRIDGE_S
"""How long a takeover, a start after a re-exec, or a change to the kernel path waits for the rescue. So long the rules
of the program before are kept alive; on a busy node its process takes seconds to start."""
SILENT = ("silent", "timeout")
"""The reasons of endpoints that have not answered: the guardian's and the workers'."""
FORGOTTEN = {"close": 0}
"""A connection that its endpoint has reset is forgotten at once. If the kernel remembered it, a client that uses its
port again would be led to the same endpoint as before, which may be dead by now, and would see its refusal."""
GAP_S = 3.0
"""How long the rescue may be interrupted before `auto` leaves the kernel path: a restart of its process takes less."""


class Rescue:
    """The part of the daemon that starts and stops the guardian."""

    def __init__(
        self,
        *,
        netfilter: Netfilter,
        proxier: Proxier,
        data_plane: DataPlane,
        data_paths: DataPaths,
        limits: ConntrackLimits,
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        """`limits`: what the configuration says of connection tracking."""
        self._netfilter = netfilter
        self._proxier = proxier
        self._data_plane = data_plane
        self._limits = limits
        self._data_paths = data_paths
        self._on_crash = on_crash
        self._ejector = _Ejector(proxier, data_plane)
        self._guardian: Guardian | None = None
        self._changed = asyncio.Event()
        self._why_not: str | None = None
        self._ready = asyncio.Event()
        self._counts = RescueCounts()
        """Of guardians that have ended."""
        self._restarts = 0
        """Of the processes of guardians that have ended."""
        self._worked = False
        self._changed_at = _now()

    def policy_changed(self) -> None:
        """Start or stop as the policy of data paths now asks for."""
        self._changed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._changed.clear()
            if self._wanted:
                self._why_not = await self._netfilter.why_not(Feature.RESCUE)
                if self._why_not is None:
                    await self._guard()
                else:
                    log.warning("failed connections are not rescued", reason=self._why_not)
                    self._data_paths.cease_waiting()
            self._ready.set()
            await self._changed.wait()

    async def ready(self) -> None:
        """Wait until the first rules can report failures, if they are to, but not for long.

        Otherwise clients would meet dead endpoints after a start, a takeover or a re-exec."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                await self._ready.wait()

    def bridge(self) -> None:
        """Keep failed connections rescued while this process executes its next program."""
        if self._guardian is not None:
            self._guardian.bridge()

    async def restore(self, target: Target) -> bool:
        """End the ejections of an endpoint on both data paths; tell whether there were any."""
        return await self._ejector.restore(target)

    def state(self) -> RescueState | None:
        """Return the state for the status and metrics, or None if the kernel path is not asked for."""
        if self._data_paths.policy.wanted is Wanted.USERSPACE:
            return None
        guardian = self._guardian
        self._note(guardian is not None and guardian.working)
        problem = (
            self._data_paths.policy.refusal or self._why_not or (guardian.problem if guardian is not None else None)
        )
        return RescueState(
            working=self._worked,
            changed_at=self._changed_at,
            problem=problem or "",
            restarts=self._restarts + (0 if guardian is None else guardian.restarts),
            counts=self._counts if guardian is None else self._counts.plus(guardian.counts),
            ejections=self._ejector.totals,
            ejected=dict(self._ejector.ejected.items()),
        )

    def _note(self, working: bool) -> None:
        """Keep since when it works, or does not."""
        if working is not self._worked:
            self._worked, self._changed_at = working, _now()

    def complaint(self) -> str | None:
        """Why failed connections of the kernel path are not rescued; None: they are, or there is no kernel path."""
        if not self._wanted:
            return None
        if self._why_not is not None:
            return f"failed connections are not rescued: {self._why_not}"
        return self._guardian.problem if self._guardian is not None else None

    @property
    def ejected(self) -> Mapping[Endpoint, Ejection]:
        """The endpoints to which the kernel leads no new connections, and why."""
        return self._ejector.ejected

    @property
    def _wanted(self) -> bool:
        policy = self._data_paths.policy
        return policy.wanted is not Wanted.USERSPACE and not policy.refusal

    async def _guard(self) -> None:
        """Run the guardian as long as the kernel path is wanted."""
        guardian = self._guardian = Guardian(
            self._ejector,
            on_group=self._report_to,
            in_force=self._proxier.kernel.reports_to,
            on_crash=self._on_crash,
            programmed_at=lambda: self._proxier.kernel.programmed_at,
        )
        try:
            async with asyncio.TaskGroup() as group:
                parts = [
                    group.create_task(self._await_start(guardian)),
                    group.create_task(guardian.run()),
                    group.create_task(self._watch_workers()),
                    group.create_task(self._watch_health(guardian)),
                ]
                while self._wanted:
                    self._changed.clear()
                    await self._changed.wait()
                for part in parts:
                    part.cancel()
        finally:
            self._counts = replace(self._counts.plus(guardian.counts), held=0)
            self._restarts += guardian.restarts
            self._guardian = None
            self._note(False)
            self._report_to(None)
            self._data_paths.use_rescue(works=False)
            await self._ejector.forget_all()

    def _report_to(self, group: int | None) -> None:
        """Have the rules report failed connections to this NFLOG group; None if there is none any more."""
        timeouts = {} if group is None else {**tcp_timeouts(self._limits), **FORGOTTEN}
        self._proxier.use(dataclasses.replace(self._proxier.settings, rescue_group=group, tcp_timeouts=timeouts))

    async def _await_start(self, guardian: Guardian) -> None:
        await guardian.started.wait()
        self._ready.set()

    async def _watch_health(self, guardian: Guardian) -> None:
        """Have `auto` follow whether failed connections are rescued."""
        began, worked_at = _now(), float("-inf")
        while True:
            now = _now()
            working = guardian.working
            self._note(working)
            if working:
                worked_at = now
            self._data_paths.use_rescue(works=now - worked_at <= GAP_S)
            if now - began > READY_S:
                self._data_paths.cease_waiting()
            self._ejector.forget(now)
            self._ejector.log_others(now)
            await asyncio.sleep(FORGET_S)

    async def _watch_workers(self) -> None:
        """Eject what the workers have ejected since the last look."""
        before: frozenset[Endpoint] = frozenset()
        while True:
            await asyncio.sleep(WORKERS_LOOK_S)
            found: dict[Endpoint, str] = {}
            for name, ejected in (await self._data_plane.ejected()).items():
                if (protocol := self._proxier.view.protocol_of(name)) is not None:
                    found.update((Endpoint(protocol, each.target), each.reason) for each in ejected)
            # One that a worker keeps ejected, and a dial of the guardian's has brought back, stays back.
            await self._ejector.noticed({each: reason for each, reason in found.items() if each not in before})
            before = frozenset(found)


class _Ejector:
    """The states of endpoints, and the rules that follow from them."""

    def __init__(self, proxier: Proxier, data_plane: DataPlane) -> None:
        self._proxier = proxier
        self._data_plane = data_plane
        self._ejections = Ejections()
        self._changes = self._applied = 0
        """Changes of the ejections so far, and how many of them the proxier has put in force."""
        self._applying = asyncio.Lock()
        self._ejected_log, self._back_log = (FewByName(at_most=NAMED_MAX, interval_s=NAMED_S) for _ in range(2))
        self.totals: dict[tuple[str, str], int] = {}
        """Ejections so far by reason, and by which part has noticed the failure."""

    @property
    def ejected(self) -> Mapping[Endpoint, Ejection]:
        return self._ejections.ejected

    def knows(self, protocol: Protocol, target: Target) -> bool:
        """See `ejector.Ejector`."""
        return bool(self._proxier.view.frontends_with(protocol, target))

    def translates(self, destination: Destination) -> bool:
        """See `ejector.Ejector`."""
        rules = self._proxier.kernel.in_force
        return rules is not None and rules.spreads_to(destination)

    def is_ejected(self, protocol: Protocol, target: Target) -> bool:
        """See `ejector.Ejector`."""
        return Endpoint(protocol, target) in self._ejections.ejected

    async def failed(self, protocol: Protocol, target: Target, reason: str) -> None:
        """See `ejector.Ejector`."""
        endpoint = Endpoint(protocol, target)
        if self._eject(endpoint, reason, "rescue"):
            await self._apply()
            await self._mark(endpoint, reason)

    async def noticed(self, found: Mapping[Endpoint, str]) -> None:
        """Workers have ejected these endpoints, for these reasons."""
        if sum(self._eject(endpoint, reason, "worker") for endpoint, reason in found.items()):
            await self._apply()

    async def answered(self, protocol: Protocol, target: Target) -> None:
        """See `ejector.Ejector`."""
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
        """End the ejections of an endpoint on both data paths; tell whether there were any."""
        names = [name for protocol in Protocol for name in self._proxier.view.frontends_with(protocol, target)]
        by_workers = await self._data_plane.ejected()
        known = any(one.target == target for name in names for one in by_workers.get(name, ()))
        for protocol in Protocol:
            if self.is_ejected(protocol, target):
                known = True
                await self.answered(protocol, target)
        await self._data_plane.send([MarkEndpoint(name, target, None) for name in names])
        return known

    def unanswered(self, protocol: Protocol, target: Target) -> None:
        """See `ejector.Ejector`."""
        self._ejections.unanswered(Endpoint(protocol, target), _now())

    def tenants(self, protocol: Protocol, target: Target) -> Tenants:
        """See `ejector.Ejector`."""
        return frozenset(name.service_port.namespace for name in self._proxier.view.frontends_with(protocol, target))

    def due(self) -> list[tuple[Protocol, Target, Tenants]]:
        """See `ejector.Ejector`."""
        return [(*endpoint, tenants) for endpoint, tenants in self._ejections.due(_now()).items()]

    def dialed(self, protocol: Protocol, target: Target) -> None:
        """See `ejector.Ejector`."""
        self._ejections.dialed(Endpoint(protocol, target), _now())

    def endpoints_in(self, prefixes: Collection[Prefix]) -> list[tuple[Protocol, Target]]:
        """See `ejector.Ejector`."""
        rules = self._proxier.kernel.in_force
        if rules is None:
            return []
        spreads = {
            (destination.protocol, id(spread)): spread
            for known in (rules.spreads, rules.own_spreads)
            for destination, spread in known.items()
        }
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
        if self._ejections.keep(_Known(self._proxier), now):
            self._proxier.set_ejected(self._pairs())

    def log_others(self, now: float) -> None:
        """Log how many ejections, and ends of them, were not logged by name."""
        if more := self._ejected_log.others(now):
            log.warning("more endpoints ejected", endpoints=more, remedy="list all with `kubeproxy status`")
        if more := self._back_log.others(now):
            log.info("more endpoints restored", endpoints=more)

    async def forget_all(self) -> None:
        """Forget everything."""
        self._ejections = Ejections()
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
        """Have the workers leave it out, too, or take it in again."""
        names = self._proxier.view.frontends_with(*endpoint)
        try:
            await self._data_plane.send([MarkEndpoint(name, endpoint.target, reason) for name in names])
        except KubeproxyError as error:  # they find out by themselves, by a dial
            log.info("workers do not know of the endpoint", endpoint=str(endpoint.target), reason=str(error))

    async def _apply(self) -> None:
        """Put all changes so far in force; changes that come together are one call.

        So one call at most waits for the proxier, and a change of endpoints never waits for thousands of them."""
        self._changes += 1
        mine = self._changes
        async with self._applying:
            if self._applied >= mine:
                return
            await asyncio.sleep(0)  # failures of the same turn come along
            taken = self._changes
            await self._proxier.eject(self._pairs())
            self._applied = taken

    def _pairs(self) -> Ejected:
        return {(each.protocol, each.target): it.reason in SILENT for each, it in self._ejections.ejected.items()}


class _Known:
    """The endpoints of all Services."""

    def __init__(self, proxier: Proxier) -> None:
        self._proxier = proxier

    def __contains__(self, endpoint: object) -> bool:
        return isinstance(endpoint, Endpoint) and bool(self._proxier.view.frontends_with(*endpoint))


def _now() -> float:
    return asyncio.get_running_loop().time()
