"""Deployments rolled under traffic, with a real API server, real pods' processes and our proxy on the node.

Skipped unless KUBERNETES_BINARIES names a directory with its programs (docs/reliability.md).
`python -m tests.tools.bench.rollouts deployment` prints the figures, beside kube-proxy's.
"""

from __future__ import annotations

import itertools
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeproxy.controllers.proxy_requests.deployment_drains import MARK
from kubeproxy.controllers.readiness.gates import GATE
from kubeproxy.model import Address
from kubeproxy.model.drain_report import REPORT, REPORT_BYTES
from kubeproxy.model.drain_request import REQUESTS, DrainRequest, DrainRequests, Want, encode_requests
from tests.support.lab.daemon import METRICS
from tests.system.e2e.control_plane import BINARIES, binaries
from tests.system.e2e.stage import ask_often, until
from tests.system.rollouts.deployment import Rollouts, rollouts
from tests.system.rollouts.kubelet import PODS
from tests.system.rollouts.traffic import WEB, Load

pytestmark = [
    pytest.mark.netns,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
]

OPTED_IN = {"kubeproxy/drain": "true"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollouts]:
    programs = binaries()
    assert programs is not None
    with rollouts(tmp_path_factory.mktemp("rollouts"), programs, replicas=4) as it:
        yield it


@pytest.mark.parametrize(("data_path", "gates"), [("userspace", (GATE,)), ("kernel", ())])
def test_rolled_deployment_loses_no_connection_and_cuts_none(
    cluster: Rollouts, data_path: str, gates: tuple[str, ...]
) -> None:
    cluster.deploy(OPTED_IN)
    with cluster.ours("--drain-reports", f"--data-path={data_path}") as daemon:
        seen = cluster.roll(Load(100, 12), gates=gates)
        assert "Traceback" not in daemon.log(), daemon.log()
        assert " error " not in daemon.log(), daemon.log()
        assert "kernel path not possible" not in daemon.log(), daemon.log()
        metrics = daemon.get("/metrics", address=METRICS).body
    assert seen.report.failures == []
    assert seen.report.long_broken == []
    assert seen.report.answered > 100
    assert seen.report.long_ended > 12
    conditions = [each for pod in cluster.cluster.ask("GET", PODS)["items"] for each in pod["status"]["conditions"]]
    assert {each["reason"] for each in conditions if each["type"] == GATE} == ({"InUse"} if gates else set())
    reasons = {reason for reason, _ in cluster.events()}
    assert "DrainingPods" in reasons
    assert not reasons & {"DrainTimedOut", "ProxiesNotFollowing"}
    assert 'kubeproxy_drain_reports_total{result="written"}' in metrics


def test_controllers_killed_in_the_middle_go_on_without_a_loss(cluster: Rollouts) -> None:
    cluster.deploy(OPTED_IN)

    def kill() -> None:
        until(lambda: draining(cluster), "a pod drains")
        cluster.kill_controllers()
        cluster.start_controllers()

    with cluster.ours():
        seen = cluster.roll(Load(50, 6), kill)
    assert (seen.report.failures, seen.report.long_broken) == ([], [])


def test_api_server_killed_in_the_middle_costs_no_connection(cluster: Rollouts) -> None:
    cluster.deploy(OPTED_IN)

    def kill() -> None:
        until(lambda: draining(cluster), "a pod drains")
        cluster.cluster.signal("kube-apiserver", signal.SIGKILL)
        cluster.cluster.start_server()

    with cluster.ours():
        seen = cluster.roll(Load(50, 6), kill)
    assert (seen.report.failures, seen.report.long_broken) == ([], [])


def draining(cluster: Rollouts) -> list[str]:
    """The pods that are marked as draining."""
    pods = cluster.cluster.ask("GET", PODS)["items"]
    return [pod["metadata"]["name"] for pod in pods if MARK in pod["metadata"].get("annotations", {})]


def test_endpoint_that_drains_gets_no_new_connection_and_its_connections_are_reported(cluster: Rollouts) -> None:
    """By hand, as any other rollout tool could: an annotation, and a Lease as the answer."""
    cluster.deploy(OPTED_IN)
    path = "/api/v1/namespaces/default/services/web"
    with cluster.ours() as daemon:
        pods = cluster.cluster.ask("GET", PODS)["items"]
        by_name = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}
        until(lambda: len(ask_often(cluster.network.client, WEB, 40)) == 4, "all pods answer")
        with cluster.network.client.connect(WEB, timeout=60) as held, held.makefile() as lines:
            held.sendall(b"drip 40 0.25\n")
            name = lines.readline().strip()
            annotate(cluster, path, asking(Want.DRAIN, name, by_name[name]))

            def report() -> str:
                (lease,) = cluster.leases()
                return str(lease["metadata"]["annotations"]["kubeproxy/drain-report"])

            until(lambda: f'"open":{{"{by_name[name]}":1}}' in report(), "the connection is reported")
            assert '"default/web":{"generation":7' in report()
            assert name not in ask_often(cluster.network.client, WEB, 60)
            status = daemon.get("/statusz?service=default/web", address=METRICS).body
            assert "a rollout drains it: gets no new clients, 1 connection open" in status, status
            assert len(lines.readlines()) == 39, "the open connection goes on to its end"
        until(lambda: "open" not in report(), "the end of the connection is reported")
        annotate(cluster, path, None)
        until(lambda: name in ask_often(cluster.network.client, WEB, 40), "the pod serves again")
        annotate(cluster, path, "{")
        until(lambda: "it is ignored" in daemon.log(), "a faulty annotation is reported")
        assert len(ask_often(cluster.network.client, WEB, 40)) == 4
        annotate(cluster, path, None)


