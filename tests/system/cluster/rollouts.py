"""What the end of pods loses on real kubelets, under kube-controller-manager, with and without a preStop hook, and with
a readiness gate beside the hook.

`KUBERNETES_BINARIES=… python -m tests.system.cluster.rollouts [--times N] [--way WAY]… [MANNER…]`, as root, makes a
cluster of two nodes, and prints a line for each of `MANNERS` in each of `WAYS`. With `--directory` it uses the cluster
that `python -m tests.system.cluster up` keeps there, on which no Service proxy is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubeproxy.controllers.readiness.gates import GATE
from kubeproxy.model.drain_report import REPORT_NAMESPACE
from tests.support.lab import Host
from tests.system.cluster import controllers, service_proxies
from tests.system.cluster.cluster import Cluster, joined
from tests.system.cluster.layout import API_PORT, PODS
from tests.system.cluster.node import ROOT
from tests.system.cluster.programs import found
from tests.system.cluster.startup import running
from tests.system.cluster.web import server
from tests.system.e2e.stage import until
from tests.system.e2e.steady_clients import Crowd

VIP: Final = "10.96.7.7"
REPLICAS: Final = 6
NODE_PORT: Final = 30777
RATE, LONG, LASTING_S = 100, 17, (2.0, 6.0)
"""From each of three places: new connections a second, and long ones at once, which end by themselves after so many
seconds."""
LEAD_S: Final = 3.0
FAULT_AFTER_S: Final = 5.0
AWAY_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class Manner:
    """How pods end, and which proxy serves."""

    pre_stop: Mapping[str, Any] | None = None
    proxy: str = "userspace"
    gate: bool = False
    """Whether new pods wait at the readiness gate, and not for a guessed time."""


HOOK: Final = {"httpGet": {"port": 10258, "path": "/drain?timeout=25s"}}
MANNERS: Final = {
    "hook": Manner(HOOK),
    "hook-auto": Manner(HOOK, "auto"),
    "gate": Manner(HOOK, gate=True),
    "gate-auto": Manner(HOOK, "auto", gate=True),
    "none": Manner(),
    "none-auto": Manner(None, "auto"),
    "sleep-5": Manner({"sleep": {"seconds": 5}}),
    "sleep-15": Manner({"sleep": {"seconds": 15}}),
    "sleep-30": Manner({"sleep": {"seconds": 30}}),
    "kube-proxy": Manner(None, "kube-proxy"),
    "kube-proxy-sleep-5": Manner({"sleep": {"seconds": 5}}, "kube-proxy"),
}


def deployment(image: str, manner: Manner, revision: str) -> dict[str, Any]:
    """Six pods, two more during a rollout."""
    container, volume = server(image, 0)
    container["env"].append({"name": "REVISION", "value": revision})
    if manner.pre_stop is not None:
        container["lifecycle"] = {"preStop": dict(manner.pre_stop)}
    pod = {
        "containers": [container],
        "volumes": [volume],
        "terminationGracePeriodSeconds": 45,
        "readinessGates": [{"conditionType": GATE}] if manner.gate else [],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": REPLICAS,
            "minReadySeconds": 0 if manner.gate else 2,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod},
        },
    }


SERVICE: Final = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {
        "type": "NodePort",
        "clusterIP": VIP,
        "selector": {"app": "web"},
        "ports": [{"port": 80, "targetPort": 8080, "nodePort": NODE_PORT}],
    },
}


CLIENT: Final = "client"
OURS: Final = "bin/kubeproxy run"
"""The control process of a node, by its command line."""


def client(image: str, node: str) -> dict[str, Any]:
    """A pod whose network clients use."""
    container = {"name": "client", "image": image, "imagePullPolicy": "Never", "command": ["sleep", "1000000"]}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": CLIENT}, "spec": spec}


@contextlib.contextmanager
def ours(cluster: Cluster, data_path: str, *flags: str) -> Iterator[None]:
    """Run this tree's daemon on every node, as a process in the node's namespaces."""
    with contextlib.ExitStack() as stack:
        for node in cluster.nodes:
            arguments = (
                *("run", f"--kubeconfig={cluster.pki.kubeconfig('admin')}", f"--hostname-override={node.name}"),
                *(f"--cluster-cidr={PODS}", f"--data-path={data_path}", "--workers=1", "--state-dir=none"),
                *("--conntrack-max-per-core=0", "--cleanup-on-exit", *flags),
            )
            host = stack.enter_context(contextlib.closing(Host.at(f"/proc/{node.pid}/ns/net", node.name)))
            with (cluster.directory / f"kubeproxy-{node.name}.log").open("ab") as log:
                process = host.popen(node.enter(str(ROOT / ".venv/bin/kubeproxy"), *arguments), stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(node.run, "pkill", "-f", OURS)  # nsenter passes no signal on
        yield


@contextlib.contextmanager
def proxied(cluster: Cluster, manner: Manner) -> Iterator[None]:
    """Run the proxies of a manner, and the controller of its gate."""
    with contextlib.ExitStack() as stack:
        if manner.proxy == "kube-proxy":
            stack.enter_context(service_proxies.kube_proxy(cluster))
        elif manner.gate:
            stack.enter_context(controllers.readiness(cluster))
            stack.enter_context(ours(cluster, manner.proxy, "--drain-reports"))
            count = len(cluster.nodes)
            until(lambda: len(cluster.get("leases", "-n", REPORT_NAMESPACE)["items"]) >= count, "all nodes report")
        else:
            stack.enter_context(ours(cluster, manner.proxy))
        yield


Way = Callable[[Cluster, Manner, str], None]


def rollout(cluster: Cluster, manner: Manner, image: str) -> None:
    """Roll the Deployment out."""
    cluster.apply(deployment(image, manner, "2"))
    _settled(cluster, REPLICAS)


def drain(cluster: Cluster, manner: Manner, image: str) -> None:
    """Evict the pods of the node without clients; they come back on the other one."""
    name = cluster.nodes[1].name
    cluster.kubectl("drain", name, "--ignore-daemonsets", "--timeout=120s")
    _settled(cluster, REPLICAS)
    cluster.kubectl("uncordon", name)


def scale_down(cluster: Cluster, manner: Manner, image: str) -> None:
    """Scale down to two pods, by the API that autoscalers use."""
    cluster.kubectl("scale", "deployment/web", "--replicas=2")
    _settled(cluster, 2)


def _proxies_restart(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.run("pkill", "-USR2", "-f", OURS)


def _server_is_away(cluster: Cluster) -> None:
    rule = f"add rule inet away input iifname != lo tcp dport {API_PORT} drop"
    cluster.switch.run(
        ["nft", f"add table inet away; add chain inet away input {{ type filter hook input priority 0; }}; {rule}"]
    )
    time.sleep(AWAY_S)
    cluster.switch.run(["nft", "delete table inet away"])


def _node_is_away(cluster: Cluster) -> None:
    name = cluster.nodes[1].name
    cluster.switch.ip(f"link set {name} down")
    time.sleep(AWAY_S)
    cluster.switch.ip(f"link set {name} up")


def _amid(fault: Callable[[Cluster], None]) -> Way:
    """Return a rollout in the middle of which a fault happens."""

    def later(cluster: Cluster) -> None:
        time.sleep(FAULT_AFTER_S)
        fault(cluster)

    def way(cluster: Cluster, manner: Manner, image: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            happening = pool.submit(later, cluster)
            rollout(cluster, manner, image)
            happening.result()

    return way


WAYS: Final[Mapping[str, Way]] = {
    "rollout": rollout,
    "drain": drain,
    "scale-down": scale_down,
    "proxies-restart": _amid(_proxies_restart),
    "api-server-away": _amid(_server_is_away),
    "node-away": _amid(_node_is_away),
}
"""The last three are rollouts. In the middle the proxies of all nodes execute themselves anew; or for `AWAY_S` no node
reaches the API server, or no other host reaches the node without clients."""


def _settled(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=240s")
    until(lambda: len(cluster.get("pods", "-l", "app=web")["items"]) == replicas, "old pods end", within_s=120)


def measured(cluster: Cluster, manner: Manner, image: str, way: Way) -> str:
    """Let pods end in a way once, under traffic from a pod, its node and outside; the figures."""
    cluster.apply(SERVICE, deployment(image, manner, "1"))
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=240s")
    near = cluster.nodes[0]
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(contextlib.closing(Host.at(f"/proc/{near.pid}/ns/net", "node")))
        uid = cluster.get("pod", CLIENT)["metadata"]["uid"]
        pod = stack.enter_context(contextlib.closing(Host.at(near.pod_network(uid), "pod")))
        until(lambda: _answers(node), "the Service answers", within_s=60)
        service, node_port = (VIP, 80), (near.place.address, NODE_PORT)
        places = ((pod, service), (node, service), (cluster.outside, node_port))
        crowds = [
            stack.enter_context(
                Crowd(host, address, rate=RATE, long=LONG, name=r"web-[a-z0-9]+-[a-z0-9]{5}", lasting_s=LASTING_S)
            )
            for host, address in places
        ]
        time.sleep(LEAD_S)
        began = time.monotonic()
        way(cluster, manner, image)
        took_s = time.monotonic() - began
        time.sleep(LEAD_S)
    reports = [crowd.report for crowd in crowds]
    pods = cluster.get("pods", "-l", "app=web")["items"]
    gates = Counter(it["reason"] for pod in pods for it in pod["status"]["conditions"] if it["type"] == GATE)
    hooks = [each["message"] for each in cluster.get("events")["items"] if each["reason"] == "FailedPreStopHook"]
    cluster.kubectl("delete", "deployment/web", "--wait", "--cascade=foreground", "--timeout=120s")
    cluster.kubectl("delete", "events", "--all")
    for report in reports:
        for failure in (*report.failures, *report.long_broken):
            print(f"  {failure}; the event began after {began - report.began:.3f} s", file=sys.stderr, flush=True)
    return (
        f"{sum(it.answered for it in reports)} answered, {sum(len(it.failures) for it in reports)} lost;"
        f" longer ones: {sum(it.long_ended for it in reports)} ended, {sum(len(it.long_broken) for it in reports)} cut;"
        f" slowest {max(it.slowest_s for it in reports) * 1000:.0f} ms; took {took_s:.0f} s;"
        f" hooks failed: {len(hooks)}; gates: {dict(gates) or 'none'}; load average {os.getloadavg()[0]:.0f}"
    )


def _answers(client: Host) -> bool:
    try:
        with client.connect((VIP, 80)) as sock:
            sock.sendall(b"name\n")
            return sock.recv(100).startswith(b"web-")
    except OSError:
        return False


def main(words: list[str]) -> None:
    """Let pods end in each manner and way, so many times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("manners", nargs="*", metavar="MANNER", help=f"of {', '.join(MANNERS)}")
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="of a running cluster (default: a new one)")
    options = parser.parse_args(words)
    with contextlib.ExitStack() as stack:
        if options.directory is not None:
            cluster = joined(options.directory.absolute(), found())
        else:
            cluster = stack.enter_context(running(Path(tempfile.mkdtemp(prefix="rollouts-")), found(), 2))
        print(f"the cluster is in {cluster.directory}", flush=True)
        image = next(
            name
            for it in cluster.get("node", cluster.nodes[0].name)["status"]["images"]
            for name in it.get("names") or ()  # An image without names has lost them to another one.
            if "busybox" in name and "@" not in name
        )
        cluster.apply(client(image, cluster.nodes[0].name))
        cluster.kubectl("wait", "--for=condition=Ready", f"pod/{CLIENT}", "--timeout=120s")
        for name in options.manners or MANNERS:
            manner = MANNERS[name]
            with proxied(cluster, manner):
                for way in options.way or ("rollout", "drain", "scale-down"):
                    for _ in range(options.times):
                        print(f"{name}, {way}: {measured(cluster, manner, image, WAYS[way])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
