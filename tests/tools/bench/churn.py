"""Whether a client notices that endpoints come, go, die, drain and change their weight, whatever the scheduler.

    python -m tests.tools.bench.churn [--seconds N] [--seed N] [--paths userspace,kernel]

as root. 300 new connections per second to one Service with four pods; one of them is always there. Of the others one
changes every 0.3 s: it comes or goes, its port refuses or answers again, it terminates and still serves, or it has
another weight. The Service has a slow start of 3 s. Each scheduler in turn, on each data path, by an own daemon.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from kubeproxy.model import Scheduler
from tests.support.lab import Daemon, Network, make_network, write_manifest
from tests.tools.bench import scheduled_traffic
from tests.tools.bench.stage import wait_for

PODS, PORT, PER_S, PAUSE_S = 4, 8090, 300, 0.3
SERVICE = "10.96.0.10"
REFUSE = (
    "add table ip dead; add chain ip dead in { type filter hook input priority 0; };"
    f" add rule ip dead in tcp dport {PORT} tcp flags & (syn | ack) == syn reject with tcp reset"
)


class Pods:
    """What the pods are at present."""

    def __init__(self, network: Network, rng: random.Random) -> None:
        self._network, self._rng = network, rng
        self._state = [{"there": True, "draining": False, "weight": 1, "dead": False} for _ in range(PODS)]

    def change(self) -> None:
        """Change one of the pods but the first."""
        number = self._rng.randrange(1, PODS)
        pod, kind = self._state[number], self._rng.choice(("there", "draining", "dead", "weight"))
        pod[kind] = self._rng.randint(1, 5) if kind == "weight" else not pod[kind]
        if kind == "dead":
            self._network.pods[number].run(["nft", REFUSE if pod["dead"] else "delete table ip dead"])

    def documents(self, scheduler: Scheduler) -> str:
        """Return the Service and an EndpointSlice for each pod."""
        notes = {"kubeproxy/scheduler": str(scheduler), "kubeproxy/slow-start": "3s"}
        objects: list[dict[str, Any]] = [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "web", "namespace": "default", "annotations": notes},
                "spec": {"clusterIP": SERVICE, "ports": [{"port": PORT}]},
            }
        ]
        for number, pod in enumerate(self._state):
            ready = {"ready": not pod["draining"], "serving": True, "terminating": pod["draining"]}
            endpoint = {"addresses": [Network.pod_v4(number)], "conditions": ready}
            objects.append(
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        "name": f"web-{number}",
                        "namespace": "default",
                        "labels": {"kubernetes.io/service-name": "web"},
                        "annotations": {"kubeproxy/weight": str(pod["weight"])},
                    },
                    "addressType": "IPv4",
                    "ports": [{"name": "", "port": PORT}],
                    "endpoints": [endpoint] if pod["there"] else [],
                }
            )
        return yaml.safe_dump_all(objects)


@contextmanager
def daemon(network: Network, path: str, manifests: Path) -> Iterator[Daemon]:
    """A daemon with two workers."""
    options = ["--workers", "2", "--data-path", path, "--shutdown-grace", "100ms"]
    with Daemon(network.node, manifests=manifests, netfilter="nftables", options=options, ready_within_s=60.0) as made:
        yield made


def run(path: str, scheduler: Scheduler, *, seconds: float, seed: int) -> str:
    """Return a line: how many connections, how many failed, the waits, and how many changes there were."""
    program = [sys.executable, "-S", "-E", scheduled_traffic.__file__]
    with make_network(pods=PODS) as network, tempfile.TemporaryDirectory() as directory:
        pods, manifest = Pods(network, random.Random(seed)), Path(directory) / "web.yaml"
        for number, pod in enumerate(network.pods):
            pod.popen([*program, "serve", str(PORT), f"{Network.pod_v4(number)}=0"], stdout=subprocess.DEVNULL)
            wait_for(pod, (Network.pod_v4(number), PORT))
        network.client.ip("route replace local 172.20.0.0/16 dev lo")
        write_manifest(manifest, pods.documents(scheduler))
        with daemon(network, path, Path(directory)):
            arguments = ["keep", SERVICE, str(PORT), str(seconds), str(PER_S), "0.5"]
            clients = network.client.popen([*program, *arguments], stdout=subprocess.PIPE)
            changes, end = 0, time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(PAUSE_S)
                pods.change()
                write_manifest(manifest, pods.documents(scheduler))
                changes += 1
            said, _ = clients.communicate(timeout=60)
        waits, failed = json.loads(said)
        p99, most = (1e3 * waits[int(share * (len(waits) - 1))] for share in (0.99, 1))
        return (
            f"{path} {scheduler}: connections {len(waits) + failed}, failed {failed}; ms p99 {p99:.1f} max {most:.1f};"
            f" changes {changes}"
        )


def main() -> None:
    """Print a line for each path and scheduler; exit status 1 if a client failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--paths", default="userspace,kernel")
    arguments = parser.parse_args()
    good = True
    for path in arguments.paths.split(","):
        for scheduler in Scheduler:
            line = run(path, scheduler, seconds=arguments.seconds, seed=arguments.seed)
            good = good and "failed 0;" in line
            print(line, flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
