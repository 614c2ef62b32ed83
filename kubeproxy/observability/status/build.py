"""Builds the `Status` from an `Observation` and a `Query`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.model import Address, Target
from kubeproxy.model.rescue import RescueState
from kubeproxy.model.snapshot import FrontendState
from kubeproxy.model.version import __version__
from kubeproxy.observability.health import DEGRADES_ONLY
from kubeproxy.observability.picture import ConfigurationState, KernelFlowsState
from kubeproxy.observability.redaction import redact
from kubeproxy.observability.status.document import (
    DataPathsStatus,
    FrontendStatus,
    KernelFlowsStatus,
    NetfilterStatus,
    RecentWarning,
    RescueStatus,
    ServiceStatus,
    SourceStatus,
    State,
    Status,
    Totals,
)
from kubeproxy.observability.status.endpoints import ejected_endpoints, endpoint_statuses
from kubeproxy.observability.status.no_match_hints import hint
from kubeproxy.observability.status.observation import Candidates, Observation
from kubeproxy.observability.status.service_index import Index, Query, Row, frontends_of
from kubeproxy.observability.status.traffic_history import History
from kubeproxy.observability.status.wording import several

PROBLEMS_SHOWN: Final = 20
"""How many faults of manifests are listed."""
REASONS_SHOWN: Final = 10
"""How many reasons for the userspace path are listed."""


def status(
    index: Index,
    query: Query,
    *,
    matched: int,
    history: History,
    recent_warnings: Sequence[RecentWarning],
    interval_s: float,
) -> Status:
    """Build the status without its Services, which `service` builds one by one."""
    observation = index.observation
    reasons = observation.health.reasons
    healthy = reasons.keys() <= DEGRADES_ONLY
    troubled = index.by_state.get(State.PROBLEM, 0)
    state = "draining" if observation.health.draining else "degraded" if reasons else "healthy"
    return Status(
        version=__version__,
        node=observation.node,
        pid=observation.pid,
        now=observation.wall,
        began=observation.began,
        healthy=healthy,
        summary=_summary(state if healthy or observation.health.draining else "NOT HEALTHY", troubled),
        problems=tuple(f"{reason}: {redact(text)}" for reason, text in reasons.items()),
        draining=observation.health.draining,
        netfilter=_netfilter(observation),
        sources=tuple(_sources(observation)),
        workers=tuple(observation.worker_status),
        restarts=observation.restarts,
        totals=Totals(
            services=len(index.rows),
            by_state=index.by_state,
            ejected_endpoints=index.ejected_endpoints,
            traffic=index.traffic,
            rates=history.rates(None),
            trend=history.trend(None),
        ),
        recent_warnings=tuple(recent_warnings),
        interval_s=interval_s,
        configuration=_configuration(observation.configuration),
        data_paths=_data_paths(index),
        hint="" if matched else hint(index, query),
        matched=matched,
        offset=query.offset,
        services=(),
    )


def service(
    row: Row, observation: Observation, *, port: str, history: History, candidates: Candidates
) -> ServiceStatus:
    """Build the status of one Service. `port` selects one of its service ports; an empty text selects all."""
    return ServiceStatus(
        namespace=row.name.namespace,
        name=row.name.name,
        state=row.state,
        source=observation.proxier.owners.get(row.name, ""),
        problems=tuple(observation.proxier.problems.get(row.name, ())),
        health_port=observation.proxier.service_health.get(row.name, (0, 0))[0],
        traffic=row.traffic,
        rates=history.rates(row.name),
        trend=history.trend(row.name),
        frontends=tuple(
            frontend(
                view,
                counters=observation.counters.get(view.frontend.name) or Counters(),
                ejected=observation.ejected.get(view.frontend.name, ()),
                candidates=candidates,
                open_by_endpoint=Counter(observation.open_by_endpoint.get(view.frontend.name, {}))
                + Counter(observation.open_by_kernel(view.frontend.name)),
                open_to=observation.open_to,
                rescue=observation.rescue,
                kernel_flows=observation.kernel_flows,
                now=observation.now,
            )
            for view in frontends_of(row, port)
        ),
    )


def frontend(
    view: FrontendState,
    *,
    counters: Counters,
    ejected: Sequence[EjectedEndpoint],
    candidates: Candidates,
    open_by_endpoint: Mapping[Target, int],
    open_to: Mapping[Address, int],
    rescue: RescueState | None,
    kernel_flows: KernelFlowsState | None,
    now: float,
) -> FrontendStatus:
    """Build the status of one frontend with all endpoints of its service port. `now` is in seconds of the proxier's
    clock."""
    wanted = view.frontend
    out = ejected_endpoints(wanted.protocol, wanted.endpoints, ejected, rescue, now)
    endpoints = endpoint_statuses(wanted, candidates(wanted.name), out, open_by_endpoint, open_to)
    kernel_bytes = kernel_flows is None or kernel_flows.bytes_counted
    return FrontendStatus.of(view, counters, endpoints, kernel_bytes=kernel_bytes)


def _data_paths(index: Index) -> DataPathsStatus:
    observation = index.observation
    reasons = sorted(index.userspace_reasons.items(), key=lambda item: -item[1])
    return DataPathsStatus(
        wanted=observation.data_path,
        kernel=index.by_kernel,
        userspace=index.by_userspace,
        refused=index.refused,
        reasons=dict(reasons[:REASONS_SHOWN]),
        rescue=None if observation.rescue is None else _rescue(observation.rescue, observation.now),
        flows=None if observation.kernel_flows is None else _flows(observation.kernel_flows, index.kernel_open),
    )


def _flows(state: KernelFlowsState, open_: int) -> KernelFlowsStatus:
    return KernelFlowsStatus(open=open_, bytes_counted=state.bytes_counted, problem=redact(state.problem))


def _rescue(state: RescueState, now: float) -> RescueStatus:
    return RescueStatus(
        working=state.working,
        since_s=round(max(0.0, now - state.changed_at), 1),
        problem=state.problem,
        restarts=state.restarts,
        reports=state.counts.reports,
        ejected=len(state.ejected),
        **asdict(state.counts),
    )


def _summary(state: str, troubled: int) -> str:
    """Return the daemon's state, with the number of Services that have a problem, if there are any."""
    return f"{state}, {several(troubled, 'Service with a problem', 'Services with a problem')}" if troubled else state


