from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from kubeproxy.kubernetes.client.request_metrics import Requests
from kubeproxy.model import (
    Address,
    Family,
    FrontendName,
    Protocol,
    Scope,
    ServiceName,
    Target,
)
from kubeproxy.model.conntrack_usage import ConntrackRoom
from kubeproxy.model.manifests import ManifestState
from kubeproxy.model.rescue import Ejection
from kubeproxy.model.snapshot import SlotUse
from kubeproxy.observability.health import Reason
from kubeproxy.observability.logs.tenant_limit import TENANTS
from kubeproxy.observability.metrics.state import StateCollector
from kubeproxy.observability.picture import EventCounts, Picture
from tests.observability.conftest import WEB, State, frontend, listening, manifest_problem, watch
from tests.observability.status.observation import flows_state, rescue_state


@pytest.fixture
def collector() -> StateCollector:
    return StateCollector()


def values(collector: StateCollector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sample.labels.items()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_nothing_is_collected_before_the_first_read(collector: StateCollector) -> None:
    assert values(collector) == {}


def test_the_proxier(collector: StateCollector, state: State) -> None:
    internal = frontend(FrontendName(WEB, Family.IPV4, Scope.LOCAL), answered=False)
    external = frontend(FrontendName(WEB, Family.IPV6, Scope.EXTERNAL), answered=False)
    served = frontend(FrontendName(WEB, Family.IPV6, Scope.LOCAL))
    empty = frontend(FrontendName(WEB, Family.IPV6), answered=False)
    frontends = (None, internal), (40001, internal), (40002, external), (None, served), (None, empty)
    state.frontends = [listening(port, wanted) for port, wanted in frontends]
    state.problems = {ServiceName("default", "web"): ["port 80: SCTP is not served"]}
    state.sources = {"kubernetes": False, "manifests": True}
    state.service_changes_total, state.service_changes_pending = 12, 2
    state.endpoint_changes_total, state.endpoint_changes_pending = 34, 3
    collector.read(Picture(state.snapshot()))
    expected = {
        "kubeproxy_sync_proxy_rules_service_changes_total": 12,
        "kubeproxy_sync_proxy_rules_service_changes_pending": 2,
        "kubeproxy_sync_proxy_rules_endpoint_changes_total": 34,
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending": 3,
        "kubeproxy_services_degraded": 1,
        "kubeproxy_frontends state=serving": 2,
        "kubeproxy_frontends state=waiting": 3,
        "kubeproxy_data_path_frontends data_path=kernel": 0,
        "kubeproxy_data_path_frontends data_path=userspace": 5,
        "kubeproxy_data_path_frontends data_path=refused": 0,
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=internal": 2,
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=external": 0,
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv6 traffic_policy=internal": 0,
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv6 traffic_policy=external": 1,
        "kubeproxy_source_listed source=kubernetes": 0,
        "kubeproxy_source_listed source=manifests": 1,
        "kubeproxy_source_stale_seconds source=kubernetes": 0,
        "kubeproxy_source_stale_seconds source=manifests": 0,
        **{f"kubeproxy_degraded reason={reason}": 0 for reason in Reason},
        "kubeproxy_log_suppressed_lines_total": TENANTS.suppressed,
    }
    assert values(collector) == expected
    assert values(collector) == expected
    collector.read(Picture(state.snapshot(), stale={"kubernetes": 1.0}))
    assert values(collector)["kubeproxy_source_stale_seconds source=kubernetes"] > 1_700_000_000
    assert values(collector)["kubeproxy_source_stale_seconds source=manifests"] == 0
    state.frontends = []
    collector.read(Picture(state.snapshot()))
    assert values(collector)["kubeproxy_frontends state=serving"] == 0


def test_reasons_and_connection_tracking_have_metrics(collector: StateCollector, state: State) -> None:
    room = ConntrackRoom(entries=900, limit=1000, dropped=3)
    collector.read(Picture(state.snapshot(), conntrack=room, reasons={Reason.CONNTRACK: "nearly full"}))
    found = values(collector)
    assert {name for name, value in found.items() if name.startswith("kubeproxy_degraded") and value} == {
        "kubeproxy_degraded reason=conntrack"
    }
    assert [found[f"kubeproxy_conntrack_{it}"] for it in ("entries", "limit", "dropped_total")] == [900, 1000, 3]


def test_the_counting_of_the_kernel_path_has_metrics(collector: StateCollector, state: State) -> None:
    collector.read(Picture(state.snapshot()))
    assert not [name for name in values(collector) if "kernel" in name and "data_path" not in name]
    collector.read(
        Picture(state.snapshot(), kernel_flows=flows_state(bytes_counted=False, problem="away", overflows=2))
    )
    found = values(collector)
    assert {name: found[f"kubeproxy_kernel_{name}"] for name in ("bytes_counted", "flows_readable", "ends_total")} == {
        "bytes_counted": 0,
        "flows_readable": 0,
        "ends_total": 5,
    }
    assert found["kubeproxy_kernel_end_overflows_total"] == 2
    assert found["kubeproxy_kernel_flows_reading_seconds"] == 0.01


def test_the_rescue_has_metrics_where_the_kernel_path_is_asked_for(collector: StateCollector, state: State) -> None:
    state.frontends = [listening(40001), listening(40002, data_path="kernel"), listening(40003, data_path="kernel")]
    collector.read(Picture(state.snapshot()))
    found = values(collector)
    assert found["kubeproxy_data_path_frontends data_path=kernel"] == 2
    assert found["kubeproxy_data_path_frontends data_path=userspace"] == 1
    assert not [name for name in found if name.startswith("kubeproxy_rescue")]
    ejected = {(Protocol.TCP, Target(Address("10.0.0.1"), 80)): Ejection("silent", "rescue", 0.0, 1.0, 0.1)}
    state.slots = SlotUse(7, 9)
    collector.read(Picture(state.snapshot(), rescue=rescue_state(ejected, restarts=4)))
    found = values(collector)
    assert [found[f"kubeproxy_kernel_slots state={it}"] for it in ("used", "limit")] == [7, 9]
    expected = {
        "working": 1,
        "reports_total reason=refused": 5,
        "reports_total reason=unreachable": 2,
        "copied_total": 100,
        "copies_held": 3,
        "resent_total": 7,
        "not_resent_total cause=given_up": 0,
        "not_resent_total cause=unknown": 0,
        "not_resent_total cause=unsent": 0,
        "overflows_total": 0,
        "process_restarts_total": 4,
        "ejections_total reason=refused noticed_by=rescue": 2,
        "ejections_total reason=timeout noticed_by=worker": 1,
        "ejected": 1,
    }
    assert {
        name.removeprefix("kubeproxy_rescue_"): value for name, value in found.items() if "rescue_" in name
    } == expected


def test_watches(collector: StateCollector, state: State) -> None:
    watches = [
        watch(
            behind_s=1.5,
            last_event=1.8e9,
            lists=2,
            watches=3,
            events=4,
            failures={"expired": 5},
            faulty=6,
            left_out=7,
            kept_bytes=800,
        ),
        watch(resource="endpointslices"),
    ]
    collector.read(Picture(state.snapshot(), watches=watches))
    found = {name: value for name, value in values(collector).items() if name.startswith("kubeproxy_watch")}
    assert found == {
        "kubeproxy_watch_behind_seconds resource=services": 1.5,
        "kubeproxy_watch_behind_seconds resource=endpointslices": 0,
        "kubeproxy_watch_last_event_timestamp_seconds resource=services": 1.8e9,
        "kubeproxy_watch_last_event_timestamp_seconds resource=endpointslices": 0,
        "kubeproxy_watch_lists_total resource=services": 2,
        "kubeproxy_watch_lists_total resource=endpointslices": 0,
        "kubeproxy_watch_starts_total resource=services": 3,
        "kubeproxy_watch_starts_total resource=endpointslices": 0,
        "kubeproxy_watch_events_total resource=services": 4,
        "kubeproxy_watch_events_total resource=endpointslices": 0,
        "kubeproxy_watch_failures_total resource=services cause=expired": 5,
        "kubeproxy_watch_faulty_objects resource=services": 6,
        "kubeproxy_watch_faulty_objects resource=endpointslices": 0,
        "kubeproxy_watch_left_out_objects resource=services": 7,
        "kubeproxy_watch_left_out_objects resource=endpointslices": 0,
        "kubeproxy_watch_kept_bytes resource=services": 800,
        "kubeproxy_watch_kept_bytes resource=endpointslices": 0,
    }


def test_manifests(collector: StateCollector, state: State) -> None:
    collector.read(
        Picture(
            state.snapshot(),
            manifests=ManifestState(
                loaded=True,
                problems=(
                    manifest_problem(),
                    manifest_problem(skipped=True),
                    manifest_problem(),
                    *[manifest_problem(warning=True)] * 3,
                ),
                last_change=1.8e9,
            ),
        )
    )
    found = {name: value for name, value in values(collector).items() if name.startswith("kubeproxy_manifests")}
    assert found == {
        "kubeproxy_manifests_last_change_timestamp_seconds": 1.8e9,
        "kubeproxy_manifests_faults": 2,
        "kubeproxy_manifests_warnings": 3,
    }


def test_requests_to_the_api_server(collector: StateCollector, state: State) -> None:
    requests = Requests(host="10.96.0.1:443")
    requests.answered("GET", 200, 0.3)
    requests.answered("GET", 410, 0.0)
    requests.answered("POST", None, 100.0)
    collector.read(Picture(state.snapshot(), requests=requests))
    found = {name: value for name, value in values(collector).items() if name.startswith("rest_client_")}
    host = "host=10.96.0.1:443"
    assert found[f"rest_client_requests_total code=200 method=GET {host}"] == 1
    assert found[f"rest_client_requests_total code=410 method=GET {host}"] == 1
    assert found[f"rest_client_requests_total code=<error> method=POST {host}"] == 1
    latency = "rest_client_request_duration_seconds"
    assert found[f"{latency}_bucket verb=GET {host} le=0.25"] == 1
    assert found[f"{latency}_bucket verb=GET {host} le=0.5"] == 2
    assert found[f"{latency}_bucket verb=POST {host} le=60.0"] == 0
    assert found[f"{latency}_bucket verb=POST {host} le=+Inf"] == found[f"{latency}_count verb=POST {host}"] == 1
    assert found[f"{latency}_sum verb=GET {host}"] == 0.3


def test_events(collector: StateCollector, state: State) -> None:
    collector.read(Picture(state.snapshot(), events=EventCounts(sent=3, dropped=1)))
    assert values(collector)["kubeproxy_events_sent_total"] == 3
    assert values(collector)["kubeproxy_events_dropped_total"] == 1
