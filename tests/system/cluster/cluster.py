"""The whole cluster without a Service proxy: control plane, nodes, DNS; and how to join one that runs already."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.lab import Host
from tests.system.cluster import control_plane, images
from tests.system.cluster.certificates import Authority
from tests.system.cluster.kept import Kept
from tests.system.cluster.layout import DNS_SERVICE, SWITCH, Place, places
from tests.system.cluster.network import Wires
from tests.system.cluster.node import ROOT, Node, boot, remove_groups
from tests.system.cluster.programs import Programs
from tests.system.e2e.stage import until

Object = dict[str, Any]
START_S: Final = 300.0
"""How long a node may take until it is ready; most of it is the import of images."""


class Cluster:
    """A running cluster, in this process or another one: what tests do with it."""

    def __init__(self, directory: Path, programs: Programs, count: int, switch: Host, outside: Host) -> None:
        self.directory = directory
        self.programs = programs
        self.switch = switch
        self.outside = outside
        self.pki = Authority(directory / "pki")
        self.nodes = [Node(place, directory) for place in places(count)]

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True, within_s: float = 300) -> str:
        """Run kubectl as administrator and return its output. AssertionError, with that output, if it fails."""
        command = [self.programs["kubectl"], "--kubeconfig", self.pki.kubeconfig("admin"), *arguments]
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = self.switch.popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = process.communicate(input, timeout=within_s)
        assert not check or process.returncode == 0, f"kubectl {' '.join(arguments)}: {output}"
        return str(output)

    def get(self, *arguments: str) -> Any:
        """What `kubectl get` returns, decoded."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: Object) -> None:
        """Create or change objects."""
        self.kubectl("apply", "-f", "-", input="\n---\n".join(map(json.dumps, objects)))

    def restart_controllers(self, without: Sequence[str] = ()) -> None:
        """Restart kube-controller-manager with all controllers but these."""
        (self.directory / "run/without.json").write_text(json.dumps(list(without)))
        os.kill(int((self.directory / "run/kube-controller-manager.pid").read_text()), signal.SIGTERM)

    def load_image(self, archive: Path) -> None:
        """Import an archive of images into every node, where it outlives reboots."""
        for node in self.nodes:
            node.run(self.programs["ctr"], "-n", "k8s.io", "images", "import", str(archive.absolute()))

    def await_ready(self) -> None:
        """Wait until all nodes are ready."""
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={START_S:.0f}s", within_s=START_S)


@contextlib.contextmanager
def running(directory: Path, programs: Programs, count: int = 2) -> Iterator[Cluster]:
    """Make a cluster with its state in `directory`; it ends with this block, and with this process."""
    (directory / "run").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        wires = Wires(places(count))
        stack.callback(wires.close)
        cluster = Cluster(directory, programs, count, wires.switch, wires.outside)
        cluster.pki.make(places(count))
        _start_control_plane(cluster, stack)
        for node in cluster.nodes:
            _keep_node(node, wires, cluster, stack)
        _register(cluster)
        switches = {"process": os.getpid(), "switch": wires.switch.fd, "outside": wires.outside.fd, "nodes": count}
        description = directory / "cluster.json"
        description.write_text(json.dumps(switches))
        stack.callback(description.unlink)
        yield cluster


def joined(directory: Path, programs: Programs) -> Cluster:
    """A cluster that another process has made in `directory`."""
    made = json.loads((directory / "cluster.json").read_text())
    switch, outside = (Host.at(f"/proc/{made['process']}/fd/{made[name]}", name) for name in ("switch", "outside"))
    return Cluster(directory, programs, made["nodes"], switch, outside)


def _start_control_plane(cluster: Cluster, stack: contextlib.ExitStack) -> None:
    pki = cluster.pki
    _keep(cluster, stack, "etcd", control_plane.etcd(cluster.directory / "etcd"))
    _keep(cluster, stack, "kube-apiserver", control_plane.api_server(pki))
    until(lambda: cluster.kubectl("get", "--raw", "/readyz", check=False) == "ok", "the API server", within_s=120)
    _keep(cluster, stack, "kube-scheduler", control_plane.scheduler(pki))
    without = cluster.directory / "run/without.json"
    without.write_text("[]")

    def start_controllers() -> subprocess.Popen[Any]:
        arguments = control_plane.controller_manager(pki, json.loads(without.read_text()))
        return _popen(cluster, "kube-controller-manager", arguments)

    stack.callback(Kept(cluster.directory / "run/kube-controller-manager.pid", start_controllers).close)
    dns = [sys.executable, "-m", "tests.system.cluster.dns", SWITCH, pki.kubeconfig("admin")]
    stack.callback(Kept(cluster.directory / "run/dns.pid", lambda: _logged(cluster, "dns", dns)).close)


def _keep(cluster: Cluster, stack: contextlib.ExitStack, name: str, arguments: Sequence[str]) -> None:
    kept = Kept(cluster.directory / f"run/{name}.pid", lambda: _popen(cluster, name, arguments))
    stack.callback(kept.close)


def _popen(cluster: Cluster, name: str, arguments: Sequence[str]) -> subprocess.Popen[Any]:
    return _logged(cluster, name, [cluster.programs[name], *arguments])


def _logged(cluster: Cluster, name: str, command: Sequence[str]) -> subprocess.Popen[Any]:
    with (cluster.directory / f"{name}.log").open("ab") as log:
        return cluster.switch.popen(command, stdout=log, stderr=log, cwd=ROOT)


def _keep_node(node: Node, wires: Wires, cluster: Cluster, stack: contextlib.ExitStack) -> None:
    pause = images.name_of("pause", cluster.programs)
    stack.callback(remove_groups, node)

    def start() -> subprocess.Popen[Any]:
        return boot(node, wires.new_node(node.place), cluster.programs, cluster.pki, pause)

    stack.callback(Kept(node.pid_file, start).close)


def _register(cluster: Cluster) -> None:
    """Make the Service of the DNS server, and give each node its range of pods once the kubelet has made the Node."""
    cluster.apply(*_dns_objects())
    for node in cluster.nodes:
        _await_node(cluster, node.place)
        ranges = {"spec": {"podCIDR": node.place.pods, "podCIDRs": [node.place.pods]}}
        cluster.kubectl("patch", "node", node.name, "--type=merge", "-p", json.dumps(ranges))
    cluster.await_ready()


def _await_node(cluster: Cluster, place: Place) -> None:
    seen = until(
        lambda: cluster.kubectl("get", "node", place.name, "-o", "name", check=False).startswith("node/"),
        f"the kubelet of {place.name} has made its Node",
        within_s=START_S,
    )
    assert seen


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
