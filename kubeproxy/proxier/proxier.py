"""Carries out what tracker, ledger and schedule decided: the only file of this room that awaits, but for the clock.

One round, always in this order:

1. tell the data plane all that may be told now: new listeners first, endpoints of standing ones at once;
2. if it is time, make netfilter follow in one transaction, and then the flows that the kernel translates already;
3. only if that succeeded: tell the data plane what had to wait for it - endpoints that are gone altogether, listeners
   that no rule leads to any more - and give their ports back.

If (2) fails nothing is closed and nothing given back: traffic that works goes on, and the round is tried again. What
the sources say while a round awaits something is simply the next round.
"""

from __future__ import annotations

import asyncio
import math
import random
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
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.netfilter.conntrack.reconcile import Conntrack, NoConntrack
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.proxier.clock import Clock, LoopClock
from kubeproxy.proxier.node import NOWHERE, NodeFacts
from kubeproxy.proxier.node_ports import FindHolders, NodePortClaims
from kubeproxy.proxier.observer import NoObserver, ProxierObserver
from kubeproxy.proxier.port_allocator import PortRange, Ports
from kubeproxy.proxier.restrictions import NO_RESTRICTIONS, Restrictions
from kubeproxy.proxier.snapshot import FrontendStatus, Snapshot, Summary
from kubeproxy.proxier.state import ProxierState
from kubeproxy.proxier.sync_schedule import Backoff, Periods, Schedule
from kubeproxy.proxier.tracker import Tracker

log = structlog.get_logger(__name__)

BATCH = 16
"""Services looked at, and frontends told of, between two breaths of the event loop: two or three milliseconds' worth,
so that ten thousand Services that come at once do not stop what is served already by this very process."""

_TRIGGERS = 10_000
"""Trigger times kept while nothing can be put into effect; a bound, however long that lasts."""

_DATA_PLANE = "data plane"
_NETFILTER = "netfilter"
_CONNTRACK = "conntrack"
"""What can fail as a whole."""