def test_connections_of_a_replaced_instance_are_reported_until_they_end(cluster: Rollouts) -> None:
    cluster.deploy(OPTED_IN)
    path = "/api/v1/namespaces/default/services/web"

    def counted() -> set[str]:
        """The roles of the Leases that have open connections."""
        found = (lease["metadata"] for lease in cluster.leases())
        return {it["labels"][REPORT] for it in found if '"open"' in it["annotations"][REPORT]}

    with cluster.ours() as first, cluster.network.client.connect(WEB, timeout=60) as held:
        held.sendall(b"drip 30 0.25\n")
        with held.makefile() as lines:
            name = lines.readline().strip()
            pod = cluster.cluster.ask("GET", f"{PODS}/{name}")
            with cluster.another() as second:
                until(lambda: "has taken over" in first.log(), "the second instance has taken over")
                annotate(cluster, path, asking(Want.DRAIN, name, pod["status"]["podIP"]))
                until(lambda: counted() == {"leaving"}, "the first one reports its connection")
                assert len(lines.readlines()) == 29, "it goes on to its end"
                held.shutdown(socket.SHUT_WR)
                until(lambda: not counted(), "the end of the connection is reported")
                annotate(cluster, path, None)
                assert "Traceback" not in first.log() + second.log()


def test_pod_with_the_address_of_one_that_drained_gets_connections(cluster: Rollouts) -> None:
    """A request about a pod that is gone: another pod has the address by now."""
    cluster.deploy(OPTED_IN)
    path = "/api/v1/namespaces/default/services/web"
    with cluster.ours():
        pod = cluster.cluster.ask("GET", PODS)["items"][0]
        name, uid, address = pod["metadata"]["name"], pod["metadata"]["uid"], pod["status"]["podIP"]

        def report() -> str:
            (lease,) = cluster.leases()
            return str(lease["metadata"]["annotations"]["kubeproxy/drain-report"])

        def answers() -> bool:
            return name in ask_often(cluster.network.client, WEB, 40)

        gone = "00000000-0000-4000-8000-000000000000"
        annotate(cluster, path, asking(Want.DRAIN, "web-gone", address, uid=gone))
        until(lambda: '"default/web":{"generation":7' in report(), "the request is in effect")
        assert answers()
        annotate(cluster, path, asking(Want.USE, "web-gone", address, uid=gone))
        until(lambda: f'"unused":["{address}"]' in report(), "the pod that is gone is not in use")
        annotate(cluster, path, asking(Want.DRAIN, name, address, uid=uid))
        until(lambda: not answers(), "the pod itself drains")
        annotate(cluster, path, None)


def asking(want: Want, pod: str, address: str, *, uid: str = "") -> str:
    """An annotation with one request that outlives the test."""
    request = DrainRequest("hand", pod, (Address(address),), want, since=7, until=time.time() + 550, uid=uid)
    return encode_requests(DrainRequests(7, (request,)))


def annotate(cluster: Rollouts, path: str, text: str | None) -> None:
    body = {"metadata": {"annotations": {REQUESTS: text}}}
    cluster.cluster.ask("PATCH", path, body, content_type="application/merge-patch+json")


