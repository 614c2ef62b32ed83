"""Nodes without kubelets: pods of a real API server become ready, and end, by a task of the test."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from kubeproxy.controllers.api_types import PodMetadata
from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.api_types import Wire
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.informer.connectivity import Connectivity
from kubeproxy.kubernetes.informer.informer import Informer
from tests.controllers.live.control_plane import ask


class _Container(Wire, frozen=True):
    name: str = ""
    image: str = ""


class _Spec(Wire, frozen=True):
    node_name: str = ""
    containers: list[_Container] = msgspec.field(default_factory=list)


class _Pod(Wire, frozen=True):
    metadata: PodMetadata = PodMetadata()
    spec: _Spec = _Spec()


class Nodes:
    """Plays all kubelets. A pod with an image ``broken...`` never becomes ready."""

    def __init__(self, client: Client, *, ready_s: float = 0.3, stop_s: float = 0.3) -> None:
        self._client = client
        self._ready_s = ready_s
        self._stop_s = stop_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: set[str] = set()
        decode = msgspec.json.Decoder(_Pod).decode
        self._pods: Informer[_Pod] = Informer(name="pods", kind="Pod", path="/api/v1/pods", decode=decode)
        self._pods.add_handler(self)

    async def run(self) -> None:
        """Until cancelled."""
        outages = Connectivity(server=self._client.server, clock=time.time)
        try:
            await self._pods.run(self._client, outages=outages)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def added(self, item: _Pod) -> None:
        self._do(self._start(item))
        self.updated(item, item)

    def updated(self, old: _Pod, new: _Pod) -> None:
        if new.metadata.deletion_timestamp is not None and new.metadata.uid not in self._stopping:
            self._stopping.add(new.metadata.uid)
            self._do(self._stop(new))

    def deleted(self, item: _Pod) -> None:
        return

    def _do(self, action: Any) -> None:
        task = asyncio.create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, pod: _Pod) -> None:
        if pod.spec.node_name:
            return  # started before, by another object of this class
        await asyncio.sleep(self._ready_s)
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.metadata.name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "node"},
        }
        ready = not any(container.image.startswith("broken") for container in pod.spec.containers)
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamps.seconds(time.time())}
        await self._send("POST", f"{path}/binding", binding)
        status = {"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Running", "conditions": [condition]}}
        await self._send("PATCH", f"{path}/status", status)

    async def _stop(self, pod: _Pod) -> None:
        await asyncio.sleep(self._stop_s)
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
        await self._send("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}})

    async def _send(self, method: str, path: str, body: Any) -> None:
        """Until the server has decided: 404 and 409 stand for a pod that is gone by now, or was started before."""
        while True:
            try:
                await ask(self._client, method, path, body)
            except ApiError as error:
                if error.status in (404, 409):
                    return
                await asyncio.sleep(1)
            else:
                return
