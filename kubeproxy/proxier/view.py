"""Shows the proxier's state to parts that only read it: status pages, health, traces, Events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kubeproxy.model import Endpoint, FrontendName, Protocol, Service, ServiceName, Target, Traffic
from kubeproxy.model.snapshot import FrontendState, Snapshot, Summary
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.proxier.kernel_sync import KernelSync
from kubeproxy.proxier.local_pods import LocalPods
from kubeproxy.proxier.reports import Reports
from kubeproxy.proxier.state import ProxierState
from kubeproxy.proxier.sync_schedule import Schedule
from kubeproxy.proxier.tracker import Tracker


class ProxierView:
    """Reads the parts of the proxier and changes nothing."""

    def __init__(
        self,
        tracker: Tracker,
        state: ProxierState,
        kernel: KernelSync,
        schedule: Schedule,
        reports: Reports,
        *,
        now: Callable[[], float],
        in_round: Callable[[], bool],
    ) -> None:
        """`in_round` returns whether a round is in progress."""
        self._tracker = tracker
        self._state = state
        self._kernel = kernel
        self._schedule = schedule
        self._reports = reports
        self._now = now
        self._in_round = in_round
        self._frontends: tuple[FrontendState, ...] | None = None
        """The frontends at the end of the last round, or None if they have not been collected since then."""

    # The whole state.

    def snapshot(self) -> Snapshot:
        """Return the present state. During a round only its problems are up to date; the rest is from the end of the
        previous round."""
        state, tracker, reports, now = self._state, self._tracker, self._reports, self._now()
        return Snapshot(
            ready=tracker.ready_at(now) <= now,
            frontends=self._collected(),
            problems={**state.problems(), **reports.problems},
            service_health=reports.health,
            sources=tracker.sources(),
            owners=state.resolver.owners.copy(),
            netfilter=self._kernel.name,
            failing=reports.failure,
            failures=self._schedule.failures,
            pending_since=reports.pending_since,
            programmed_at=self._kernel.programmed_at,
            service_changes_pending=tracker.service_changes.pending,
            service_changes_total=tracker.service_changes.total,
            endpoint_changes_pending=tracker.slice_changes.pending,
            endpoint_changes_total=tracker.slice_changes.total,
            slots=state.rules.slots,
        )

    def summary(self) -> Summary:
        """Return the present state in a few numbers."""
        return Summary(
            services=len(self._state.resolver.owners),
            waiting=self._tracker.untaken,
            listeners=len(self._state.listeners.existing),
            services_degraded=len(self._reports.problems),
            failing=self._reports.failure,
            listing=tuple(source for source, complete in self._tracker.sources().items() if not complete),
        )

    def slots_complaint(self) -> str | None:
        """Return the problem of frontends that got no slots of the kernel path, or None."""
        return self._state.rules.slots.complaint

    def frontends_changed(self) -> None:
        """Make the next snapshot collect the frontends again."""
        self._frontends = None

    def _collected(self) -> tuple[FrontendState, ...]:
        """Return the frontends. They are cached, because they change only in rounds, and collecting 20,000 of them
        takes 20 ms."""
        if self._frontends is not None:
            return self._frontends
        listeners, rules = self._state.listeners.existing, self._state.rules
        collected = tuple(
            FrontendState(
                frontend,
                rules.proxy_port_of(name, listeners[name].reservation.port) if name in listeners else None,
                *rules.data_path(frontend),
            )
            for name, frontend in self._state.availability.wanted.items()
        )
        if not self._in_round():
            self._frontends = collected
        return collected

    # One Service, one frontend or one address.

    @property
    def in_force(self) -> RuleSet | None:
        """Return the rules of the last successful transaction, or None before the first one."""
        return self._kernel.in_force

    @property
    def local_pods(self) -> LocalPods:
        """Return the pods of this node that are endpoints."""
        return self._state.resolver.local_pods

    def service(self, name: ServiceName) -> Service | None:
        """Return a Service as its owning source defines it."""
        return self._state.resolver.service(name)

    def candidates(self, name: FrontendName) -> Mapping[Target, Endpoint]:
        """Return all endpoints of a frontend's service port in its family, selected or not."""
        return self._state.resolver.candidates(name)

    def protocol_of(self, name: FrontendName) -> Protocol | None:
        """Return the protocol of a frontend, or None if the frontend is gone."""
        frontend = self._state.availability.wanted.get(name)
        return None if frontend is None else frontend.protocol

    def frontends_with(self, protocol: Protocol, target: Target) -> tuple[FrontendName, ...]:
        """Return the frontends of this protocol that have an endpoint."""
        return self._state.frontends_with(protocol, target)

    def known_targets(self) -> Iterator[Target]:
        """Yield every endpoint of every Service, whether or not it is used."""
        return self._state.resolver.known_targets()

    def has_endpoint(self, name: FrontendName, target: Target) -> bool:
        """Return whether a frontend may send clients to an endpoint."""
        protocol = self.protocol_of(name)
        return protocol is not None and name in self.frontends_with(protocol, target)

    def holder_of(self, traffic: Traffic) -> FrontendName | None:
        """Return the frontend that gets this traffic, or None if none does. Any thread may call this."""
        return self._state.rules.claims.holder(traffic)