def test_tenant_who_asks_for_all_that_may_be_asked_takes_nothing_from_others(cluster: Rollouts) -> None:
    """Two Services with the most requests, and 60,000 endpoints that each of them is about."""
    cluster.deploy(OPTED_IN)
    path, until_s = "/api/v1/namespaces/default/services/web", time.time() + 550
    slices = f"/apis/{cluster.cluster.preferred('discovery.k8s.io')}/namespaces/evil/endpointslices"
    every = [
        DrainRequest(
            "evil", f"p{n}", (Address("10.9.9.9"), Address(f"10.8.{n // 250}.{n % 250}")), want, 7, until_s, f"u{n}"
        )
        for n, want in zip(range(1000), itertools.cycle((Want.DRAIN, Want.USE)), strict=False)
    ]
    text = encode_requests(DrainRequests(7, tuple(every)))
    cluster.cluster.put({"kind": "Namespace", "metadata": {"name": "evil"}})
    with cluster.ours() as daemon:
        for name in ("b1", "b2"):
            metadata = {"name": name, "namespace": "evil", "annotations": {REQUESTS: text}}
            cluster.cluster.put({"kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}})
        endpoint = {
            "addresses": ["10.9.9.9"],
            "targetRef": {"kind": "Pod", "name": "x", "namespace": "evil", "uid": "x"},
        }
        for number in range(60):
            labels = {"kubernetes.io/service-name": "b1"}
            item = {"metadata": {"name": f"b1-{number}", "labels": labels}, "addressType": "IPv4"}
            cluster.cluster.ask("POST", slices, {**item, "ports": [{"port": 80}], "endpoints": [endpoint] * 1000})
        pod = cluster.cluster.ask("GET", PODS)["items"][0]
        annotate(cluster, path, asking(Want.DRAIN, pod["metadata"]["name"], pod["status"]["podIP"]))

        def report() -> str:
            (lease,) = cluster.leases()
            return str(lease["metadata"]["annotations"]["kubeproxy/drain-report"])

        until(lambda: '"default/web":{"generation":7' in report(), "another tenant's request is in effect")
        until(lambda: '"omitted":{"evil":' in report(), "what has no room is said")
        assert len(report()) <= REPORT_BYTES
        until(lambda: daemon.get("/livez").status == 200, "the control process answers")
        annotate(cluster, path, None)
    for name in ("b1", "b2"):
        cluster.cluster.delete({"kind": "Service", "metadata": {"name": name, "namespace": "evil"}})
    cluster.cluster.ask("DELETE", slices)


def test_report_ends_with_the_daemon_and_with_the_setting(cluster: Rollouts) -> None:
    cluster.deploy(OPTED_IN)
    with cluster.ours() as daemon:
        (lease,) = cluster.leases()
        assert lease["metadata"]["ownerReferences"][0]["kind"] == "Node"
        assert lease["spec"]["leaseDurationSeconds"] == 150
        daemon.terminate()
        (lease,) = cluster.leases()
        assert lease["spec"]["leaseDurationSeconds"] == 1


def test_sighup_switches_reports_and_drains(cluster: Rollouts, tmp_path: Path) -> None:
    cluster.deploy(OPTED_IN)
    path = "/api/v1/namespaces/default/services/web"
    pod = cluster.cluster.ask("GET", PODS)["items"][0]
    name = pod["metadata"]["name"]
    config = tmp_path / "config.yaml"
    head = (
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node\n"
        f"clientConnection: {{kubeconfig: {cluster.directory / 'kubeconfig'}}}\n"
    )

    def leases() -> list[int]:
        return [lease["spec"]["leaseDurationSeconds"] for lease in cluster.leases()]

    def answers() -> bool:
        return name in ask_often(cluster.network.client, WEB, 40)

    config.write_text(f"{head}kubeproxy: {{drainReports: true}}\n")
    with cluster.ours(f"--config={config}") as daemon:
        annotate(cluster, path, asking(Want.DRAIN, name, pod["status"]["podIP"]))
        until(lambda: not answers(), "the pod drains")
        config.write_text(f"{head}kubeproxy: {{drainReports: false}}\n")
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: leases() == [1], "the report has ended")
        until(answers, "requests do not count any more")
        config.write_text(f"{head}kubeproxy: {{drainReports: true}}\n")
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: leases() == [150], "the node reports again")
        until(lambda: not answers(), "the pod drains again")
        annotate(cluster, path, None)


def test_daemon_without_the_permission_serves_and_reports_it(cluster: Rollouts) -> None:
    cluster.deploy(OPTED_IN)
    path = "/api/v1/namespaces/default/services/web"
    role = "/apis/rbac.authorization.k8s.io/v1/namespaces/kubeproxy-reports/roles/kubeproxy-drain-reports"
    kept = cluster.cluster.ask("GET", role)
    del kept["metadata"]["resourceVersion"], kept["metadata"]["uid"]
    with cluster.ours() as daemon:
        cluster.cluster.ask("DELETE", role)
        try:
            annotate(cluster, path, asking(Want.USE, "none", "10.3.250.2"))
            until(lambda: "drain report not written, retrying" in daemon.log(), "the refusal is logged")
            assert len(ask_often(cluster.network.client, WEB, 40)) == 4, "traffic goes on"
        finally:
            cluster.cluster.ask("POST", role.rpartition("/")[0], kept)
        until(lambda: "drain report written again" in daemon.log(), "it is written when it may be", within_s=90)
        annotate(cluster, path, None)
        assert daemon.log().count("drain report not written") == 1, "once, however often it is tried"