def _configuration(state: ConfigurationState | None) -> ConfigurationState | None:
    return None if state is None else replace(state, faults=tuple(map(redact, state.faults)))


def _netfilter(observation: Observation) -> NetfilterStatus:
    proxier = observation.proxier

    def ago(moment: float | None) -> float | None:
        return None if moment is None else round(max(0.0, observation.now - moment), 3)

    return NetfilterStatus(
        adapter=proxier.netfilter,
        failing=None if proxier.failing is None else redact(proxier.failing),
        failures=proxier.failures,
        programmed_ago_s=ago(proxier.programmed_at),
        pending_s=ago(proxier.pending_since),
        changes_pending=proxier.service_changes_pending + proxier.endpoint_changes_pending,
    )


def _sources(observation: Observation) -> Iterator[SourceStatus]:
    shown = set()
    for watch in observation.watches:
        shown.add("kubernetes")
        failures = tuple(
            f"{cause}: failed {several(times, 'time', 'times')}"
            for cause, times in sorted(watch.failures.items())
            if times
        )
        listed = watch.lists > 0
        stale_since = None if listed else observation.stale.get("kubernetes")
        if watch.left_out:
            failures = (f"{watch.left_out} objects left out because of the memory limit", *failures)
        yield SourceStatus(
            f"kubernetes {watch.resource}",
            listed,
            round(watch.behind_s, 1),
            watch.last_event,
            watch.faulty,
            failures,
            watch.left_out,
            stale_since,
        )
    if observation.manifests is not None:
        shown.add("manifests")
        problems = observation.manifests.problems
        yield SourceStatus(
            "manifests",
            observation.manifests.loaded,
            0.0,
            observation.manifests.last_change or None,
            len(observation.manifests.faults),
            tuple(
                redact(str(problem))
                for problem in sorted(problems, key=lambda problem: not problem.is_fault)[:PROBLEMS_SHOWN]
            ),
            warnings=sum(problem.warning for problem in problems),
            stale_since=observation.stale.get("manifests"),
        )
    for name, listed in observation.proxier.sources.items():
        if name not in shown:
            yield SourceStatus(name, listed, 0.0, None, 0, stale_since=observation.stale.get(name))
