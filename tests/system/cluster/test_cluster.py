"""The project's DaemonSet on real kubelets: installed as documented, Kubernetes' own tests, and events under traffic.

The tests take an hour, so they are run when named: `pytest -m hours tests/system/cluster` (docs/conformance.md).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.cluster import conformance, controllers, events, table
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.events import EVENTS, Event
from tests.system.cluster.images import VERSIONS
from tests.system.cluster.service_proxies import Ours
from tests.system.cluster.web import Web

pytestmark = [pytest.mark.netns, pytest.mark.hours, pytest.mark.timeout(4 * 3600)]
KERNEL: dict[str, Any] = {"dataPath": "kernel"}
USERSPACE: dict[str, Any] = {"dataPath": "userspace"}
both_paths = pytest.mark.parametrize("config", [KERNEL, USERSPACE], ids=["kernel", "userspace"])


def _serves(ours: Ours) -> None:
    nothing = Event(lambda *_: None)
    result = events.run(nothing, Web(ours.cluster, ours.cluster.nodes[0]), ours, VERSIONS)
    assert all(tally.answered for tally in result.tallies.values()), result
    assert not any(tally.lost or tally.broken for tally in result.tallies.values()), result


def test_the_overlay_installs_what_serves(ours: Ours) -> None:
    ours.install_overlay(VERSIONS.current, {})
    _serves(ours)


def test_the_chart_installs_what_serves(ours: Ours) -> None:
    ours.install_chart(VERSIONS.current, {})
    _serves(ours)


@both_paths
def test_kubernetes_tests_of_services_pass(cluster: Cluster, ours: Ours, config: dict[str, Any]) -> None:
    ours.install_overlay(VERSIONS.current, config)
    found = conformance.run(cluster, config["dataPath"], conformance.SERVICES)
    print(table.markdown({config["dataPath"]: found}))
    allowed = {conformance.BY_DESIGN} if config is USERSPACE else set()
    assert set(table.failed(found)) <= allowed
    assert len(found) > 80, "most of them were not run"


def test_kubernetes_tests_of_workloads_pass_with_our_controllers(cluster: Cluster, ours: Ours) -> None:
    ours.install_overlay(VERSIONS.current, {})
    with controllers.ours(cluster):
        found = conformance.run(cluster, "workloads", conformance.WORKLOADS)
    assert table.failed(found) == []
    assert len(found) > 15, "most of them were not run"


@both_paths
def test_events_cost_no_connection(cluster: Cluster, ours: Ours, config: dict[str, Any]) -> None:
    ours.install_overlay(VERSIONS.current, config)
    web = Web(cluster, cluster.nodes[0])
    results = {name: events.run(event, web, ours, VERSIONS) for name, event in EVENTS.items()}
    print(events.markdown(results))
    lost = {name: result.lost for name, result in results.items() if result.lost}
    # Without a successor, userspace connections to the ended pod's listeners have nowhere to go.
    allowed = {name for name, event in EVENTS.items() if event.without_successor and config is USERSPACE}
    assert lost.keys() <= allowed, lost
    broken = {name for name, result in results.items() if any(it.broken for it in result.tallies.values())}
    assert broken <= {name for name, event in EVENTS.items() if event.cuts}
