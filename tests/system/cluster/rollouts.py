"""What a rolling update loses on real kubelets, under kube-controller-manager, with and without a preStop hook.

`KUBERNETES_BINARIES=… python -m tests.system.cluster.rollouts [NAME…]`, as root, makes a cluster of two nodes, and
prints a line for each manner of `MANNERS`.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.lab import Host
from tests.system.cluster import service_proxies
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.layout import PODS
from tests.system.cluster.node import ROOT
from tests.system.cluster.programs import found
from tests.system.cluster.startup import running
from tests.system.e2e.stage import until
from tests.system.e2e.steady_clients import Crowd

VIP: Final = "10.96.7.7"
REPLICAS: Final = 6
RATE, LONG, LASTING_S = 100, 30, (2.0, 6.0)
"""New connections a second, and long ones at once, which end by themselves after so many seconds."""
LEAD_S: Final = 3.0
# The pods' program is the e2e tests' backend, run in the root directory of this machine. It ends at SIGTERM.
SERVE: Final = (
    "trap 'exit 0' TERM; "
    f"chroot /host sh -c 'cd {ROOT} && exec {sys.executable} -m tests.system.e2e.backend '$NAME' 0.0.0.0 8080' & wait"
)


@dataclass(frozen=True, slots=True)
class Manner:
    """How pods end, and which proxy serves."""

    pre_stop: Mapping[str, Any] | None = None
    proxy: str = "userspace"


HOOK: Final = {"httpGet": {"port": 10258, "path": "/drain?timeout=25s"}}
MANNERS: Final = {
    "hook": Manner(HOOK),
    "hook-kernel": Manner(HOOK, "kernel"),
    "none": Manner(),
    "sleep-5": Manner({"sleep": {"seconds": 5}}),
    "sleep-15": Manner({"sleep": {"seconds": 15}}),
    "kube-proxy": Manner(None, "kube-proxy"),
    "kube-proxy-sleep-5": Manner({"sleep": {"seconds": 5}}, "kube-proxy"),
}


def deployment(image: str, manner: Manner, revision: str) -> dict[str, Any]:
    """Six pods, two more during a rollout."""
    container: dict[str, Any] = {
        "name": "app",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", SERVE],
        "env": [
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "REVISION", "value": revision},
        ],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    if manner.pre_stop is not None:
        container["lifecycle"] = {"preStop": dict(manner.pre_stop)}
    pod = {"containers": [container], "volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": REPLICAS,
            "minReadySeconds": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod},
        },
    }


SERVICE: Final = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"clusterIP": VIP, "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
}


@contextlib.contextmanager
def ours(cluster: Cluster, data_path: str) -> Iterator[None]:
    """Run this tree's daemon on every node, as a process in the node's namespaces."""
    with contextlib.ExitStack() as stack:
        for node in cluster.nodes:
            arguments = (
                *("run", f"--kubeconfig={cluster.pki.kubeconfig('admin')}", f"--hostname-override={node.name}"),
                *(f"--cluster-cidr={PODS}", f"--data-path={data_path}", "--workers=1", "--state-dir=none"),
                *("--conntrack-max-per-core=0", "--cleanup-on-exit"),
            )
            host = stack.enter_context(contextlib.closing(Host.at(f"/proc/{node.pid}/ns/net", node.name)))
            with (cluster.directory / f"kubeproxy-{node.name}.log").open("ab") as log:
                process = host.popen(node.enter(str(ROOT / ".venv/bin/kubeproxy"), *arguments), stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        yield


def roll(cluster: Cluster, manner: Manner, image: str) -> str:
    """Roll the Deployment out once under traffic from a node; the figures."""
    cluster.apply(SERVICE, deployment(image, manner, "1"))
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=240s")
    with contextlib.closing(Host.at(f"/proc/{cluster.nodes[0].pid}/ns/net", "client")) as client:
        until(lambda: _answers(client), "the Service answers", within_s=60)
        crowd = Crowd(client, (VIP, 80), rate=RATE, long=LONG, name=r"web-[a-z0-9]+-[a-z0-9]{5}", lasting_s=LASTING_S)
        with crowd:
            time.sleep(LEAD_S)
            began = time.monotonic()
            cluster.apply(deployment(image, manner, "2"))
            cluster.kubectl("rollout", "status", "deployment/web", "--timeout=240s")
            until(lambda: len(cluster.get("pods", "-l", "app=web")["items"]) == REPLICAS, "old pods end", within_s=120)
            took_s = time.monotonic() - began
            time.sleep(LEAD_S)
    report = crowd.report
    failed = [each["message"] for each in cluster.get("events")["items"] if each["reason"] == "FailedPreStopHook"]
    cluster.kubectl("delete", "deployment/web", "--wait", "--cascade=foreground", "--timeout=120s")
    cluster.kubectl("delete", "events", "--all")
    return (
        f"{report.answered} answered, {len(report.failures)} lost; longer ones: {report.long_ended} ended,"
        f" {len(report.long_broken)} cut; slowest {report.slowest_s * 1000:.0f} ms; took {took_s:.0f} s;"
        f" hooks failed: {len(failed)}"
    )


def _answers(client: Host) -> bool:
    try:
        with client.connect((VIP, 80)) as sock:
            sock.sendall(b"name\n")
            return sock.recv(100).startswith(b"web-")
    except OSError:
        return False


def main(names: list[str]) -> None:
    """Roll out in each manner once."""
    with running(Path(tempfile.mkdtemp(prefix="rollouts-")), found(), 2) as cluster:
        print(f"the cluster is in {cluster.directory}", flush=True)
        image = next(
            name
            for it in cluster.get("node", cluster.nodes[0].name)["status"]["images"]
            for name in it["names"]
            if "busybox" in name and "@" not in name
        )
        for name in names or MANNERS:
            manner = MANNERS[name]
            proxy = service_proxies.kube_proxy(cluster) if manner.proxy == "kube-proxy" else ours(cluster, manner.proxy)
            with proxy:
                print(f"{name}: {roll(cluster, manner, image)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
