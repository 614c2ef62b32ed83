"""Makes a cluster: the network, the control plane, the nodes, the DNS server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.system.cluster import control_plane, images
from tests.system.cluster.cluster import START_S, Cluster, Object
from tests.system.cluster.kept import Kept
from tests.system.cluster.layout import DNS_SERVICE, SWITCH, places
from tests.system.cluster.network import Wires
from tests.system.cluster.node import ROOT, Node, boot, remove_groups
from tests.system.cluster.programs import Programs
from tests.system.e2e.stage import until


@contextlib.contextmanager
def running(directory: Path, programs: Programs, count: int = 3) -> Iterator[Cluster]:
    """Make a cluster with its state in `directory`; it ends with this block, and with this process."""
    (directory / "run").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        wires = Wires(places(count))
        stack.callback(wires.close)
        cluster = Cluster(directory, programs, count, wires.switch, wires.outside)
        cluster.pki.make(places(count))
        maker = _Maker(cluster, wires, stack)
        maker.start_control_plane()
        for node in cluster.nodes:
            maker.start_node(node)
        _register(cluster)
        made = {"process": os.getpid(), "switch": wires.switch.fd, "outside": wires.outside.fd, "nodes": count}
        description = directory / "cluster.json"
        description.write_text(json.dumps(made))
        stack.callback(description.unlink)
        yield cluster


class _Maker:
    """Starts the programs of a cluster, each of which `stack` ends."""

    def __init__(self, cluster: Cluster, wires: Wires, stack: contextlib.ExitStack) -> None:
        self._cluster = cluster
        self._wires = wires
        self._stack = stack

    def start_control_plane(self) -> None:
        """Start it in the order in which its parts need each other."""
        cluster, pki, find = self._cluster, self._cluster.pki, self._cluster.programs
        self._keep("etcd", lambda: [find["etcd"], *control_plane.etcd(cluster.directory / "etcd")])
        self._keep("kube-apiserver", lambda: [find["kube-apiserver"], *control_plane.api_server(pki)])
        until(lambda: cluster.kubectl("get", "--raw", "/readyz", check=False) == "ok", "the API server", within_s=120)
        self._keep("kube-scheduler", lambda: [find["kube-scheduler"], *control_plane.scheduler(pki)])
        cluster.without_controllers.write_text("[]")

        def controllers() -> Sequence[str]:
            without = json.loads(cluster.without_controllers.read_text())
            return [find["kube-controller-manager"], *control_plane.controller_manager(pki, without)]

        self._keep("kube-controller-manager", controllers)
        dns = [sys.executable, "-m", "tests.system.cluster.dns", SWITCH, pki.kubeconfig("admin")]
        self._keep("dns", lambda: dns)

    def start_node(self, node: Node) -> None:
        """Start a node, which is started again, without any network state, when it ends."""
        cluster = self._cluster
        pause = images.name_of("pause", cluster.programs)

        def start() -> subprocess.Popen[Any]:
            return boot(node, self._wires.new_node(node.place), cluster.programs, cluster.pki, pause)

        self._stack.callback(remove_groups, node)
        self._stack.callback(Kept(node.pid_file, start).close)

    def _keep(self, name: str, command: Callable[[], Sequence[str]]) -> None:
        """Keep a program running on the host of the control plane; its log is NAME.log."""
        cluster = self._cluster

        def start() -> subprocess.Popen[Any]:
            with (cluster.directory / f"{name}.log").open("ab") as log:
                return cluster.switch.popen(command(), stdout=log, stderr=log, cwd=ROOT)

        self._stack.callback(Kept(cluster.directory / f"run/{name}.pid", start).close)


def _register(cluster: Cluster) -> None:
    """Make the Service of the DNS server, and give each node its range of pods once its kubelet has made the Node."""
    cluster.apply(*_dns_objects())
    for node in cluster.nodes:
        made = partial(_has_node, cluster, node)
        until(made, f"the kubelet of {node.name} has made its Node", within_s=START_S)
        ranges = {"spec": {"podCIDR": node.place.pods, "podCIDRs": [node.place.pods]}}
        cluster.kubectl("patch", "node", node.name, "--type=merge", "-p", json.dumps(ranges))
    cluster.await_ready()


def _has_node(cluster: Cluster, node: Node) -> bool:
    return cluster.kubectl("get", "node", node.name, "-o", "name", check=False).startswith("node/")


def _dns_objects() -> tuple[Object, Object]:
    ports = [
        {"name": name, "port": 53, "protocol": protocol} for name, protocol in (("dns", "UDP"), ("dns-tcp", "TCP"))
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": DNS_SERVICE, "ports": ports},
    }
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-1",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [{"addresses": [SWITCH], "conditions": {"ready": True}}],
    }
    return service, endpoint_slice
