"""Carries out the decisions of tracker, state and schedule, in rounds.

One round, always in this order:

1. update the data plane as far as possible now: new listeners first, endpoints of existing ones at once; beside it
   those of the kernel path, in small transactions of their own, so that neither waits for the other;
2. if it is due, update netfilter in one transaction, and then delete conntrack flows that contradict the rules;
3. only if that succeeded: update the data plane with what had to wait for it - frontends without any endpoint,
   listeners without a rule - and release the ports of closed listeners.

If (2) fails nothing is closed and no port released: working traffic goes on, and the round is retried. Changes that
come while a round awaits something belong to the next round.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import structlog

from kubeproxy.dataplane.interface import DataPlane, PortReserver
from kubeproxy.model import (
    Address,
    Destination,
    Endpoint,
    Family,
    FrontendName,
    Protocol,
    Service,
    ServiceName,
    Target,
)
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.netfilter.conntrack.stale_flows import Conntrack, NoConntrack
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.ruleset import RuleSet, part
from kubeproxy.proxier.clock import Clock, LoopClock
from kubeproxy.proxier.data_path import USERSPACE_ONLY, DataPathPolicy, Ejected
from kubeproxy.proxier.node import UNKNOWN_NODE, NodeFacts
from kubeproxy.proxier.observer import ProxierObserver
from kubeproxy.proxier.port_allocator import PortRange, Ports
from kubeproxy.proxier.port_claims import FindHolders, NodePortClaims
from kubeproxy.proxier.restrictions import NO_RESTRICTIONS, Restrictions
from kubeproxy.proxier.state import ProxierState, Step
from kubeproxy.proxier.state_snapshot import FrontendStatus, Snapshot, Summary
from kubeproxy.proxier.sync_schedule import Backoff, Periods, Schedule
from kubeproxy.proxier.tracker import Tracker

log = structlog.get_logger(__name__)

BATCH = 16
"""Services and frontends processed before the event loop runs other tasks: two or three milliseconds of work, so that
ten thousand Services at once do not stop connections that this very process serves."""

_TRIGGERS = 10_000
"""The most trigger times kept while changes cannot be put into effect."""

_DATA_PLANE = "data plane"
_NETFILTER = "netfilter"
_CONNTRACK = "conntrack"
"""The parts that can fail as a whole."""


class Proxier:
    """Keeps the data plane and netfilter equal to what the sources define.

    `run` does so until `stop`; `sync_now` does it once, at once. Problems of single Services are logged, reported to
    the observer and shown in `snapshot`; they never stop other Services.
    """

    def __init__(
        self,
        *,
        tracker: Tracker,
        data_plane: DataPlane,
        netfilter: Netfilter,
        conntrack: Conntrack | None = None,
        reserver: PortReserver,
        port_range: PortRange | None = None,
        periods: Periods = Periods(),  # noqa: B008 - frozen
        families: Iterable[Family] = tuple(Family),
        protocols: Iterable[Protocol] = (Protocol.TCP, Protocol.UDP),
        facts: NodeFacts = UNKNOWN_NODE,
        restrictions: Restrictions = NO_RESTRICTIONS,
        find_holders: FindHolders = lambda protocol, address, port: (),
        landing: Mapping[Family, Address] | None = None,
        bind: Mapping[Family, Address] | None = None,
        guard_sockets: bool = False,
        data_path: DataPathPolicy = USERSPACE_ONLY,
        observer: ProxierObserver | None = None,
        rival_lives: Callable[[], bool] = lambda: False,
        on_rival: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        unix_clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`guard_sockets`: the data plane's listeners have IP_TRANSPARENT (see `RuleSet`).
        `rival_lives`: whether a younger proxy lives; `on_rival` is called when the rules lead to it instead of to us,
        and they are left to it. `unix_clock`: by it drain requests expire."""
        self._unix_clock = unix_clock
        self._drains: dict[ServiceName, DrainState] = {}
        self._tracker = tracker
        self._data_plane = data_plane
        self._netfilter = netfilter
        self._conntrack: Conntrack = conntrack or NoConntrack()
        self._reconciled: RuleSet | None = None
        """The rules with which the kernel's flows last agreed; None: unknown."""
        ports = Ports(reserver, port_range)
        claims = NodePortClaims(reserver, is_proxy_port=ports.holds, find_holders=find_holders)
        self._state = ProxierState(
            ports=ports, claims=claims, families=families, protocols=protocols, guard_sockets=guard_sockets
        )
        self._state.use_facts(facts)
        self._state.use_restrictions(restrictions)
        self._state.use_addresses(landing or {}, bind or {})
        self._state.rules.use_data_path(data_path)
        self._ejected: Ejected = {}
        self._schedule = Schedule(periods, jitter)
        self._retry = Backoff(jitter)
        """For updates that the data plane refused and ports that were not available."""
        self._observer = observer or ProxierObserver()
        self._clock: Clock = clock or LoopClock()
        self._round_lock = asyncio.Lock()
        """One round at a time."""
        self.serving = asyncio.Event()
        """Set once every known change has been in effect for the first time."""
        self._wake = asyncio.Event()
        self._stopped = False
        self._held = False
        self._rival_lives = rival_lives
        self._on_rival = on_rival
        self._foreign_changes = 0
        self._suspicious = False
        """Whether another process has changed our rules since they were last checked."""
        self._requested = 0
        """The generation of the rules that netfilter was last given, with success or without."""
        self._triggers: deque[str] = deque(maxlen=_TRIGGERS)
        self._problems: dict[ServiceName, tuple[str, ...]] = {}
        self._health: dict[ServiceName, tuple[int, int]] = {}
        self._failing: dict[str, str] = {}
        self._pending_since: float | None = None
        self._settled_at: float | None = None
        self._programmed_at: float | None = None
        self._in_force: RuleSet | None = None
        self._frontend_cache: tuple[FrontendStatus, ...] | None = None
        """The frontends as of the end of the last round; None: not collected since."""
        tracker.notify(self._changed)

    # Requests of other components.

    async def run(self) -> None:
        """Make rounds until `stop` (or until cancelled, at any time)."""
        self._netfilter.on_foreign_change(self._on_foreign_change)
        while not self._stopped:
            self._wake.clear()
            async with self._round_lock:
                await self._round(full=False)
            await self._clock.wait(self._wake, self._next_at())

    async def sync_now(self) -> bool:
        """Make a round with a full sync now, whatever the periods. True if all is in effect; false if the sources are
        not ready to serve, or if something failed (it is retried)."""
        async with self._round_lock:
            await self._round(full=True)
            if self._state.rules_pending and self._failing.keys() <= {_CONNTRACK}:
                await self._round(full=True)  # a listener had to be closed before it could be opened anew
            return self._settled_at is not None and self._pending_since is None and self._state.settled

    async def stop(self, *, cleanup: bool, pause: bool = False) -> None:
        """End `run` after its present round. `cleanup` removes the rules; `pause` drops clients' first packets until a
        new instance serves (`Netfilter.pause`); KernelError if that fails. Without either the rules stay, for a new
        instance that has taken them over. Open connections go on; new ones come only if already on their way."""
        self._stopped = True
        self._wake.set()
        async with self._round_lock:
            if cleanup:
                await self._netfilter.cleanup()
                await self.forget_flows()
            elif pause:
                await self._netfilter.pause()

    async def forget_flows(self) -> None:
        """Delete the UDP flows of our redirects, once the rules are gone: a client that goes on sending from its socket
        then reaches the next instance. A failure is logged."""
        if self._in_force is None:
            return
        try:
            await self._conntrack.reconcile(self._in_force, RuleSet())
        except KubeproxyError as error:
            log.warning("cannot delete UDP flows", reason=str(error))

    async def forget_ended(self, *, ours: bool) -> None:
        """Delete the flows of ended connections to our proxy ports, or to an earlier process's in their place: a client
        that uses its port again would be led there, and refused. A failure is logged."""
        if self._in_force is None:
            return
        try:
            await self._conntrack.forget_ended(self._in_force, ours=ours)
        except KubeproxyError as error:
            log.warning("cannot delete flows of ended connections", reason=str(error))

    def release_claims(self) -> None:
        """Release the node ports, once a new instance holds them, too. A third instance must not find them taken while
        our connections drain."""
        self._state.claims.close()

    def close(self) -> None:
        """Release the reserved ports; to be called when the data plane has ended."""
        self._state.close()
        self._frontend_cache = None

    async def hold(self, on: bool) -> None:
        """Stop netfilter transactions because a new instance takes over the rules; returns when none is under way any
        more. Or (`on` false) resume them, beginning with a full sync."""
        self._held = on
        async with self._round_lock:
            if not on:
                self._schedule.require_full_sync()
        self._wake.set()

    async def leads_here(self) -> bool:
        """Whether the kernel still has redirects of ours; KernelError when it refuses. To be asked when a new instance
        claims that it has taken over the rules."""
        async with self._round_lock:
            return self._in_force is not None and (await self._netfilter.reach(self._in_force)).ours > 0

    def set_periods(self, periods: Periods) -> None:
        """Use other periods from now on."""
        self._schedule.periods = periods
        self._wake.set()

    def set_port_range(self, port_range: PortRange | None) -> None:
        """Allocate new proxy ports from this range. Ports in use stay as they are."""
        self._state.ports.use_range(port_range)
        self._state.retry()
        self._wake.set()

    def set_landing(self, landing: Mapping[Family, Address], bind: Mapping[Family, Address]) -> None:
        """Redirect clients to these addresses (see `RuleSet`). Listeners at another address than `bind` are opened
        anew, which breaks their connections; `landing` costs one transaction."""
        self._state.use_addresses(landing, bind)
        self._changed()

    def set_facts(self, facts: NodeFacts) -> None:
        """Use these facts about the node from now on. (Where `preserve` is widened, clients with endpoints dialed
        before the kernel's transaction may have to wait for their next attempt.)"""
        self._state.use_facts(facts)
        self._changed()

    def set_restrictions(self, restrictions: Restrictions) -> None:
        """Use these restrictions from now on, and check the ports of other processes again."""
        self._state.use_restrictions(restrictions)
        self._changed()

    def set_aside(self, targets: frozenset[Target]) -> None:
        """Give these endpoints, which a person has taken out, no new clients from now on, and no others."""
        self._state.set_aside(targets)
        self._changed()
        self._wake.set()

    def use_drains(self, on: bool) -> None:
        """Whether drain requests count from now on."""
        self._state.use_drains(on)
        self._changed()

    @property
    def drains(self) -> Mapping[ServiceName, DrainState]:
        """What is in effect of the drain requests, as of the end of the last round."""
        return self._drains

    def set_data_path(self, policy: DataPathPolicy) -> None:
        """Choose data paths by this policy from now on; running connections stay where they are."""
        self._state.rules.use_data_path(policy)
        self._changed()

    def set_ejected(self, ejected: Ejected) -> None:
        """Have the kernel lead no new connections to these endpoints, in the next round, which begins at once."""
        self._ejected = ejected
        self._wake.set()

    async def eject(self, ejected: Ejected) -> None:
        """`set_ejected`, and wait until it is in force. If the kernel refuses it, the next round tries again."""
        self.set_ejected(ejected)
        async with self._round_lock:
            self._frontend_cache = None
            await self._rebalance()

    def use_rescue(self, group: int | None, tcp_timeouts: Mapping[str, int]) -> None:
        """Have the rules report failed connections to a group of the packet log from now on; None: not at all.

        `tcp_timeouts`: see `RuleSet`."""
        self._state.rules.use_rescue(group, tcp_timeouts)
        self._changed()
        self._wake.set()

    def reports_to(self, group: int) -> bool:
        """Whether the rules in force report failed connections to this group of the packet log."""
        return self._in_force is not None and self._in_force.rescue == group and not self._stopped

    def frontends_with(self, protocol: Protocol, target: Target) -> tuple[FrontendName, ...]:
        """The frontends of this protocol that have an endpoint."""
        return self._state.frontends_with(protocol, target)

    def protocol_of(self, name: FrontendName) -> Protocol | None:
        """The protocol of a frontend; None: there is no such frontend any more."""
        frontend = self._state.wanted.get(name)
        return None if frontend is None else frontend.protocol

    def has_endpoint(self, name: FrontendName, target: Target) -> bool:
        """Tell whether a frontend may send clients to this endpoint."""
        protocol = self.protocol_of(name)
        return protocol is not None and name in self.frontends_with(protocol, target)

    def owner_of(self, service: ServiceName) -> str | None:
        """The source that owns a Service; None: no source defines it."""
        return self._state.owners.get(service)

    @property
    def programmed_at(self) -> float | None:
        """When the rules were last changed as a whole, or looked at, by the event loop's clock; None: never."""
        return self._programmed_at

    @property
    def in_force(self) -> RuleSet | None:
        """The rules of the last successful transaction; None: there was none yet."""
        return self._in_force

    def holder_of(self, destination: Destination, own: bool) -> FrontendName | None:
        """The frontend that has a destination; `own`: for this node itself and pods. For any thread."""
        return self._state.rules.claims.holder(destination, own=own)

    def service(self, name: ServiceName) -> Service | None:
        """A Service as its owner defines it."""
        return self._state.service(name)

    def candidates(self, name: FrontendName) -> Mapping[Target, Endpoint]:
        """All endpoints of a frontend's service port in its family, selected or not."""
        return self._state.candidates(name)

    def snapshot(self) -> Snapshot:
        """The present state; in mid-round with the problems of new Services beside those of the round before."""
        state, tracker = self._state, self._tracker
        return Snapshot(
            ready=tracker.ready_at(self._clock.now()) <= self._clock.now(),
            frontends=self._frontends(),
            problems={**state.problems(), **self._problems},
            service_health=self._health,
            sources=tracker.sources(),
            owners=state.owners.copy(),
            netfilter=self._netfilter.name,
            failing="; ".join(self._failing.values()) or None,
            failures=self._schedule.failures,
            pending_since=self._pending_since,
            programmed_at=self._programmed_at,
            service_changes_pending=tracker.service_changes.pending,
            service_changes_total=tracker.service_changes.total,
            endpoint_changes_pending=tracker.slice_changes.pending,
            endpoint_changes_total=tracker.slice_changes.total,
        )

    def _frontends(self) -> tuple[FrontendStatus, ...]:
        """The frontends. Cached, as they change in rounds only, and collecting 20,000 of them takes 20 ms."""
        if self._frontend_cache is not None:
            return self._frontend_cache
        listeners = self._state.listeners
        shown = tuple(
            FrontendStatus(
                frontend,
                listeners[name].reservation.port if name in listeners else None,
                *self._state.rules.data_path(frontend),
            )
            for name, frontend in self._state.wanted.items()
        )
        if not self._round_lock.locked():
            self._frontend_cache = shown
        return shown

    def summary(self) -> Summary:
        """The present state in a few numbers."""
        return Summary(
            services=len(self._state.owners),
            waiting=self._tracker.untaken,
            listeners=len(self._state.listeners),
            services_degraded=len(self._problems),
            failing="; ".join(self._failing.values()) or None,
            listing=tuple(source for source, complete in self._tracker.sources().items() if not complete),
        )

    # One round.

    async def _round(self, *, full: bool) -> None:
        self._frontend_cache = None
        now = self._clock.now()
        if self._stopped or self._tracker.ready_at(now) > now:
            return
        self._state.expire_drains(self._unix_clock())
        unavailable, retrying = self._state.unavailable, now >= self._retry.retry_at
        if retrying or full:
            self._state.retry()
        updated = await self._update_data_plane()
        await self._rebalance()
        due = full or self._transaction_at() <= self._clock.now()
        if due and not self._held and await self._program(full=full):
            updated = await self._update_data_plane() and updated
        self._schedule_retry(updated=updated, retrying=retrying, unavailable_before=unavailable)
        self._report()

    async def _update_data_plane(self) -> bool:
        """Send the data plane all updates that are possible now; whether it took them."""
        untaken = self._tracker.untaken  # later changes are for the next round: netfilter must have its turn
        while True:
            changes = self._tracker.take(min(BATCH, untaken))
            untaken -= len(changes)
            self._state.absorb(changes)
            for change in changes:
                self._triggers += change.trigger_times()
            refreshed = self._state.refresh(BATCH)
            step = self._state.next_step(BATCH)
            if step is not None:
                failures = await self._carry_out(step)
                if failures is None:
                    return False
                self._state.done(step, failures)
            elif not (changes or refreshed):
                self._recovered(_DATA_PLANE)
                return True
            await asyncio.sleep(0)  # a data plane in this process does not wait for anything in `send`

    async def _carry_out(self, step: Step) -> Mapping[FrontendName, str] | None:
        """Send the data plane a step; its failures, None if it took nothing.

        The kernel gets the endpoints of the kernel path meanwhile."""
        if self._state.rules.is_balanced:
            return await self._send(step)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rebalance())
            return await self._send(step)

    async def _send(self, step: Step) -> Mapping[FrontendName, str] | None:
        try:
            return await self._data_plane.send(step.messages)
        except KubeproxyError as error:
            self._failed(_DATA_PLANE, error)
            return None

    async def _rebalance(self) -> None:
        """Change endpoints of the kernel path in the rules in force. If that fails, the next transaction does it."""
        self._state.use_ejected(self._ejected)
        in_force = self._in_force
        if in_force is None or self._held or self._stopped:
            return
        change = self._state.rules.take_unbalanced(in_force)
        if not change:
            return
        try:
            done = await self._netfilter.rebalance(change)
        except KubeproxyError as error:
            self._schedule.require_full_sync()
            self._failed(_NETFILTER, error)
            done = False
        if not done:
            self._state.rules.require_rules()
            return
        moved = {each for each in (*change.spreads, *change.own_spreads) if each.protocol is Protocol.UDP}
        had = part(in_force, moved)
        in_force.rebalance(change)
        if moved and self._reconciled is not None:
            await self._reconcile_part(had, part(in_force, moved))

    async def _reconcile_part(self, before: RuleSet, now: RuleSet) -> None:
        """Delete the UDP flows of some destinations to endpoints that are gone."""
        try:
            await self._conntrack.reconcile(before, now)
        except KubeproxyError as error:
            self._reconciled = None
            self._fails(_CONNTRACK, error)
            self._observer.conntrack_failed(error)

    async def _program(self, *, full: bool) -> bool:
        """Update netfilter in one transaction; whether that succeeded."""
        started_at = self._clock.now()
        full = full or self._schedule.full_due(started_at)
        if (full or self._suspicious) and await self._has_lost_to_rival():
            return False
        generation, ruleset = self._state.rules.generation, self._ruleset()
        health = self._state.health.copy()
        self._requested = generation
        self._schedule.started(started_at, full=full)
        try:
            changed = await self._netfilter.apply(ruleset, verify=full)
        except KubeproxyError as error:
            self._schedule.failed(self._clock.now())
            self._failed(_NETFILTER, error)
            return False
        ended_at = self._programmed_at = self._clock.now()
        self._in_force = ruleset
        self._state.applied(generation)
        self._schedule.succeeded(ended_at, full=full)
        self._recovered(_NETFILTER)
        self._observer.programmed(duration_s=ended_at - started_at, full=full, changed=changed)
        self._report_health(health)
        if changed and (ruleset is self._reconciled or ruleset == self._reconciled):
            self._reconciled = None  # another process had removed our rules, and flows began without them
        await self._reconcile(ruleset)
        return True

    def _ruleset(self) -> RuleSet:
        """The wanted rules; the very ones in force if those are the same."""
        if self._in_force is not None and not self._state.rules_pending and self._state.rules.is_balanced:
            return self._in_force
        return self._state.rules.ruleset()

    async def _has_lost_to_rival(self) -> bool:
        """Whether the rules redirect to a younger proxy. The older one yields, as they cannot talk to each other: if it
        restored its rules, the other would do the same."""
        if self._in_force is None:
            return False
        try:
            lost = False
            if self._rival_lives():
                reach = await self._netfilter.reach(self._in_force)
                lost = reach.others > reach.ours
        except (KubeproxyError, OSError) as error:
            log.warning("cannot read redirects", reason=str(error))
            return False
        self._suspicious = False
        if lost:
            self._held = True
            self._on_rival()
        return lost

    async def _reconcile(self, ruleset: RuleSet) -> None:
        """Delete the flows that contradict the rules now in force. If that fails, the rules are in force all the same,
        and the flows are checked again after the next transaction."""
        if ruleset is self._reconciled:
            return
        started_at, foreign_changes = self._clock.now(), self._foreign_changes
        try:
            deleted = await self._conntrack.reconcile(self._reconciled, ruleset)
        except KubeproxyError as error:
            self._fails(_CONNTRACK, error)
            self._observer.conntrack_failed(error)
            return
        self._reconciled = ruleset if foreign_changes == self._foreign_changes else None
        self._recovered(_CONNTRACK)
        self._observer.reconciled(duration_s=self._clock.now() - started_at, deleted=deleted)

    # When the next round is.

    def _changed(self) -> None:
        """There may be a change."""
        self._frontend_cache = None
        if self._pending_since is None and (self._tracker.untaken or not self._state.settled):
            self._pending_since = self._clock.now()
            self._observer.queued()
        self._wake.set()

    def _on_foreign_change(self) -> None:
        """Another process may have changed our rules."""
        self._foreign_changes += 1
        self._reconciled = None  # flows may have begun by its rules, or without any
        if self._held or self._stopped:
            return  # a new instance takes over the rules
        log.warning("rules changed by another process, restoring")
        self._suspicious = True
        self._schedule.foreign_change(self._clock.now())
        self._wake.set()

    def _transaction_at(self) -> float:
        if self._held:
            return math.inf
        if self._programmed_at is None and _DATA_PLANE in self._failing:
            return math.inf  # rules of an earlier run may still serve, and there are none yet to replace them
        new = self._state.rules.generation != self._requested
        return self._schedule.next_at(pending=self._state.rules_pending, new=new)

    def _next_at(self) -> float:
        ready_at = self._tracker.ready_at(self._clock.now())
        if ready_at > self._clock.now():
            return ready_at
        return min(self._transaction_at(), self._retry.retry_at, self._drain_expires_at())

    def _drain_expires_at(self) -> float:
        expiry = self._state.next_drain_expiry
        return math.inf if expiry is None else self._clock.now() + max(0.0, expiry - self._unix_clock())

    def _schedule_retry(
        self, *, updated: bool, retrying: bool, unavailable_before: set[FrontendName | Destination]
    ) -> None:
        """One timer for all that is unavailable: new failures restart it, and each retry lengthens it."""
        unavailable = self._state.unavailable
        if updated and not unavailable:
            self._retry.reset()
        elif unavailable - unavailable_before or (not updated and not self._retry.failures):
            self._retry.reset()
            self._retry.failed(self._clock.now())
        elif retrying:
            self._retry.failed(self._clock.now())

    # Reports.

    def _report(self) -> None:
        problems = self._state.problems()
        if problems != self._problems:
            for service in problems.keys() | self._problems.keys():
                before, now = self._problems.get(service, ()), problems.get(service, ())
                for text in now:
                    if text not in before:
                        log.warning("service has a problem", service=str(service), problem=text)
                if before and not now:
                    log.info("service problem resolved", service=str(service))
            self._problems = problems
            self._observer.services_degraded(problems)
        # A load balancer sends clients when the health check node port says so: not before the rules are in force.
        if not self._state.rules_pending:
            self._report_health(self._state.health.copy())
        drains = self._state.drain_states()
        if drains != self._drains:
            self._drains = drains
            self._observer.drains_changed(drains)
        if self._state.settled and not self._tracker.untaken:
            if self._settled_at is None:
                log.info(
                    "serving",
                    services=len(self._state.owners),
                    listeners=len(self._state.listeners),
                    still_listing=[source for source, complete in self._tracker.sources().items() if not complete],
                )
            self._settled_at, self._pending_since = self._clock.now(), None
            self._tracker.in_effect()
            self.serving.set()
            self._observer.settled(tuple(self._triggers))
            self._triggers.clear()

    def _report_health(self, health: dict[ServiceName, tuple[int, int]]) -> None:
        if health != self._health:
            self._health = health
            self._observer.service_health(health)

    def _failed(self, part: str, error: KubeproxyError) -> None:
        self._observer.failed(error)
        self._fails(part, error)

    def _fails(self, part: str, error: KubeproxyError) -> None:
        reason = f"{part}: {error}"
        if self._failing.get(part) != reason:
            log.error(
                "update failed, retrying",
                part=part,
                reason=str(error),
            )
        self._failing[part] = reason

    def _recovered(self, part: str) -> None:
        if self._failing.pop(part, None) is not None:
            log.info("update succeeded again", part=part)
