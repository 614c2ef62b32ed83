"""Test doubles for the parts that observability reads; both event loops, as either may serve HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import pytest
import structlog
import uvloop

from kubeproxy.dataplane.interface import DIAL_BUCKETS_S, Counters, EjectedEndpoint, WorkerStatus
from kubeproxy.kubernetes.informer.reflector_state import Phase, ReflectorState
from kubeproxy.model import Address, Family, Frontend, FrontendName, Protocol, ServiceName, ServicePortName, Target
from kubeproxy.model.errors import KernelError
from kubeproxy.model.manifests import ManifestProblem
from kubeproxy.model.snapshot import FrontendState, SlotUse, Snapshot

WEB = ServicePortName("default", "web", "http")
WEB_IPV4 = FrontendName(WEB, Family.IPV4)


def frontend(name: FrontendName = WEB_IPV4, *, answered: bool = True) -> Frontend:
    """A frontend without addresses, which these tests do not need."""
    endpoints = (Target(Address("10.0.0.1"), 80),) if answered else ()
    return Frontend(name, Protocol.TCP, {}, endpoints=endpoints)


def listening(proxy_port: int | None, wanted: Frontend | None = None, **changes: object) -> FrontendState:
    """A frontend's state; `changes` are other fields."""
    return replace(FrontendState(wanted or frontend(), proxy_port), **changes)  # type: ignore[arg-type]


@dataclass(slots=True)
class Serving:
    """A data plane with fixed state."""

    of: dict[FrontendName, Counters] = field(default_factory=dict)
    ejected_by_port: dict[FrontendName, Sequence[EjectedEndpoint]] = field(default_factory=dict)
    workers: list[WorkerStatus] = field(default_factory=list)
    restarts: int = 0
    problem: str | None = None
    broken: str | None = None

    async def counters(self) -> Mapping[FrontendName, Counters]:
        if self.broken is not None:
            raise KernelError(self.broken)
        return self.of

    async def worker_status(self) -> Sequence[WorkerStatus]:
        return self.workers

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        return self.ejected_by_port

    async def open_by_endpoint(self) -> Mapping[FrontendName, Mapping[Target, int]]:
        return {}


def worker_status(
    number: int = 0,
    *,
    pid: int = 1000,
    began: float = 1.0,
    connections: int = 0,
    descriptors: int = 0,
    accept_paused: int = 0,
    log_skipped: int = 0,
    memory_shortages: int = 0,
    ports_exhausted: int = 0,
    looped: int = 0,
    adopted: int = 0,
    lag_s: float = 0.0,
    dials: Sequence[int] = (),
    dial_seconds: float = 0.0,
) -> WorkerStatus:
    """The status of a worker; `dials` are its fastest buckets."""
    return WorkerStatus(
        pid=pid,
        number=number,
        began=began,
        connections=connections,
        udp_sessions=0,
        descriptors=descriptors,
        descriptors_limit=1000,
        accept_paused=accept_paused,
        lag_s=lag_s,
        dials=(*dials, *[0] * (len(DIAL_BUCKETS_S) + 1 - len(dials))),
        dial_seconds=dial_seconds,
        log_skipped=log_skipped,
        memory_shortages=memory_shortages,
        ports_exhausted=ports_exhausted,
        looped=looped,
        adopted=adopted,
    )


@dataclass(slots=True)
class State:
    frontends: Sequence[FrontendState] = ()
    problems: Mapping[ServiceName, Sequence[str]] = field(default_factory=dict)
    owners: Mapping[ServiceName, str] = field(default_factory=dict)
    service_health: Mapping[ServiceName, tuple[int, int]] = field(default_factory=dict)
    sources: Mapping[str, bool] = field(default_factory=dict)
    netfilter: str = "nftables"
    failing: str | None = None
    failures: int = 0
    pending_since: float | None = None
    programmed_at: float | None = None
    service_changes_pending: int = 0
    service_changes_total: int = 0
    endpoint_changes_pending: int = 0
    endpoint_changes_total: int = 0
    slots: SlotUse = SlotUse()  # noqa: RUF009 - frozen

    def snapshot(self) -> Snapshot:
        return Snapshot(ready=True, **{each.name: getattr(self, each.name) for each in fields(self)})


def watch(resource: str = "services", **changes: object) -> ReflectorState:
    """The state of a reflector that has done nothing yet; `changes` are other fields."""
    idle = ReflectorState(
        resource=resource,
        phase=Phase.LISTING,
        resource_version="",
        last_list=None,
        last_event=None,
        lists=0,
        watches=0,
        events=0,
        failures={},
        last_error="",
        faulty=0,
        left_out=0,
        kept_bytes=0,
        behind_s=0.0,
    )
    return replace(idle, **changes)  # type: ignore[arg-type]


def manifest_problem(*, skipped: bool = False, warning: bool = False) -> ManifestProblem:
    return ManifestProblem("a.yaml", 1, "spec", "odd", skipped=skipped, warning=warning)


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def fresh_structlog() -> Iterator[None]:
    """Resets structlog's settings before and after a test."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test of this room with the daemon's event loop."""
    return {"uvloop": uvloop.new_event_loop}
