from __future__ import annotations

import platform

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kubeproxy.model import Family
from kubeproxy.model.version import __version__
from kubeproxy.observability.metrics.control_plane import Metrics
from kubeproxy.observability.picture import Picture
from kubeproxy.runtime import compiled
from tests.observability.conftest import State
from tests.support.clock import Clock

NOW = 1_800_000_000.0
SYNC_BUCKETS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
"""Milliseconds, without the +Inf at the end."""
PROGRAMMING_BUCKETS = [
    *(0, 250, 500),
    *(second * 1000 for second in range(1, 60)),
    *(60_000, 65_000, 70_000, 75_000, 80_000, 85_000, 90_000, 95_000, 100_000, 105_000, 110_000, 115_000),
    *(120_000, 150_000, 180_000, 210_000, 240_000, 270_000, 300_000),
]


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(clock=clock)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_kube_proxys_names_types_and_labels(metrics: Metrics, state: State) -> None:
    metrics.state.read(Picture(state.snapshot()))
    found = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
    }
    prefix = "kubeproxy_sync_proxy_rules_"
    expected: dict[str, tuple[str, set[str]]] = {
        f"{prefix}duration_seconds": ("histogram", {"ip_family"}),
        "kubeproxy_sync_full_proxy_rules_duration_seconds": ("histogram", {"ip_family"}),
        "kubeproxy_sync_partial_proxy_rules_duration_seconds": ("histogram", {"ip_family"}),
        f"{prefix}last_timestamp_seconds": ("gauge", {"ip_family"}),
        f"{prefix}last_queued_timestamp_seconds": ("gauge", {"ip_family"}),
        "kubeproxy_network_programming_duration_seconds": ("histogram", {"ip_family"}),
        f"{prefix}no_local_endpoints_total": ("gauge", {"ip_family", "traffic_policy"}),
        "kubeproxy_conntrack_reconciler_sync_duration_seconds": ("histogram", {"ip_family"}),
        f"{prefix}endpoint_changes_pending": ("gauge", set()),
        f"{prefix}service_changes_pending": ("gauge", set()),
        f"{prefix}endpoint_changes_total": ("counter", set()),
        f"{prefix}service_changes_total": ("counter", set()),
        f"{prefix}nftables_sync_failures_total": ("counter", {"ip_family"}),
        f"{prefix}iptables_restore_failures_total": ("counter", {"ip_family"}),
        "kubeproxy_proxy_healthz_total": ("counter", {"code"}),
        "kubeproxy_proxy_livez_total": ("counter", {"code"}),
    }
    assert {name: found.get(name) for name in expected} == expected
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"} <= found.keys()
    assert not [name for name in found if name.endswith("_created")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kubeproxy_sync_proxy_rules_duration_seconds", SYNC_BUCKETS),
        ("kubeproxy_sync_full_proxy_rules_duration_seconds", SYNC_BUCKETS),
        ("kubeproxy_sync_partial_proxy_rules_duration_seconds", SYNC_BUCKETS),
        ("kubeproxy_network_programming_duration_seconds", PROGRAMMING_BUCKETS),
    ],
)
def test_kube_proxys_buckets(metrics: Metrics, name: str, expected: list[int]) -> None:
    (family,) = (family for family in metrics.registry.collect() if family.name == name)
    *bounds, last = [sample.labels["le"] for sample in family.samples if sample.name == f"{name}_bucket"]
    assert [float(bound) for bound in bounds] == [milliseconds / 1000 for milliseconds in expected]
    assert last == "+Inf"


def test_every_family_has_its_series_from_the_start() -> None:
    metrics = Metrics(families=Family)
    for family in ("IPv4", "IPv6"):
        assert value(metrics, "kubeproxy_sync_proxy_rules_duration_seconds_count", ip_family=family) == 0
    assert value(metrics, "kubeproxy_proxy_healthz_total", code="503") == 0
    assert value(metrics, "kubeproxy_proxy_livez_total", code="200") == 0


def test_build_info(metrics: Metrics) -> None:
    version = {"version": __version__, "python_version": platform.python_version(), "byte_path": compiled.form()}
    assert value(metrics, "kubeproxy_build_info", **version) == 1


