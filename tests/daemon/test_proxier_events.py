from __future__ import annotations

from collections.abc import Callable, Mapping

from kubeproxy.daemon.proxier_events import ProxierEvents
from kubeproxy.daemon.service_events import Events
from kubeproxy.model import ServiceName
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.errors import ClusterError, KernelError
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.metrics.control_plane import Metrics


def observing(health: ProxyHealth, metrics: Metrics, clock: Callable[[], float] = lambda: 0.0) -> ProxierEvents:
    return ProxierEvents(
        health,
        metrics,
        adapter="nftables",
        events=Events(lambda service: None),
        on_service_health=lambda wanted: None,
        on_drains=lambda drains: None,
        clock=clock,
    )


def test_events_of_the_proxier_become_health_and_metrics() -> None:
    now = 0.0
    health, metrics = ProxyHealth(timeout_s=60.0), Metrics()
    observer = observing(health, metrics, lambda: now)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    observer.queued()
    assert not health.at(now).ready
    observer.programmed(duration_s=0.01, full=True, changed=True)
    observer.settled(["2999-01-01T00:00:00Z"])
    assert health.at(now).ready
    assert value("kubeproxy_sync_proxy_rules_duration_seconds_count", ip_family="IPv4") == 1
    assert value("kubeproxy_network_programming_duration_seconds_count", ip_family="IPv4") == 1

    now = 10.0
    observer.queued()
    observer.failed(KernelError("nft: Could not process rule: Device or resource busy"))
    assert health.at(now).failing == "nft: Could not process rule: Device or resource busy"
    assert health.at(69.0).healthy
    assert not health.at(70.0).healthy
    assert value("kubeproxy_netfilter_apply_failures_total", adapter="nftables") == 1

    observer.failed(ClusterError("not the kernel's fault"))
    assert value("kubeproxy_netfilter_apply_failures_total", adapter="nftables") == 1

    now = 80.0
    observer.programmed(duration_s=0.01, full=False, changed=True)
    observer.settled([])
    observer.services_degraded({})
    assert health.at(now).failing is None
    assert health.at(now).healthy


def test_progress_under_constant_changes_keeps_the_node_healthy() -> None:
    now = 0.0
    health = ProxyHealth(timeout_s=60.0)
    observer = observing(health, Metrics(), lambda: now)
    observer.settled([])
    observer.queued()
    for _ in range(300):
        now += 1.0
        observer.programmed(duration_s=0.01, full=False, changed=True)
        assert health.at(now).healthy


def test_a_transaction_is_no_progress_while_another_step_fails() -> None:
    now = 0.0
    health = ProxyHealth(timeout_s=60.0)
    observer = observing(health, Metrics(), lambda: now)
    observer.settled([])
    observer.queued()
    for _ in range(3):
        now += 30.0
        observer.failed(KernelError("the data plane does not answer"))
        observer.programmed(duration_s=0.01, full=True, changed=False)
        assert health.at(now).failing == "the data plane does not answer"
    assert not health.at(now).healthy
    observer.settled([])
    assert health.at(now).failing is None
    assert health.at(now).healthy


def test_flows_are_counted_and_do_not_affect_health() -> None:
    health, metrics = ProxyHealth(timeout_s=60.0), Metrics()
    observer = observing(health, metrics)
    observer.reconciled(duration_s=0.5, deleted=2)
    observer.conntrack_failed(KernelError("conntrack: Operation not permitted"))
    assert metrics.registry.get_sample_value("kubeproxy_conntrack_deleted_flows_total") == 2
    assert metrics.registry.get_sample_value("kubeproxy_conntrack_failures_total") == 1
    assert health.at(0.0).failing is None


def test_other_parts_get_what_they_serve() -> None:
    ports: list[Mapping[ServiceName, tuple[int, int]]] = []
    reports: list[Mapping[ServiceName, DrainState]] = []
    observer = ProxierEvents(
        ProxyHealth(timeout_s=60.0),
        Metrics(),
        adapter="none",
        events=Events(lambda service: None),
        on_service_health=ports.append,
        on_drains=reports.append,
    )
    observer.service_health({ServiceName("shop", "web"): (30100, 2)})
    observer.drains_changed({})
    assert ports == [{ServiceName("shop", "web"): (30100, 2)}]
    assert reports == [{}]
