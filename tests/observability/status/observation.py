"""Observations of an imaginary daemon: a shop of four Services, or a town of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint, WorkerStatus
from kubeproxy.kubernetes.informer.reflector_state import ReflectorState
from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Endpoint,
    Family,
    Frontend,
    FrontendName,
    Origin,
    Protocol,
    ServiceName,
    ServicePortName,
    Target,
)
from kubeproxy.model.rescue import Ejection, RescueCounts, RescueState
from kubeproxy.model.snapshot import FrontendState, Snapshot
from kubeproxy.observability.health import ProxyHealth, Reason
from kubeproxy.observability.picture import KernelFlowsState
from kubeproxy.observability.status.observation import Observation
from tests.observability.conftest import watch as idle_watch

NOW = 1000.0
WALL = 1_800_000_000.0
WEB, MAIL, REPORTS, BROKEN = (
    ServiceName("shop", "web"),
    ServiceName("shop", "mail"),
    ServiceName("billing", "reports"),
    ServiceName("billing", "broken"),
)
GOOD, EJECTED, TERMINATING, UNREADY = (Target(Address(f"10.3.{number}.2"), 8080) for number in range(4))


def name(service: ServiceName) -> FrontendName:
    return FrontendName(ServicePortName(*service, "http"), Family.IPV4)


def frontend(service: ServiceName, address: str, *endpoints: Target, node_port: int = 0) -> Frontend:
    places = {Destination(Address(address), Protocol.TCP, 80)}
    if node_port:
        places.add(Destination(NODE_PORTS[Family.IPV4], Protocol.TCP, node_port))
    return Frontend(
        name=name(service),
        protocol=Protocol.TCP,
        destinations=dict.fromkeys(places, Origin.ANYWHERE),
        endpoints=endpoints,
    )


def health(
    *,
    failing: str | None = None,
    workers: str | None = None,
    draining: bool = False,
    eligible: bool = True,
    exists: bool = True,
) -> ProxyHealth:
    made = ProxyHealth(timeout_s=60.0)
    made.updated(NOW - 1)
    made.failing(failing)
    made.degraded(Reason.WORKERS, workers)
    made.node_eligible(eligible, exists=exists)
    if draining:
        made.draining()
    return made


def snapshot(frontends: Sequence[FrontendState], **changes: object) -> Snapshot:
    plain = Snapshot(
        ready=True,
        frontends=frontends,
        problems={},
        service_health={},
        sources={"manifests": True},
        owners={status.frontend.name.service_port.service: "manifests" for status in frontends},
        netfilter="nftables",
        failing=None,
        failures=0,
        pending_since=None,
        programmed_at=NOW - 3,
        service_changes_pending=0,
        service_changes_total=4,
        endpoint_changes_pending=0,
        endpoint_changes_total=4,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


WORKER_STATUS = WorkerStatus(
    pid=42,
    number=0,
    began=WALL - 60,
    connections=3,
    udp_sessions=1,
    descriptors=50,
    descriptors_limit=1000,
    accept_paused=0,
    lag_s=0.0015,
    dials=(0,) * 14,
    dial_seconds=0.0,
)


def look(proxier: Snapshot, **changes: object) -> Observation:
    plain = Observation(
        now=NOW,
        wall=WALL,
        node="node-1",
        pid=42,
        began=WALL - 3 * 3600 - 120,
        health=health().at(NOW),
        proxier=proxier,
        counters={},
        worker_status=(WORKER_STATUS,),
        ejected={},
        restarts=0,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def shop(**changes: object) -> Observation:
    """web with an ejected endpoint, mail, reports without endpoints, and broken with a problem."""
    frontends = (
        FrontendState(frontend(WEB, "10.96.0.1", GOOD, EJECTED, TERMINATING, node_port=30080), 40001),
        FrontendState(frontend(MAIL, "10.96.0.2", GOOD), 40002),
        FrontendState(frontend(REPORTS, "10.96.0.3"), 40003),
        FrontendState(frontend(BROKEN, "10.96.0.4", GOOD), 40004),
    )
    proxier = snapshot(frontends, problems={BROKEN: ("node port 30090 is not served: it is in use",)})
    counters = {
        name(WEB): Counters(accepted=100, active=3, refused=1, dial_retries=7, bytes_in=2000, bytes_out=3_000_000),
        name(MAIL): Counters(accepted=10, active=5, bytes_in=100, bytes_out=200),
    }
    ejected = {name(WEB): (EjectedEndpoint(target=EJECTED, worker=0, reason="refused", failures=3, retry_in_s=4.0),)}
    return look(**{"proxier": proxier, "counters": counters, "ejected": ejected, **changes})  # type: ignore[arg-type]


def rescue_state(ejected: Mapping[tuple[Protocol, Target], Ejection] | None = None, **changes: object) -> RescueState:
    """A rescue that works since a minute, and has sent seven packets again."""
    plain = RescueState(
        working=True,
        changed_at=NOW - 60,
        problem="",
        restarts=0,
        counts=RescueCounts(copied=100, refused=5, unreachable=2, resent=7, held=3),
        ejections={("refused", "rescue"): 2, ("timeout", "worker"): 1},
        ejected=ejected or {},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def flows_state(**changes: object) -> KernelFlowsState:
    """Flows that have been read, with bytes and ends."""
    plain = KernelFlowsState(bytes_counted=True, problem="", reading_s=0.01, ends_followed=True, ends=5, overflows=0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def candidates(of: FrontendName) -> Mapping[Target, Endpoint]:
    """The endpoints of shop/web; the other Services have none."""
    if of.service_port.service != WEB:
        return {}
    return {
        GOOD: Endpoint(GOOD.address, node="node-1", zone="a"),
        EJECTED: Endpoint(EJECTED.address, node="node-2"),
        TERMINATING: Endpoint(TERMINATING.address, ready=False, terminating=True),
        UNREADY: Endpoint(UNREADY.address, ready=False, serving=False),
    }


def town(count: int) -> Observation:
    """`count` Services with three endpoints each; every hundredth has an ejected one."""
    frontends, counters, ejected = [], {}, {}
    for number in range(count):
        service = ServiceName(f"ns-{number % 100:02}", f"service-{number:05}")
        address = f"10.{97 + number // 65536}.{number // 256 % 256}.{number % 256}"
        targets = tuple(Target(Address(f"10.3.{number % 256}.{last}"), 8080) for last in (1, 2, 3))
        frontends.append(FrontendState(frontend(service, address, *targets), 20000 + number))
        counters[name(service)] = Counters(accepted=number)
        if number % 100 == 0:
            ejected[name(service)] = (
                EjectedEndpoint(target=targets[0], worker=0, reason="timeout", failures=1, retry_in_s=1.0),
            )
    return look(snapshot(frontends), counters=counters, ejected=ejected)


def watch(**changes: object) -> ReflectorState:
    """The watch of Services in order, five seconds after the last event; `changes` are other fields."""
    return replace(idle_watch("services", last_event=WALL - 5, lists=1, watches=1), **changes)  # type: ignore[arg-type]
