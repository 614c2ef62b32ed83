"""Test doubles: a recording sink, clients of servers on loopback, and waiting for conditions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from kubeproxy.kubernetes.informer.list_watch_policy import Pace
from kubeproxy.model import EndpointSlice, Service, ServiceName, SliceName
from kubeproxy.sources.kubernetes.source import KubernetesSource
from kubeproxy.sources.sink import SourceName

QUICK = Pace(watch_s=(30, 30), margin_s=5, settle_s=0.05, retry_s=(0.01, 0.05), relist_s=0.02, retry_after_s=0.2)
"""A pace with short time limits."""


class Remembering:
    """A `Sink` that keeps its objects, and its calls in order."""

    def __init__(self) -> None:
        self.services: dict[ServiceName, Service] = {}
        self.slices: dict[SliceName, EndpointSlice] = {}
        self.calls: list[str] = []
        self.listed: set[str] = set()

    def replace_services(self, source: SourceName, services: Iterable[Service]) -> None:
        self.services = {service.name: service for service in services}
        self.listed.add("services")
        self.calls.append("replace services")

    def put_service(self, source: SourceName, service: Service) -> None:
        self.services[service.name] = service
        self.calls.append(f"put {service.name}")

    def remove_service(self, source: SourceName, name: ServiceName) -> None:
        self.services.pop(name, None)
        self.calls.append(f"remove {name}")

    def replace_slices(self, source: SourceName, slices: Iterable[EndpointSlice]) -> None:
        self.slices = {endpoint_slice.name: endpoint_slice for endpoint_slice in slices}
        self.listed.add("slices")
        self.calls.append("replace slices")

    def put_slice(self, source: SourceName, endpoint_slice: EndpointSlice) -> None:
        self.slices[endpoint_slice.name] = endpoint_slice
        self.calls.append(f"put slice {endpoint_slice.name}")

    def remove_slice(self, source: SourceName, name: SliceName) -> None:
        self.slices.pop(name, None)
        self.calls.append(f"remove slice {name}")

    @property
    def complete(self) -> bool:
        """Whether both full lists have arrived."""
        return self.listed == {"services", "slices"}

    def addresses(self, number: int) -> set[str]:
        """The endpoint addresses of ``demo/service-NUMBER``, from all its slices."""
        name = ServiceName("demo", f"service-{number}")
        return {
            endpoint.address
            for endpoint_slice in self.slices.values()
            if endpoint_slice.service == name
            for endpoint in endpoint_slice.endpoints
        }


@asynccontextmanager
async def connected(url: str, **settings: Any) -> AsyncIterator[Client]:
    """A client for the server at `url`, without credentials."""
    client = await Client.connect(ClientSettings(master=url, **{"qps": 0.0, **settings}))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def watching(
    client: Client, *, pace: Pace = QUICK, sink: Remembering | None = None
) -> AsyncIterator[tuple[KubernetesSource, Remembering]]:
    """A running source."""
    sink = sink or Remembering()
    source = KubernetesSource(client=client, sink=sink, node_name="node-a", pace=pace, random=Random(7))
    task = asyncio.ensure_future(source.run())
    try:
        yield source, sink
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def kubeconfig(directory: Path, url: str, user: Mapping[str, Any] | None = None, **cluster: Any) -> str:
    """A kubeconfig file for the server at `url`; its path."""
    path = directory / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "there",
                "contexts": [{"name": "there", "context": {"cluster": "there", "user": "me"}}],
                "clusters": [
                    {
                        "name": "there",
                        "cluster": {"server": url, **{key.replace("_", "-"): value for key, value in cluster.items()}},
                    }
                ],
                "users": [{"name": "me", "user": user or {}}],
            }
        )
    )
    return str(path)
