"""The Service that the traffic of events goes to, and the pod of its clients."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from tests.support.lab import Host
from tests.system.cluster import images, traffic
from tests.system.cluster.cluster import Cluster, Object
from tests.system.cluster.node import ROOT, Node
from tests.system.cluster.traffic import Tally, Traffic

ADDRESS: Final = "10.96.0.50"
NODE_PORT: Final = 30080
GRACE_S: Final = 5
"""How long a pod of the Service keeps serving when it has been told to end, as a pod should."""


def server(image: str, grace_s: int) -> tuple[Object, Object]:
    """A container that runs the e2e tests' backend in the root directory of this machine, and its volume. At SIGTERM it
    ends after so long."""
    command = (
        f"trap 'sleep {grace_s}; exit 0' TERM; "
        f"chroot /host sh -c 'cd {ROOT} && exec {sys.executable} -m tests.system.e2e.backend '$NAME' 0.0.0.0 8080' & "
        "wait"
    )
    container = {
        "name": "web",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        # A pod without a request gets hardly any of the processor's time beside pods that have one.
        "resources": {"requests": {"cpu": "100m"}},
    }
    return container, {"name": "host", "hostPath": {"path": "/"}}


def objects(agnhost: str, client_node: str) -> tuple[Object, ...]:
    """Four pods on any node, their Service, and a pod of clients on that node."""
    container, volume = server(agnhost, GRACE_S)
    labels = {"app": "web"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "volumes": [volume], "topologySpreadConstraints": [spread]},
            },
        },
    }
    port = {"port": 80, "targetPort": 8080, "nodePort": NODE_PORT}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"type": "NodePort", "clusterIP": ADDRESS, "selector": labels, "ports": [port]},
    }
    client = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client"},
        "spec": {
            "nodeName": client_node,
            "containers": [{"name": "client", "image": agnhost}],
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
        },
    }
    return deployment, service, client


class Web:
    """The Service on a cluster, with clients in a pod and on a node, both `near`, and outside of the cluster."""

    def __init__(self, cluster: Cluster, near: Node) -> None:
        self.cluster = cluster
        self.near = near
        cluster.kubectl("delete", "pod", "client", "--ignore-not-found", "--wait")
        cluster.apply(*objects(images.name_of("agnhost", cluster.programs), near.name))
        self.await_ready()

    def await_ready(self) -> None:
        """Wait until all pods are ready."""
        self.cluster.kubectl("rollout", "status", "deploy/web", "--timeout=120s")
        self.cluster.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=120s")

    @contextlib.contextmanager
    def traffic(self, rate: int, kept: int) -> Iterator[dict[str, Tally]]:
        """Traffic as long as the block; then the tallies by where the clients are."""
        uid = self.cluster.get("pod", "client")["metadata"]["uid"]
        tallies: dict[str, Tally] = {}
        with (
            Host.at(self.near.pod_network(uid), "client") as pod,
            Host.at(f"/proc/{self.near.pid}/ns/net", "node") as node,
        ):
            service, node_port = (ADDRESS, 80), (self.near.place.address, NODE_PORT)
            running: Mapping[str, Traffic] = {
                "pod": traffic.start(pod, service, rate=rate, kept=kept),
                "node": traffic.start(node, service, rate=rate, kept=kept),
                "outside": traffic.start(self.cluster.outside, node_port, rate=rate, kept=kept),
            }
            yield tallies
            tallies.update({place: clients.end() for place, clients in running.items()})
