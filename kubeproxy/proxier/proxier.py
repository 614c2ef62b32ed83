"""Puts the objects of the sources into effect, in rounds.

One round, always in this order:

1. update the data plane as far as possible now: new listeners first, endpoints of existing ones at once; beside it
   those of the kernel path, in small transactions of their own, so that neither waits for the other;
2. if it is due, update netfilter in one transaction, and then delete conntrack entries that contradict the rules;
3. only if that succeeded: update the data plane with what had to wait for the rules (frontends without any endpoint,
   listeners without a rule), and release the ports of closed listeners.

If (2) fails, nothing is closed and no port is released. So working traffic continues, and the round is retried. Changes
that arrive while a round awaits something belong to the next round.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import structlog

from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.model import Destination, FrontendName
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.proxier.clock import Clock
from kubeproxy.proxier.data_path_choice import Ejected
from kubeproxy.proxier.kernel_sync import Kernel, KernelSync
from kubeproxy.proxier.listeners import Step
from kubeproxy.proxier.observer import ProxierObserver
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.reports import Part, Reports
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.state import ProxierState
from kubeproxy.proxier.sync_schedule import Backoff, Schedule
from kubeproxy.proxier.tracker import Tracker
from kubeproxy.proxier.view import ProxierView

log = structlog.get_logger(__name__)

BATCH = 16
"""How many Services and frontends are processed before the event loop runs other tasks. They take two or three
milliseconds. Without this bound, ten thousand Services at once would stall the connections that this process may serve
itself (`--workers 0`)."""


class Proxier:
    """Keeps the data plane and netfilter consistent with the objects of the sources, while `run` runs.

    Problems of single Services are logged, reported to the observer and shown in `view.snapshot()`. They do not affect
    other Services.
    """

    def __init__(
        self,
        *,
        tracker: Tracker,
        data_plane: DataPlane,
        kernel: Kernel,
        ports: PortSystemCalls,
        settings: ProxierSettings,
        observer: ProxierObserver | None = None,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.settings = settings
        self._tracker = tracker
        self._data_plane = data_plane
        self._netfilter = kernel.netfilter
        self._clock = clock or Clock()
        self._state = ProxierState(ports, settings)
        self._schedule = Schedule(settings.periods, jitter)
        self._reports = Reports(observer or ProxierObserver())
        self.kernel = KernelSync(kernel, self._state.rules, self._schedule, self._clock, self._reports)
        self._round_lock = asyncio.Lock()
        """A lock that allows one round at a time."""
        self.view = ProxierView(
            tracker,
            self._state,
            self.kernel,
            self._schedule,
            self._reports,
            now=self._clock.now,
            in_round=self._round_lock.locked,
        )
        self._retry = Backoff(jitter)
        """The delay before retrying updates that the data plane refused, and ports that were not available."""
        self._ejected: Ejected = {}
        self.serving = asyncio.Event()
        """Set when every known change is in effect for the first time."""
        self._wake = asyncio.Event()
        self._stopped = False
        tracker.notify(self._changed)

    # Calls by other components.

    async def run(self) -> None:
        """Make rounds until `stop` is called. The task may be cancelled at any time."""
        self._netfilter.on_foreign_change(self._on_foreign_change)
        while not self._stopped:
            self._wake.clear()
            async with self._round_lock:
                await self._round()
            await self._clock.wait(self._wake, self._next_at())

    def use(self, settings: ProxierSettings) -> None:
        """Apply these settings from now on. They take effect with the next round."""
        self.settings = settings
        self._schedule.periods = settings.periods
        self._state.use(settings)
        self._changed()

    def set_ejected(self, ejected: Ejected) -> None:
        """Set the endpoints that get no new connections from the kernel. The next round puts this into effect, and
        begins at once."""
        self._ejected = ejected
        self._wake.set()

    async def eject(self, ejected: Ejected) -> None:
        """Call `set_ejected`, and return when the change is in force. If the kernel refuses it, the next round tries
        again."""
        self.set_ejected(ejected)
        async with self._round_lock:
            self.view.frontends_changed()
            await self._rebalance()

    async def hold(self, on: bool) -> None:
        """Stop netfilter transactions because a new instance takes over the rules. Return when none is in progress.
        With `on` false resume them, beginning with a full sync."""
        self.kernel.hold(on)
        async with self._round_lock:
            self._wake.set()

    async def leads_here(self) -> bool:
        """Return whether the kernel still has redirects to this instance. Raise KernelError if the rules cannot be
        read. This is called when a new instance says that it has taken over the rules."""
        async with self._round_lock:
            return await self.kernel.leads_here()

    async def stop(self, *, cleanup: bool, pause: bool = False) -> None:
        """End `run` after its present round, and then clean up. Raise KernelError if the kernel refuses.

        With `cleanup` the rules are removed. With `pause` clients' first packets are dropped until a new instance
        serves (`Netfilter.pause`). With neither, the rules stay for a new instance that has taken them over. Open
        connections continue, and only connections that are already on their way are still accepted.
        """
        self._stopped = True
        self.kernel.stop()
        self._wake.set()
        async with self._round_lock:
            if cleanup:
                await self.kernel.cleanup()
            elif pause:
                await self.kernel.pause()

    def release_claims(self) -> None:
        """Release the node ports, once a new instance holds them as well. Otherwise a third instance could not bind
        them while our connections drain."""
        self._state.availability.claims.close()

    def close(self) -> None:
        """Release the reserved ports. Call this after the data plane has ended."""
        self._state.close()
        self.view.frontends_changed()

    # The parts of a round.

    async def _round(self) -> None:
        self.view.frontends_changed()
        now = self._clock.now()
        if self._stopped or self._tracker.ready_at(now) > now:
            return
        self._state.resolver.set_time(self._clock.unix_now(), now)
        unavailable, retrying = self._state.unavailable, now >= self._retry.retry_at
        if retrying:
            self._state.retry()
        updated = await self._update_data_plane()
        await self._rebalance()
        health = self._state.resolver.health.copy()
        if self.kernel.next_at() <= self._clock.now() and await self.kernel.apply():
            self._state.applied(self.kernel.generation)
            self._reports.report_health(health)
            await self.kernel.reconcile()
            updated = await self._update_data_plane() and updated
        self._schedule_retry(updated=updated, retrying=retrying, unavailable_before=unavailable)
        self._report()

    async def _update_data_plane(self) -> bool:
        """Send the data plane all updates that are possible now. Return whether it accepted them."""
        untaken = self._tracker.untaken  # Leave later changes to the next round, so that netfilter gets its turn.
        while True:
            changes = self._tracker.take(min(BATCH, untaken))
            untaken -= len(changes)
            for change in changes:
                self._reports.triggered(change.trigger_times())
            self._state.absorb(changes)
            step = self._state.next_step(BATCH)
            if step is not None:
                failures = await self._carry_out(step)
                if failures is None:
                    return False
                self._state.done(step, failures)
            elif not (changes or self._state.resolver.has_stale):
                self._reports.recovered(Part.DATA_PLANE)
                return True
            await asyncio.sleep(0)  # If the data plane is in this process, `send` never yields to the event loop.

    async def _carry_out(self, step: Step) -> Mapping[FrontendName, str] | None:
        """Send the data plane a step. Return its failures, or None if the data plane accepted nothing. At the same
        time, send the kernel the changed endpoints of the kernel path."""
        if self._state.rules.is_balanced:
            return await self._send(step)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rebalance())
            return await self._send(step)

    async def _send(self, step: Step) -> Mapping[FrontendName, str] | None:
        try:
            return await self._data_plane.send(step.messages)
        except KubeproxyError as error:
            self._reports.failed(Part.DATA_PLANE, error)
            return None

    async def _rebalance(self) -> None:
        """Send the kernel the changed endpoints of the kernel path, within the rules in force."""
        self._state.use_ejected(self._ejected)
        await self.kernel.rebalance()

    def _report(self) -> None:
        """Report the state at the end of a round."""
        state = self._state
        self._reports.report(state.problems(), state.drain_states())
        # A load balancer sends clients when the health check node port says so. So it is reported only when the rules
        # are in force.
        if not state.listeners.rules_pending:
            self._reports.report_health(state.resolver.health.copy())
        if state.settled and not self._tracker.untaken:
            if not self._reports.has_settled:
                log.info(
                    "serving",
                    services=len(state.resolver.owners),
                    listeners=len(state.listeners.existing),
                    still_listing=[source for source, complete in self._tracker.sources().items() if not complete],
                )
            self._tracker.in_effect()
            self.serving.set()
            self._reports.settled()

    # Scheduling of the next round.

    def _changed(self) -> None:
        """Wake the proxier because there may be changes."""
        self.view.frontends_changed()
        if self._tracker.untaken or not self._state.settled:
            self._reports.queued(self._clock.now())
        self._wake.set()

    def _on_foreign_change(self) -> None:
        if self.kernel.note_foreign_change():
            self._wake.set()

    def _next_at(self) -> float:
        now = self._clock.now()
        ready_at = self._tracker.ready_at(now)
        if ready_at > now:
            return ready_at
        stale_at = self._state.resolver.next_time(self._clock.unix_now(), now)
        return min(self.kernel.next_at(), self._retry.retry_at, stale_at)

    def _schedule_retry(
        self, *, updated: bool, retrying: bool, unavailable_before: set[FrontendName | Destination]
    ) -> None:
        """Set one timer for all retries. A new failure sets the shortest delay again, and each retry lengthens the
        delay."""
        unavailable = self._state.unavailable
        if updated and not unavailable:
            self._retry.reset()
        elif unavailable - unavailable_before or (not updated and not self._retry.failures):
            self._retry.reset()
            self._retry.failed(self._clock.now())
        elif retrying:
            self._retry.failed(self._clock.now())
