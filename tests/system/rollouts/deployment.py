"""A Deployment that is rolled under traffic: control plane, kubelet, our controllers, a proxy, clients."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kubeproxy.model.drain_report import REPORT_SELECTOR
from tests.support.lab import Network, make_network
from tests.support.lab.daemon import KUBEPROXY, Daemon
from tests.support.lab.kube_proxy import KubeProxy
from tests.support.lab.node import NODE_V4
from tests.system.deploy.manifests import COMPONENTS, read
from tests.system.e2e import kernel_state
from tests.system.e2e.control_plane import ACCOUNT, RealCluster, Refused
from tests.system.e2e.stage import QUICK, Object, ask, until
from tests.system.e2e.steady_clients import Report
from tests.system.rollouts.kubelet import NODE, Kubelet
from tests.system.rollouts.traffic import LEAD_S, WEB, Load, web

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kubeproxy-reports/leases"
ROLLED_S = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one rollout."""

    report: Report
    seconds: float


@dataclass(slots=True)
class Rollouts:
    """A cluster with a Deployment behind a Service. One rollout after the other."""

    network: Network
    cluster: RealCluster
    directory: Path
    programs: Path
    replicas: int
    turn: int = 0
    manager: subprocess.Popen[Any] | None = None
    """Our controllers."""

    def start_controllers(self) -> None:
        """Start our controllers, as a new process."""
        with (self.directory / "controllers.log").open("ab") as log:
            admin = self.directory / "admin.conf"
            command = [KUBEPROXY, "controller-manager", f"--kubeconfig={admin}", "--port=0", "--secure-port=0", "-v=4"]
            self.manager = self.network.client.popen(command, stdout=log, stderr=log)

    def kill_controllers(self) -> None:
        """Kill our controllers in the middle of whatever they do."""
        if self.manager is not None:
            self.manager.kill()
            self.manager.wait()

    def deploy(self, annotations: Mapping[str, str]) -> None:
        """Create the Deployment, or change its annotations; wait until it is rolled out."""
        self.cluster.put({"kind": "Node", "metadata": {"name": NODE}}, web())
        item = deployment(self.replicas, annotations)
        try:
            self.cluster.ask("POST", DEPLOYMENTS, item)
        except Refused as refused:
            if refused.status != 409:
                raise
            self._patch({"metadata": {"annotations": dict(annotations)}})
        self.await_rolled_out()

    def await_rolled_out(self) -> None:
        """Wait until the Deployment is complete."""
        until(lambda: is_complete(self.deployment()), "the rollout is complete", within_s=ROLLED_S)

    def deployment(self) -> Object:
        """The Deployment as it is."""
        return dict(self.cluster.ask("GET", f"{DEPLOYMENTS}/web"))

    def leases(self) -> list[Object]:
        """The Leases by which nodes report."""
        found = self.cluster.ask("GET", f"{LEASES}?labelSelector={quote(REPORT_SELECTOR)}")
        return list(found["items"])

    def events(self) -> list[tuple[str, str]]:
        """Reason and message of the Deployment's Events."""
        found = self.cluster.events()
        return [(each["reason"], each["message"]) for each in found if each["involvedObject"]["kind"] == "Deployment"]

    def roll(self, load: Load, meanwhile: Callable[[], None] = lambda: None, *, gates: Sequence[str] = ()) -> Outcome:
        """Roll the Deployment under traffic, to pods with these readiness gates. `meanwhile` is called when the rollout
        has begun."""
        self.turn += 1
        with load.on(self.network.client) as crowd:
            time.sleep(LEAD_S)
            began = time.monotonic()
            pod = {"readinessGates": [{"conditionType": each} for each in gates]}
            template = {"metadata": {"annotations": {"turn": str(self.turn)}}, "spec": pod}
            self._patch({"spec": {"template": template}})
            until(lambda: not is_complete(self.deployment()), "the rollout has begun")
            meanwhile()
            self.await_rolled_out()
            seconds = time.monotonic() - began
            time.sleep(LEAD_S)
        return Outcome(crowd.report, seconds)

    @contextmanager
    def ours(self, *options: str) -> Iterator[Daemon]:
        """kubeproxy on the node; without options of its own it reports."""
        token, config = self.directory / "token", self.directory / "kubeconfig"
        token.write_text(self.cluster.token())
        config.write_text(self.cluster.kubeconfig(token_file=token))
        kernel_state.reset_rules(self.network.node)
        with self.another(*options) as daemon:
            until(self.leases, "the node reports")
            until(self._answered, "the Service is served")
            yield daemon
        kernel_state.reset_rules(self.network.node)
        for lease in self.leases():
            self.cluster.ask("DELETE", f"{LEASES}/{lease['metadata']['name']}")

    def another(self, *options: str) -> Daemon:
        """An instance on the node; it takes over from one that is there."""
        every = [
            QUICK,
            f"--kubeconfig={self.directory / 'kubeconfig'}",
            f"--hostname-override={NODE}",
            "--shutdown-grace=30s",
            *(options or ("--drain-reports",)),
        ]
        return Daemon(self.network.node, manifests=None, netfilter="nftables", options=every)

    def kube_proxy(self) -> KubeProxy:
        """kube-proxy on the node."""
        return KubeProxy(
            self.network.node,
            program=self.programs / "kube-proxy",
            kubeconfig=self.directory / "admin.conf",
            node_address=NODE_V4,
            address=WEB[0],
        )

    def _answered(self) -> bool:
        try:
            return bool(ask(self.network.client, WEB, timeout_s=1.0))
        except OSError:
            return False

    def _patch(self, body: Object) -> None:
        self.cluster.ask("PATCH", f"{DEPLOYMENTS}/web", body, content_type="application/strategic-merge-patch+json")


@contextmanager
def rollouts(directory: Path, programs: Path, *, replicas: int = 6) -> Iterator[Rollouts]:
    """Start everything but the proxy."""
    with ExitStack() as stack:
        network = stack.enter_context(make_network(pods=2 * replicas + 4))
        cluster = stack.enter_context(RealCluster(network.client, directory / "cluster", programs))
        cluster.put(*rights())
        admin = directory / "admin.conf"
        admin.write_text(cluster.kubeconfig(token="masters"))
        it = Rollouts(network, cluster, directory, programs, replicas)
        it.start_controllers()
        stack.callback(it.kill_controllers)
        stack.enter_context(Kubelet(cluster, network))
        yield it


def is_complete(item: Object) -> bool:
    """As `kubectl rollout status` sees it."""
    status, replicas = item.get("status", {}), item["spec"]["replicas"]
    counts = {status.get(name, 0) for name in ("updatedReplicas", "replicas", "availableReplicas")}
    return bool(status.get("observedGeneration", 0) >= item["metadata"]["generation"] and counts == {replicas})


def deployment(replicas: int, annotations: Mapping[str, str]) -> Object:
    """Surges by two pods, and always keeps `replicas` of them."""
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"terminationGracePeriodSeconds": 30, "containers": [{"name": "web", "image": "web"}]},
    }
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}},
        "template": template,
    }
    metadata = {"name": "web", "namespace": "default", "annotations": dict(annotations)}
    return {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": metadata, "spec": spec}


def rights() -> list[Object]:
    """What deploy/components/drain-reports gives the daemon, for the ServiceAccount of these tests."""
    namespace, role, binding = (
        read(COMPONENTS / "drain-reports" / f"{name}.yaml") for name in ("namespace", "role", "role-binding")
    )
    binding["subjects"] = [{"kind": "ServiceAccount", "namespace": ACCOUNT[0], "name": ACCOUNT[1]}]
    return [namespace, role, binding]
