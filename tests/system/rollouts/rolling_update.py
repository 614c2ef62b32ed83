"""A rolling update of six pods under traffic, in one of three manners, and what clients saw of it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.support.lab import make_network
from tests.support.lab.daemon import KUBEPROXY
from tests.support.lab.kube_proxy import KubeProxy
from tests.support.lab.node import NODE_V4
from tests.system.e2e.control_plane import CONTROLLERS, RealCluster
from tests.system.e2e.stage import QUICK, TARGET, Object, Stage, ask_often, until
from tests.system.e2e.steady_clients import Report
from tests.system.rollouts.kubelet import NODE, PODS, Kubelet
from tests.system.rollouts.traffic import LEAD_S, WEB, Load, web

REPLICAS = 6
SLOTS = 20
"""Hosts for pods: an address is not used again at once, as on a real node."""
HANG_S = 280.0


class Manner(StrEnum):
    """How clients reach the pods, and how old pods are retired."""

    KUBE_PROXY = "kube-proxy 1.20, mode iptables"
    UNDRAINED = "kubeproxy, not drained"
    DRAINED = "kubeproxy, drained"
    """The last one: servers before 1.21 keep its requests until they expire, for addresses that are used again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one update."""

    status: int
    output: str
    seconds: float
    report: Report
    drained: dict[str, tuple[float, float]]
    """By old pod: when it began to drain, and when it ended, by the monotonic clock."""


class Laboratory:
    """A node, a client in front of it, hosts for pods, and a control plane."""

    def __init__(self, stage: Stage, cluster: RealCluster, directory: Path, programs: Path) -> None:
        self.stage = stage
        self._programs = programs
        self.cluster = cluster
        self.kubeconfig = directory / "admin.conf"
        self.kubeconfig.write_text(cluster.kubeconfig(token="masters"))
        cluster.put({"kind": "Node", "metadata": {"name": NODE}}, web())

    def update(self, manner: Manner, load: Load, *, drain_timeout_s: float = 30.0) -> Outcome:
        """Run six pods, put them under traffic, replace them, and take everything down again."""
        with ExitStack() as stack:
            kubelet = stack.enter_context(Kubelet(self.cluster, self.stage.network))
            stack.callback(self._clear, kubelet)
            self.cluster.put(controller())
            if manner is Manner.KUBE_PROXY:
                stack.enter_context(
                    KubeProxy(
                        self.stage.node,
                        program=self._programs / "kube-proxy",
                        kubeconfig=self.kubeconfig,
                        node_address=NODE_V4,
                        address=WEB[0],
                    )
                )
            else:
                stack.callback(self.stage.clear)
                flags = (f"--kubeconfig={self.kubeconfig}", f"--hostname-override={NODE}", "--drain-reports=true")
                self.stage.daemon(QUICK, *flags, manifests=None)
            until(lambda: self._ready() == REPLICAS, "all pods are ready")
            until(self._all_serve, "all pods serve")
            with load.on(self.stage.client) as crowd:
                time.sleep(LEAD_S)
                began = time.monotonic()
                drain_s = drain_timeout_s if manner is Manner.DRAINED else 0
                lines = []
                for line in self._rolling_update(f"--drain-timeout={drain_s:.0f}s"):
                    lines.append((time.monotonic(), line))
                seconds = time.monotonic() - began
                time.sleep(LEAD_S)
            assert not kubelet.errors, kubelet.errors
            began_at = {line.split()[1]: at for at, line in lines if line.startswith("Draining ")}
            drained = {name: (at, kubelet.ended_at[name]) for name, at in began_at.items()}
            status = int(lines.pop()[1])
            return Outcome(status, "".join(line for _, line in lines), seconds, crowd.report, drained)

    def _rolling_update(self, *flags: str) -> Iterator[str]:
        """The lines of the command as they come; the last one is its exit status."""
        command = [KUBEPROXY, "rolling-update", "web", "--image=web:2", f"--kubeconfig={self.kubeconfig}"]
        process = self.stage.client.popen(
            [*command, "--update-period=1s", "--poll-interval=0.5s", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        limit = threading.Timer(HANG_S, process.kill)
        limit.start()
        assert process.stdout is not None
        yield from process.stdout
        yield str(process.wait(10))
        limit.cancel()

    def _pods(self) -> list[Object]:
        found: list[Object] = self.cluster.ask("GET", PODS)["items"]
        return found

    def _ready(self) -> int:
        conditions = [each for pod in self._pods() for each in pod["status"].get("conditions", ())]
        return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _all_serve(self) -> bool:
        try:
            return len(ask_often(self.stage.client, WEB, 8 * REPLICAS, timeout_s=2.0)) == REPLICAS
        except OSError:
            return False

    def _clear(self, kubelet: Kubelet) -> None:
        path = "/api/v1/namespaces/default/replicationcontrollers"
        for item in self.cluster.ask("GET", path)["items"]:
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
            self.cluster.ask("DELETE", f"{path}/{item['metadata']['name']}", options)
        until(lambda: not self._pods(), "all pods are gone")


@contextmanager
def laboratory(directory: Path, programs: Path) -> Iterator[Laboratory]:
    """Everything but pods and a proxy."""
    manifests = directory / "manifests"
    manifests.mkdir()
    with make_network(pods=SLOTS) as network:
        state = directory / "cluster"
        controllers = f"{CONTROLLERS},replicationcontroller"
        with RealCluster(network.client, state, programs, controllers=controllers) as cluster:
            yield Laboratory(Stage(network, manifests), cluster, directory, programs)


def controller() -> Object:
    """Six pods that any process can play."""
    container: dict[str, Any] = {"name": "web", "image": "web:1", "ports": [{"containerPort": TARGET}]}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": REPLICAS, "selector": {"app": "web"}, "template": template},
    }