def test_a_sync_has_duration_and_time(metrics: Metrics, clock: Clock) -> None:
    metrics.sync_queued()
    clock.now += 3
    metrics.synced(0.0015, full=True, adapter="nftables")
    metrics.synced(0.5, full=False, adapter="nftables")
    family = {"ip_family": "IPv4"}
    prefix = "kubeproxy_sync_proxy_rules_"
    assert value(metrics, f"{prefix}last_queued_timestamp_seconds", **family) == NOW
    assert value(metrics, f"{prefix}last_timestamp_seconds", **family) == NOW + 3
    assert value(metrics, f"{prefix}duration_seconds_sum", **family) == pytest.approx(0.5015)
    assert value(metrics, f"{prefix}duration_seconds_bucket", le="0.002", **family) == 1
    assert value(metrics, "kubeproxy_netfilter_apply_duration_seconds_count", adapter="nftables") == 2
    assert value(metrics, "kubeproxy_sync_full_proxy_rules_duration_seconds_sum", **family) == 0.0015
    assert value(metrics, "kubeproxy_sync_partial_proxy_rules_duration_seconds_sum", **family) == 0.5


@pytest.mark.parametrize(
    ("trigger", "observed"),
    [
        ("2027-01-15T08:00:10Z", 20.0),
        ("2027-01-15T08:00:10.123456789Z", 19.876544),
        ("2027-01-15T09:00:10+01:00", 20.0),
        pytest.param("2027-01-15T08:01:00Z", 0.0, id="a clock ahead of ours"),
        pytest.param("2027-01-15T07:59:59Z", None, id="before we started"),
        pytest.param("yesterday", None, id="nonsense"),
        pytest.param("", None, id="none"),
        pytest.param("0001-01-01T00:00:00Z", None, id="Go's zero time"),
        pytest.param("0001-01-01T00:00:00+01:00", None, id="before all time"),
        pytest.param("9999-12-31T23:59:59-23:59", 0.0, id="after all time"),
        pytest.param("2027-01-15T08:00:10", None, id="without a zone"),
    ],
)
def test_network_programming_latency(metrics: Metrics, clock: Clock, trigger: str, observed: float | None) -> None:
    clock.now = NOW + 30
    metrics.programmed(trigger)
    name = "kubeproxy_network_programming_duration_seconds"
    assert value(metrics, f"{name}_count", ip_family="IPv4") == (0 if observed is None else 1)
    assert value(metrics, f"{name}_sum", ip_family="IPv4") == pytest.approx(observed or 0.0, abs=1e-5)


@pytest.mark.parametrize(("adapter", "nftables", "iptables"), [("nftables", 1, 0), ("iptables", 0, 1), ("none", 0, 0)])
def test_a_refused_transaction_counts_for_its_adapter(
    metrics: Metrics, adapter: str, nftables: int, iptables: int
) -> None:
    metrics.apply_failed(adapter)
    prefix = "kubeproxy_sync_proxy_rules_"
    assert value(metrics, "kubeproxy_netfilter_apply_failures_total", adapter=adapter) == 1
    assert value(metrics, f"{prefix}nftables_sync_failures_total", ip_family="IPv4") == nftables
    assert value(metrics, f"{prefix}iptables_restore_failures_total", ip_family="IPv4") == iptables


def test_names_follow_prometheus_conventions(metrics: Metrics, state: State) -> None:
    metrics.state.read(Picture(state.snapshot()))
    for family in metrics.registry.collect():
        assert family.documentation
        assert family.name.startswith(("kubeproxy_", "process_"))


def test_deleted_flows_and_failures_are_counted(metrics: Metrics) -> None:
    metrics.reconciled(0.25, deleted=3)
    metrics.reconciled(0.5, deleted=0)
    metrics.conntrack_failed()
    name = "kubeproxy_conntrack_reconciler_sync_duration_seconds"
    assert value(metrics, f"{name}_sum", ip_family="IPv4") == 0.75
    assert value(metrics, f"{name}_count", ip_family="IPv4") == 2
    assert value(metrics, "kubeproxy_conntrack_deleted_flows_total") == 3
    assert value(metrics, "kubeproxy_conntrack_failures_total") == 1


def test_the_lag_of_the_loop(metrics: Metrics) -> None:
    for lag_s in (0.0, 0.002, 0.2):
        metrics.lagged(lag_s)
    assert value(metrics, "kubeproxy_loop_lag_seconds_bucket", le="0.0025") == 2
    assert value(metrics, "kubeproxy_loop_lag_seconds_count") == 3
