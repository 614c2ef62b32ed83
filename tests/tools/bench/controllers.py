"""Our controllers beside kube-controller-manager's: many Deployments created at once, then all of them rolled.

``KUBERNETES_BINARIES=DIR python -m tests.tools.bench.controllers [--deployments 500] [--pods 10] [--qps 20]``, on a
real API server with simulated kubelets; both have equal limits of requests. Each runs alone, one after the other, in
namespaces of its own; the objects of the first are deleted before the second begins. Printed: seconds until all
rollouts are complete, CPU seconds of the controllers' process, its memory, and its requests by verb and resource.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kubeproxy.kubernetes.client.client import Client
from tests.controllers.cluster import is_complete
from tests.controllers.live.control_plane import ControlPlane, ask, binaries
from tests.controllers.live.node import Nodes

NAMESPACE = "bench"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int) -> tuple[float, float]:
    """Now and at its most."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(lines["VmRSS"].split()[0]) / 1024, int(lines["VmHWM"].split()[0]) / 1024


def _deployment(number: int, pods: int) -> dict[str, Any]:
    labels = {"app": f"web-{number}"}
    return {
        "metadata": {"name": f"web-{number}"},
        "spec": {
            "replicas": pods,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "web:1"}]}},
        },
    }


async def _each(number: int, action: Any) -> None:
    limit = asyncio.Semaphore(20)

    async def one(index: int) -> None:
        async with limit:
            await action(index)

    await asyncio.gather(*(one(index) for index in range(number)))


async def _complete(client: Client, path: str, number: int) -> None:
    while True:
        items = (await ask(client, "GET", path))["items"]
        if len(items) == number and all(map(is_complete, items)):
            return
        await asyncio.sleep(1)


async def _measure(plane: ControlPlane, process: str, user: str, arguments: argparse.Namespace) -> dict[str, Any]:
    client = await plane.connect()
    nodes = asyncio.create_task(Nodes(client, ready_s=1.0, stop_s=1.0).run())
    try:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}-{user}/deployments"
        await ask(client, "POST", "/api/v1/namespaces", {"metadata": {"name": f"{NAMESPACE}-{user}"}})
        pid = plane.pid(process)
        begun, cpu = time.monotonic(), _cpu_s(pid)
        await _each(arguments.deployments, lambda n: ask(client, "POST", path, _deployment(n, arguments.pods)))
        await _complete(client, path, arguments.deployments)
        created, cpu_created = time.monotonic(), _cpu_s(pid)
        memory, _ = _memory_mib(pid)
        image = {"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "web:2"}]}}}}
        await _each(arguments.deployments, lambda n: ask(client, "PATCH", f"{path}/web-{n}", image))
        await _complete(client, path, arguments.deployments)
        rolled, cpu_rolled = time.monotonic(), _cpu_s(pid)
        _, most = _memory_mib(pid)
        requests = Counter(f"{verb} {resource}" for _, verb, resource in plane.requests_of(user))
        for resource in ("deployments", "replicasets", "pods"):
            group = "/api/v1" if resource == "pods" else "/apis/apps/v1"
            where = f"{group}/namespaces/{NAMESPACE}-{user}/{resource}"
            await ask(client, "DELETE", where, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        while (await ask(client, "GET", f"/api/v1/namespaces/{NAMESPACE}-{user}/pods"))["items"]:
            await asyncio.sleep(1)
        return {
            "create_s": created - begun,
            "create_cpu_s": cpu_created - cpu,
            "roll_s": rolled - created,
            "roll_cpu_s": cpu_rolled - cpu_created,
            "memory_mib": memory,
            "memory_most_mib": most,
            "requests": dict(requests.most_common()),
        }
    finally:
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)
        await client.close()


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.controllers", description=__doc__)
    parser.add_argument("--deployments", type=int, default=500)
    parser.add_argument("--pods", type=int, default=10)
    parser.add_argument("--qps", type=float, default=20)
    arguments = parser.parse_args()
    programs = binaries()
    if programs is None:
        parser.error("KUBERNETES_BINARIES is not set")
    limits = (f"--kube-api-qps={arguments.qps:g}", f"--kube-api-burst={round(arguments.qps * 1.5)}")
    with tempfile.TemporaryDirectory() as directory, ControlPlane(Path(directory), programs) as plane:
        asyncio.run(_ready(plane))
        for name, process, user in (("kubeproxy", "ours", "second"), ("upstream", "kube-controller-manager", "first")):
            running: AbstractContextManager[None] = (
                plane.ours("--leader-elect=false", *limits, user=user)
                if process == "ours"
                else plane.upstream("deployment,replicaset,replicationcontroller", *limits, user=user)
            )
            with running:
                found = asyncio.run(_measure(plane, process, user, arguments))
            figures = " ".join(f"{key}={value:.1f}" for key, value in found.items() if key != "requests")
            print(f"{name}: {figures}\n  requests: {found['requests']}", flush=True)


async def _ready(plane: ControlPlane) -> None:
    await (await plane.connect()).close()


if __name__ == "__main__":
    main()
