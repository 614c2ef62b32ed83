"""Which reports rollouts believe, and what they make of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeproxy.controllers.api_types import Lease, Pod
from kubeproxy.controllers.deployments.drain_plan import DrainOptions
from kubeproxy.controllers.deployments.explain_proxies import proxy_wait
from kubeproxy.controllers.proxy_requests.reports import Reports, changed_namespaces, live_reports
from kubeproxy.kubernetes import timestamps
from kubeproxy.model import Address, ServiceName
from kubeproxy.model.drain_report import REPORT, NodeReport, ServiceReport, decode_report, encode_report
from kubeproxy.model.drain_request import DrainRequest, DrainRequests, Want

NOW = 1_760_000_000.0
A = Address("10.0.0.1")
WEB = ServiceName("shop", "web")


def lease(
    node: str = "n1",
    *,
    renewed: float = NOW - 10,
    duration_s: int = 150,
    owner: dict[str, Any] | None = None,
    name: str = "kubeproxy-drain-n1",
    role: str = "node",
) -> Lease:
    owner = {"kind": "Node", "name": "n1", "uid": "u1"} if owner is None else owner
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "labels": {REPORT: role},
                "annotations": {REPORT: encode_report(NodeReport({WEB: ServiceReport(7)}))},
                "ownerReferences": [owner] if owner else [],
            },
            "spec": {
                "holderIdentity": node,
                "leaseDurationSeconds": duration_s,
                "renewTime": timestamps.microseconds(renewed),
            },
        },
        Lease,
    )


def test_report_of_a_node_is_believed() -> None:
    assert live_reports([lease()], NOW).nodes == {"n1": NodeReport({WEB: ServiceReport(7)})}
    leaving = lease(name="kubeproxy-drain-n1.leaving", role="leaving")
    assert set(live_reports([leaving], NOW).leaving) == {"n1"}
    assert live_reports([lease(renewed=NOW + 60)], NOW).nodes, "clocks differ"


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(lease(owner={}), id="no-owner"),
        pytest.param(lease(owner={"kind": "Node", "name": "n2", "uid": "u2"}), id="another-owner"),
        pytest.param(lease(owner={"kind": "Pod", "name": "n1", "uid": "u1"}), id="owner-is-no-node"),
        pytest.param(lease("n2"), id="another-holder"),
        pytest.param(lease(name="kubeproxy-drain-n1-again"), id="another-name"),
        pytest.param(lease(role="leaving"), id="another-role"),
        pytest.param(lease(renewed=4_000_000_000.0), id="renewed-in-the-future"),
        pytest.param(lease(renewed=NOW - 160, duration_s=2147483647), id="lasts-for-ever"),
        pytest.param(lease(renewed=NOW - 160), id="expired"),
    ],
)
def test_lease_that_is_no_report_of_a_live_node_is_not_waited_for(forged: Lease) -> None:
    assert live_reports([forged], NOW) == Reports({})


def test_report_that_no_proxy_writes_is_not_read() -> None:
    with pytest.raises(ValueError, match="found 100000 characters; allowed are at most 65536"):
        decode_report("x" * 100_000)


def test_what_has_no_room_is_told_as_the_reason() -> None:
    requests = DrainRequests(7, (DrainRequest("deployment/web", "web-1", (A,), Want.USE, 7, NOW + 60),))
    full = decode_report(encode_report(NodeReport({}, {"shop": 3})))
    reports = Reports({"n1": full, "n2": NodeReport({WEB: ServiceReport(7)})})
    state = reports.state("web-1", "deployment/web", {WEB: requests})
    assert state.waiting == state.omitted == {"n1"}
    pod = msgspec.convert({"metadata": {"name": "web-1"}}, Pod)
    wait = proxy_wait([pod], [], {"web-1": state}, DrainOptions(), NOW)
    assert wait is not None
    assert "the reports of 1 node (n1) have no room for all" in wait.remedy


def test_report_about_one_namespace_concerns_no_other() -> None:
    before = NodeReport({WEB: ServiceReport(7), ServiceName("a", "a"): ServiceReport(1)})
    now = NodeReport({WEB: ServiceReport(7, open={A: 1}), ServiceName("a", "a"): ServiceReport(1)})
    assert changed_namespaces(before, now) == {"shop"}
    assert changed_namespaces(before, NodeReport()) == {"shop", "a"}
