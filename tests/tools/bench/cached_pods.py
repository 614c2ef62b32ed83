"""Memory of the controllers' cache of pods: ``python -m tests.tools.bench.cached_pods [--pods 10000]``.

Whole pods as an API server sends them are listed and then changed once by a watch, as the controllers' informer gets
them. Printed: bytes of JSON, and bytes of Python's memory that stay, for each pod.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import structlog

from kubeproxy.controllers.informers import pod_informer
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.informer.connectivity import Connectivity

REPLICA_SET_PODS = 10


def pod(number: int, version: int) -> dict[str, Any]:
    """A running pod with two containers, as large as usual."""
    name = f"web-{number // REPLICA_SET_PODS}-5f95d9df64"
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1}
    env = [{"name": f"SETTING_{key}", "value": f"value-{key}-{number}"} for key in range(20)]
    containers = [
        {"name": each, "image": f"registry.example.com/{each}:1.2.3", "env": env, "readinessProbe": probe}
        for each in ("app", "sidecar")
    ]
    times = "2026-11-22T10:00:00Z"
    conditions = [
        {"type": type, "status": "True", "lastProbeTime": None, "lastTransitionTime": times}
        for type in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    statuses = [
        {
            "name": each["name"],
            "ready": True,
            "restartCount": 0,
            "image": each["image"],
            "imageID": f"sha256:{number:064x}",
            "containerID": f"containerd://{number:064x}",
            "started": True,
            "lastState": {},
            "state": {"running": {"startedAt": times}},
        }
        for each in containers
    ]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": name,
        "uid": f"11111111-2222-3333-4444-{number // REPLICA_SET_PODS:012d}",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"{name}-{number:05d}",
            "generateName": f"{name}-",
            "namespace": f"team-{number % 20}",
            "uid": f"aaaaaaaa-bbbb-cccc-dddd-{number:012d}",
            "resourceVersion": str(version),
            "creationTimestamp": times,
            "labels": {"app": f"web-{number // REPLICA_SET_PODS}", "pod-template-hash": "5f95d9df64", "tier": "front"},
            "annotations": {"prometheus.io/scrape": "true", "checksum/config": f"{number:064x}"},
            "ownerReferences": [owner],
            "managedFields": [
                {"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:{x}": {} for x in range(60)}}
            ],
        },
        "spec": {"containers": containers, "nodeName": f"node-{number % 50}", "restartPolicy": "Always"},
        "status": {"phase": "Running", "podIP": "10.1.2.3", "conditions": conditions, "containerStatuses": statuses},
    }


class _Server:
    """Answers one list and one watch."""

    server = "https://api.test"

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self.sent = 0
        self.done = asyncio.Event()

    @asynccontextmanager
    async def pieces(self, path: str, query: Mapping[str, str], **_: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        async def parts() -> AsyncIterator[bytes]:
            yield b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[' % self._pods
            for number in range(self._pods):
                data = msgspec.json.encode(pod(number, number + 1))
                self.sent += len(data)
                yield (b"," if number else b"") + data
            yield b"]}"

        yield parts()

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], **_: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        async def lines() -> AsyncIterator[bytes]:
            for number in range(self._pods):
                changed = pod(number, self._pods + number + 1)
                yield msgspec.json.encode({"type": "MODIFIED", "object": changed})
            self.done.set()
            await asyncio.Event().wait()

        yield lines()


async def _measure(pods: int) -> tuple[int, int]:
    """Bytes of JSON that were listed, and bytes that stay."""
    server, informer = _Server(pods), pod_informer()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    outages = Connectivity(server=server.server, clock=lambda: 0.0)
    running = asyncio.create_task(informer.run(cast(Client, server), outages=outages))
    await server.done.wait()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(informer.store) == pods
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return server.sent, after - before


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.cached_pods", description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000)
    pods = parser.parse_args().pods
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sent, kept = asyncio.run(_measure(pods))
    print(
        f"{pods} pods: {sent / pods:.0f} bytes of JSON each, {kept / pods:.0f} bytes kept each, {kept >> 20} MiB in all"
    )


if __name__ == "__main__":
    main()