class Proxier:
    """Keeps the data plane and netfilter in step with what the sources say.

    `run` does so until `stop`; `sync_now` does it once, at once. What is wrong with single Services is logged, told to
    the observer and shown in `snapshot`; it never stops the others.
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
        facts: NodeFacts = NOWHERE,
        restrictions: Restrictions = NO_RESTRICTIONS,
        find_holders: FindHolders = lambda protocol, address, port: (),
        landing: Mapping[Family, Address] | None = None,
        bind: Mapping[Family, Address] | None = None,
        guard_sockets: bool = False,
        observer: ProxierObserver | None = None,
        rival_lives: Callable[[], bool] = lambda: False,
        on_rival: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`guard_sockets`: the data plane's listeners have IP_TRANSPARENT, and netfilter can tell (see `RuleSet`).
        `rival_lives`: whether a younger proxy lives; `on_rival` is called when the rules lead to it instead of to us,
        and they are left to it."""
        self._tracker = tracker
        self._data_plane = data_plane
        self._netfilter = netfilter
        self._conntrack: Conntrack = conntrack or NoConntrack()
        self._reconciled: RuleSet | None = None
        """The rules that the kernel's flows last agreed with; None: unknown."""
        ports = Ports(reserver, port_range)
        claims = NodePortClaims(reserver, is_proxy_port=ports.holds, find_holders=find_holders)
        self._state = ProxierState(
            ports=ports, claims=claims, families=families, protocols=protocols, guard_sockets=guard_sockets
        )
        self._state.use_facts(facts)
        self._state.use_restrictions(restrictions)
        self._state.use_addresses(landing or {}, bind or {})
        self._schedule = Schedule(periods, jitter)
        self._retry = Backoff(jitter)
        """For what the data plane or the ports denied."""
        self._observer: ProxierObserver = observer or NoObserver()
        self._clock: Clock = clock or LoopClock()
        self._turn = asyncio.Lock()
        """One round at a time."""
        self.serving = asyncio.Event()
        """Set once everything known has been in effect for the first time."""
        self._wake = asyncio.Event()
        self._stopped = False
        self._held = False
        self._rival_lives = rival_lives
        self._on_rival = on_rival
        self._suspicious = False
        """Whether another process has changed our rules since we last looked at them."""
        self._tried = 0
        """The generation of the rules that netfilter was last asked for."""
        self._triggers: deque[str] = deque(maxlen=_TRIGGERS)
        self._problems: dict[ServiceName, tuple[str, ...]] = {}
        self._health: dict[ServiceName, tuple[int, int]] = {}
        self._failing: dict[str, str] = {}
        self._pending_since: float | None = None
        self._settled_at: float | None = None
        self._programmed_at: float | None = None
        self._in_force: RuleSet | None = None
        self._shown: tuple[FrontendStatus, ...] | None = None
        """As of the end of the last round; None: not gathered since."""
        tracker.notify(self._changed)

    # What others may ask for.

    async def run(self) -> None:
        """Keep everything in step until `stop` (or until cancelled, at any time)."""
        self._netfilter.on_foreign_change(self._suspect)
        while not self._stopped:
            self._wake.clear()
            async with self._turn:
                await self._round(full=False)
            await self._clock.wait(self._wake, self._next_at())

    async def sync_now(self) -> bool:
        """Bring everything into effect now, whatever the periods say, and look at what the kernel really has. True if
        all is in effect; false if enough is not known yet to serve, or if something failed (it will be retried)."""
        async with self._turn:
            await self._round(full=True)
            if self._state.rules_pending and self._failing.keys() <= {_CONNTRACK}:
                await self._round(full=True)  # a listener had to be closed before it could be opened anew
            return self._settled_at is not None and self._pending_since is None and self._state.settled

    async def stop(self, *, cleanup: bool, pause: bool = False) -> None:
        """End `run` after its present round. The rules stay as they are, for a successor who has turned them to itself,
        unless `cleanup` asks for their removal, or `pause` for clients to be kept waiting for a process that is to come
        (`Netfilter.pause`); KernelError if that fails. Open connections go on, and no new ones come but those that were
        on their way."""
        self._stopped = True
        self._wake.set()
        async with self._turn:
            if cleanup:
                await self._netfilter.cleanup()
                await self.forget_flows()
            elif pause:
                await self._netfilter.pause()

    async def forget_flows(self) -> None:
        """Delete the UDP flows that our rules led to us, for when those are gone and nobody answers any more: a client
        that goes on sending from its socket then meets whoever comes next. That it failed is logged."""
        if self._in_force is None:
            return
        try:
            await self._conntrack.reconcile(self._in_force, RuleSet())
        except KubeproxyError as error:
            log.warning("clients that keep their UDP sockets may be answered by nobody", reason=str(error))

    def release_claims(self) -> None:
        """Give the node ports back, for when a successor holds them, too: whoever comes after it knows nothing of us,
        and must not find them taken while our connections run out."""
        self._state.claims.close()

    def close(self) -> None:
        """Give the reserved ports back; for when the data plane has ended."""
        self._state.close()
        self._shown = None

    async def hold(self, on: bool) -> None:
        """Leave netfilter alone from now on, because a successor turns the rules to itself (back when no transaction
        is under way any more); or look after it again, and at what it really has."""
        self._held = on
        async with self._turn:
            if not on:
                self._schedule.doubt()
        self._wake.set()

    async def leads_here(self) -> bool:
        """Whether the kernel still has redirects of ours, for a successor that says that the rules are its own.
        KernelError when it does not tell."""
        async with self._turn:
            return self._in_force is not None and (await self._netfilter.reach(self._in_force)).ours > 0

    def set_periods(self, periods: Periods) -> None:
        """Keep another pace from now on."""
        self._schedule.periods = periods
        self._wake.set()

    def set_port_range(self, port_range: PortRange | None) -> None:
        """Take new proxy ports from here. Those in use stay as they are."""
        self._state.ports.use_range(port_range)
        self._state.retry()
        self._wake.set()

    def set_landing(self, landing: Mapping[Family, Address], bind: Mapping[Family, Address]) -> None:
        """Lead clients to these addresses (see `RuleSet`). Listeners that `bind` moves elsewhere are opened anew, which
        clients notice; `landing` costs one transaction."""
        self._state.use_addresses(landing, bind)
        self._changed()

    def set_facts(self, facts: NodeFacts) -> None:
        """This node is so now; what depends on it follows. (Where `preserve` comes to ask for more, clients whose
        endpoints are dialed before the kernel's transaction may have to wait for the next attempt.)"""
        self._state.use_facts(facts)
        self._changed()

    def set_restrictions(self, restrictions: Restrictions) -> None:
        """Services may have so much from now on; what other processes were seen to have is looked at again."""
        self._state.use_restrictions(restrictions)
        self._changed()

    def owner_of(self, service: ServiceName) -> str | None:
        """The source whose word counts for a Service; None: nobody's."""
        return self._state.owners.get(service)

    @property
    def in_force(self) -> RuleSet | None:
        """The rules that netfilter was last given with success; None: none yet."""
        return self._in_force

    def service(self, name: ServiceName) -> Service | None:
        """A Service as its owner has it."""
        return self._state.service(name)

    def candidates(self, name: FrontendName) -> Mapping[Target, Endpoint]:
        """Everybody who listens for a frontend's service port in its family, those not chosen included."""
        return self._state.candidates(name)

    def snapshot(self) -> Snapshot:
        """What is wanted, what stands and what is wrong, as of now."""
        state, tracker = self._state, self._tracker
        return Snapshot(
            ready=tracker.ready_at(self._clock.now()) <= self._clock.now(),
            frontends=self._frontends(),
            problems=self._problems,
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
        """They change in rounds only; gathering twenty thousand of them takes as many microseconds."""
        if self._shown is not None:
            return self._shown
        listeners = self._state.listeners
        shown = tuple(
            FrontendStatus(frontend, listeners[name].reservation.port if name in listeners else None)
            for name, frontend in self._state.wanted.items()
        )
        if not self._turn.locked():
            self._shown = shown
        return shown

    def summary(self) -> Summary:
        """How things stand, in a few numbers."""
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
        self._shown = None
        now = self._clock.now()
        if self._stopped or self._tracker.ready_at(now) > now:
            return
        denied, retrying = self._state.denied, now >= self._retry.retry_at
        if retrying or full:
            self._state.retry()
        told = await self._tell()
        due = full or self._transaction_at() <= self._clock.now()
        if due and not self._held and await self._program(full=full):
            told = await self._tell() and told
        self._pace_retries(told=told, retrying=retrying, denied_before=denied)
        self._account()

    async def _tell(self) -> bool:
        """Tell the data plane all that it may know now; whether it could be told."""
        untaken = self._tracker.untaken  # later changes are the next round, or netfilter's turn might never come
        while True:
            changes = self._tracker.take(min(BATCH, untaken))
            untaken -= len(changes)
            self._state.absorb(changes)
            for change in changes:
                self._triggers += change.trigger_times()
            refreshed = self._state.refresh(BATCH)
            step = self._state.next_step(BATCH)
            if step is not None:
                try:
                    failures = await self._data_plane.send(step.messages)
                except KubeproxyError as error:
                    self._failed(_DATA_PLANE, error)
                    return False
                self._state.done(step, failures)
            elif not (changes or refreshed):
                self._recovered(_DATA_PLANE)
                return True
            await asyncio.sleep(0)  # a data plane in this process does not wait for anything when it is told

    async def _program(self, *, full: bool) -> bool:
        """Make netfilter follow, in one transaction; whether it did."""
        started_at = self._clock.now()
        full = full or self._schedule.full_due(started_at)
        if (full or self._suspicious) and await self._has_lost_to_rival():
            return False
        generation, ruleset = self._state.rules.generation, self._state.rules.ruleset()
        self._tried = generation
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
        if changed and ruleset == self._reconciled:
            self._reconciled = None  # somebody had taken our rules away, and flows began without them
        await self._reconcile(ruleset)
        return True

    async def _has_lost_to_rival(self) -> bool:
        """Whether the rules lead to a younger proxy: the one of two that have to agree without speaking yields. To
        write them again would only have the other do the same."""
        if self._in_force is None:
            return False
        try:
            lost = False
            if self._rival_lives():
                reach = await self._netfilter.reach(self._in_force)
                lost = reach.others > reach.ours
        except (KubeproxyError, OSError) as error:
            log.warning("cannot see where the rules lead", reason=str(error))
            return False
        self._suspicious = False
        if lost:
            self._held = True
            self._on_rival()
        return lost

    async def _reconcile(self, ruleset: RuleSet) -> None:
        """Have the flows deleted that contradict the rules now in force. If that fails, the rules are in force all the
        same, and the flows are looked at again after the next transaction."""
        started_at = self._clock.now()
        try:
            deleted = await self._conntrack.reconcile(self._reconciled, ruleset)
        except KubeproxyError as error:
            self._fails(_CONNTRACK, error)
            self._observer.conntrack_failed(error)
            return
        self._reconciled = ruleset
        self._recovered(_CONNTRACK)
        self._observer.reconciled(duration_s=self._clock.now() - started_at, deleted=deleted)

    # When the next one is.

    def _changed(self) -> None:
        """Something may be new."""
        self._shown = None
        if self._pending_since is None and (self._tracker.untaken or not self._state.settled):
            self._pending_since = self._clock.now()
            self._observer.queued()
        self._wake.set()

    def _suspect(self) -> None:
        """Somebody else may have changed our rules."""
        if self._held or self._stopped:
            return  # a successor has, or is about to
        log.warning("somebody else has changed our packet filter or routing rules; they are looked at, and put right")
        self._suspicious = True
        self._schedule.suspect(self._clock.now())
        self._wake.set()

    def _transaction_at(self) -> float:
        if self._held:
            return math.inf
        if self._programmed_at is None and _DATA_PLANE in self._failing:
            return math.inf  # an earlier run's rules may still serve, and there is nothing yet to put in their place
        new = self._state.rules.generation != self._tried
        return self._schedule.next_at(pending=self._state.rules_pending, new=new)

    def _next_at(self) -> float:
        ready_at = self._tracker.ready_at(self._clock.now())
        if ready_at > self._clock.now():
            return ready_at
        return min(self._transaction_at(), self._retry.retry_at)

    def _pace_retries(self, *, told: bool, retrying: bool, denied_before: set[FrontendName | Destination]) -> None:
        """One timer for everything that was denied: it starts anew when something new is, and is slower each time."""
        denied = self._state.denied
        if told and not denied:
            self._retry.reset()
        elif denied - denied_before or (not told and not self._retry.failures):
            self._retry.reset()
            self._retry.failed(self._clock.now())
        elif retrying:
            self._retry.failed(self._clock.now())

    # Who hears of it.

    def _account(self) -> None:
        problems = self._state.problems()
        if problems != self._problems:
            for service in problems.keys() | self._problems.keys():
                before, now = self._problems.get(service, ()), problems.get(service, ())
                for text in now:
                    if text not in before:
                        log.warning("service has a problem", service=str(service), problem=text)
                if before and not now:
                    log.info("service has no problem any more", service=str(service))
            self._problems = problems
            self._observer.services_degraded(problems)
        if self._state.health != self._health:
            self._health = self._state.health.copy()
            self._observer.service_health(self._health)
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

    def _failed(self, part: str, error: KubeproxyError) -> None:
        self._observer.failed(error)
        self._fails(part, error)

    def _fails(self, part: str, error: KubeproxyError) -> None:
        reason = f"{part}: {error}"
        if self._failing.get(part) != reason:
            log.error(
                "cannot be brought up to date; what works goes on working, and it is tried again",
                part=part,
                reason=str(error),
            )
        self._failing[part] = reason

    def _recovered(self, part: str) -> None:
        if self._failing.pop(part, None) is not None:
            log.info("up to date again", part=part)
