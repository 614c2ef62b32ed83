"""Tests against a real kube-apiserver with real controllers, and faults of that server.

Objects of the server reach traffic; its faults do not. Skipped unless KUBERNETES_BINARIES names a directory with its
programs (docs/reliability.md).
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Daemon, Network
from tests.system.e2e import kernel_state
from tests.system.e2e.control_plane import BINARIES, BINDING, RealCluster, Refused, binaries
from tests.system.e2e.stage import KERNEL, QUICK, TARGET, VIP, Object, Stage, ask_often, until
from tests.system.e2e.test_kubernetes import in_step
from tests.system.e2e.traffic import Traffic

pytestmark = [
    pytest.mark.netns,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
]

NODE: Object = {"kind": "Node", "metadata": {"name": "node"}}
OTHER = ("10.96.0.20", 80)


def service(name: str = "web", vip: str = VIP, **spec: Any) -> Object:
    """A Service with all pods, or with the pods that `spec` selects."""
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    selector = {"app": "web"}
    return {
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterIP": vip, "ports": ports, "selector": selector, **spec},
    }


def pod(index: int, *, ready: bool = True) -> Object:
    """A Pod with the fields that a kubelet writes."""
    address = Network.pod_v4(index)
    container = {"name": "web", "image": "web", "ports": [{"name": "http", "containerPort": TARGET}]}
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": str(ready)}],
    }
    labels = {"app": "web", "pod": str(index)}
    return {
        "kind": "Pod",
        "metadata": {"name": f"pod-{index}", "namespace": "default", "labels": labels},
        "spec": {"nodeName": "node", "containers": [container]},
        "status": status,
    }


@dataclass(slots=True)
class Act:
    """A cluster with a Service for pods 0 and 1, and its daemon."""

    stage: Stage
    cluster: RealCluster
    daemon: Daemon
    token: Path

    def flip(self, *ready: int) -> None:
        """Make exactly these pods ready and wait until exactly they answer the client."""
        # At every time at least one is ready, also for controllers that reconnect to their server.
        self.cluster.put(*(pod(index, ready=True) for index in ready))
        names = {f"pod-{index}" for index in ready}
        until(lambda: names <= ask_often(self.stage.client, (VIP, 80), 12).keys(), "they serve")
        self.cluster.put(*(pod(index, ready=False) for index in range(4) if index not in ready))
        self.stage.await_answers(*ready)

    def restart_server(self) -> None:
        """Kill and start the server, and wait until the daemon is in step."""
        self.cluster.signal("kube-apiserver", signal.SIGKILL)
        until(lambda: not in_step(self.daemon), "the daemon has noticed")
        self.cluster.start_server()
        until(lambda: in_step(self.daemon), "the daemon is in step")


@pytest.fixture(scope="module")
def cluster(theatre: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    programs = binaries()
    assert programs is not None
    with RealCluster(theatre.client, tmp_path_factory.mktemp("cluster"), programs) as cluster:
        yield cluster


@pytest.fixture(params=["nftables", KERNEL])
def act(request: pytest.FixtureRequest, stage: Stage, cluster: RealCluster, tmp_path: Path) -> Iterator[Act]:
    cluster.put(NODE, service(), *(pod(index, ready=index < 2) for index in range(4)))
    token, config = tmp_path / "token", tmp_path / "kubeconfig"
    token.write_text(cluster.token())
    config.write_text(cluster.kubeconfig(token_file=token))
    options = (QUICK, f"--kubeconfig={config}", "--hostname-override=node")
    daemon = stage.daemon(*options, netfilter=request.param, manifests=None)
    stage.await_answers(0, 1)
    until(lambda: in_step(daemon), "it is in step")
    with Traffic(stage.client, pause_s=0.02) as far, Traffic(stage.node, pause_s=0.02) as near:
        yield Act(stage, cluster, daemon, token)
        far.more()
        near.more()
    print(f"\n{far.count} connections of the client's and {near.count} of the node's, {len(far.failures)} failed")
    assert (far.failures, near.failures) == ([], [])
    assert " error " not in daemon.log(), daemon.log()
    assert "Traceback" not in daemon.log(), daemon.log()


def test_what_controllers_write_is_served(act: Act) -> None:
    act.flip(2, 3)
    act.cluster.put(service("other", OTHER[0], selector={"pod": "2"}))
    act.stage.await_answers(2, address=OTHER)
    act.cluster.put(service("other", OTHER[0], selector={"pod": "0"}))
    act.stage.await_refusal(OTHER)
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "NodePort"},
        {"type": "LoadBalancer", "externalTrafficPolicy": "Local"},
        {"type": "ClusterIP", "externalIPs": ["10.5.5.5"], "externalTrafficPolicy": None},
    )
    for kind in kinds:
        act.cluster.delete(service("other"))
        act.cluster.put(service("other", OTHER[0], selector={"pod": "3"}, **kind))
        act.stage.await_answers(3, address=OTHER)
    act.stage.await_answers(3, address=("10.5.5.5", 80))
    act.cluster.delete(service("other"))
    until(lambda: kernel_state.redirects(act.stage.node).keys() == {(VIP, 80), ("10.96.0.1", 443)}, "the other is gone")
    until(lambda: any(event["reason"] == "Starting" for event in act.cluster.events()), "an Event of its start")


def test_the_node_goes_and_comes(act: Act) -> None:
    act.cluster.delete(NODE)
    until(lambda: act.daemon.get("/healthz").status == 503, "load balancers get 503")
    assert "API server has no such node" in act.daemon.log()
    act.cluster.put(NODE)
    until(lambda: act.daemon.get("/healthz").status == 200, "and back")


def test_it_is_killed_and_starts_again(act: Act) -> None:
    for pods in (2, 3), (0, 1):
        act.restart_server()
        act.flip(*pods)
    log = act.daemon.log()
    assert "watch version expired, listing again" in log
    assert "reading this node is forbidden" not in log


def test_it_is_stopped_and_goes_on(act: Act) -> None:
    for program in ("kube-apiserver", "etcd"):
        act.cluster.signal(program, signal.SIGSTOP, within_s=None)
        act.stage.await_answers(0, 1)
        act.cluster.signal(program, signal.SIGCONT, within_s=None)
    act.flip(2, 3)
    act.cluster.signal("etcd", signal.SIGKILL)
    act.stage.await_answers(2, 3)
    act.cluster.start_etcd()
    act.cluster.await_ready()
    act.flip(0, 1)
    assert "API server lost" not in act.daemon.log(), "its cache went on answering"


def test_its_storage_is_restored_from_a_backup(act: Act, tmp_path: Path) -> None:
    """Resource versions go backwards, and changes after the backup are lost."""
    storage, backup = act.cluster.storage, tmp_path / "backup"
    act.cluster.signal("etcd", signal.SIGKILL)
    shutil.copytree(storage, backup)
    act.cluster.start_etcd()
    act.cluster.await_ready()
    act.cluster.put(service("other", OTHER[0]))
    act.stage.await_answers(0, 1, address=OTHER)
    for turn in range(20):
        act.cluster.put(service(f"more-{turn}", f"10.96.1.{turn}"))
    act.cluster.signal("kube-apiserver", signal.SIGKILL)
    act.cluster.signal("etcd", signal.SIGKILL)
    shutil.rmtree(storage)
    shutil.copytree(backup, storage)
    act.cluster.start_etcd()
    act.cluster.start_server()
    until(lambda: kernel_state.redirects(act.stage.node).keys() == {(VIP, 80), ("10.96.0.1", 443)}, "they never were")
    until(lambda: in_step(act.daemon), "it is in step")


def test_rights_are_taken_away_and_given_back(act: Act) -> None:
    act.cluster.delete(BINDING)
    act.cluster.signal("kube-apiserver", signal.SIGKILL)
    act.cluster.start_server()
    until(lambda: "answered 403" in act.daemon.log(), "it may not")
    assert "bind system:node-proxier" in act.daemon.log()
    act.cluster.bind_proxier()
    until(lambda: in_step(act.daemon), "it may again")
    act.flip(2, 3)


def test_its_account_is_made_anew(act: Act) -> None:
    """The server refuses the old token. The daemon reads the new one from the file as soon as it exists."""
    act.cluster.renew_account()
    act.cluster.signal("kube-apiserver", signal.SIGKILL)
    act.cluster.start_server()
    until(lambda: "answered 401" in act.daemon.log(), "the old token is refused")
    act.token.write_text(act.cluster.token())
    until(lambda: in_step(act.daemon), "the new one is taken")
    act.flip(2, 3)


def test_its_certificates_are_made_anew(act: Act) -> None:
    """CA, server certificate and the signing key of the tokens."""
    act.cluster.signal("kube-controller-manager", signal.SIGKILL)
    act.cluster.signal("kube-apiserver", signal.SIGKILL)
    act.cluster.make_certificates()
    act.cluster.start_server()
    act.cluster.start_controllers()
    act.token.write_text(act.cluster.token())
    until(lambda: in_step(act.daemon), "it trusts the new ones")
    act.flip(2, 3)


def test_many_services_come_and_go(act: Act) -> None:
    count = 300
    act.cluster.put(*(service(f"many-{n}", f"10.96.{4 + n // 250}.{1 + n % 250}") for n in range(count)))
    last = (f"10.96.{4 + (count - 1) // 250}.{1 + (count - 1) % 250}", 80)
    act.stage.await_answers(0, 1, address=last)
    act.flip(2, 3)
    act.stage.await_answers(2, 3, address=last)
    for n in range(count):
        act.cluster.delete(service(f"many-{n}"))
    until(lambda: kernel_state.redirects(act.stage.node).keys() == {(VIP, 80), ("10.96.0.1", 443)}, "all are gone")


def test_the_real_server_refuses_an_invalid_object(cluster: RealCluster) -> None:
    """So the objects of the tests are the objects of the server."""
    with pytest.raises(Refused, match="422"):
        cluster.put(service("wrong", "192.0.2.1"))
