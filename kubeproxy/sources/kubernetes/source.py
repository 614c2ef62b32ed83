"""The Kubernetes source. It delivers Services and endpoints of an API server to a `Sink`, and this node to a
`NodeSink`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from time import time
from typing import Any, Final

import msgspec

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError, GarbageError
from kubeproxy.kubernetes.client.status import excerpt
from kubeproxy.kubernetes.informer.connectivity import Connectivity
from kubeproxy.kubernetes.informer.list_watch_policy import Pace
from kubeproxy.kubernetes.informer.reflector import Reflector
from kubeproxy.kubernetes.informer.reflector_state import ReflectorState
from kubeproxy.kubernetes.informer.resource import Resource
from kubeproxy.sources.kubernetes.kinds import Endpoints, OwnNode, Services, Slices
from kubeproxy.sources.sink import NodeSink, Sink


class _Version(msgspec.Struct, rename="camel"):
    group_version: str = ""


class _Group(msgspec.Struct):
    versions: list[_Version] | None = None


class _GroupList(msgspec.Struct):
    kind: str
    groups: list[_Group] | None = None


BEHIND_S: Final = 10.0
"""The number of seconds without news from the API server after which `complaint` reports that changes may have been
missed. A restart of the server takes less time."""
LEFT_OUT = "the API server has more than is kept; some objects are not served"

Choice = Callable[[], Awaitable[Resource[Any]]]


class KubernetesSource:
    """Watches Services, EndpointSlices (or Endpoints, if the server has no EndpointSlices), and this node's Node
    object.

    Without permission to read Nodes, `node_sink` is never called. This is logged once, and Services are still served.
    """

    def __init__(
        self,
        *,
        client: Client,
        sink: Sink,
        node_name: str,
        node_sink: NodeSink | None = None,
        pace: Pace | None = None,
        random: Random | None = None,
    ) -> None:
        self._client = client
        self.node_name = node_name
        self._services = Services(sink)
        self._slices = Slices(sink)
        self._endpoints = Endpoints(sink)
        self._outages = Connectivity(
            server=client.server, clock=time, optional=OwnNode.name, rights="bind system:node-proxier"
        )
        pace = pace or Pace()
        random = random or Random()
        choices: dict[str, Choice] = {Services.name: _always(self._services), Slices.name: self._choose_slices}
        if node_sink is not None:
            choices[OwnNode.name] = _always(OwnNode(node_sink, node_name))
        self._reflectors = tuple(
            Reflector(client=client, name=name, choose=choose, outages=self._outages, pace=pace, random=random)
            for name, choose in choices.items()
        )

    async def run(self) -> None:
        """List and watch until cancelled. Failed requests are repeated forever, and do not change the sink's
        contents."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"reflector of {reflector.state().resource}")

    def retry(self) -> None:
        """Let reflectors that wait after a failure try again at once."""
        for reflector in self._reflectors:
            reflector.retry()

    def state(self) -> tuple[ReflectorState, ...]:
        """Return the state of each reflector."""
        return tuple(reflector.state() for reflector in self._reflectors)

    def why_not_served(self, namespace: str, name: str) -> str:
        """Return why a Service of the server is not served, or an empty text if it is served or unknown. If `namespace`
        is empty, search all namespaces."""
        return self._services.why_not_served(namespace, name)

    def complaint(self) -> str | None:
        """Return a text about the problem that keeps objects from being served or changes from being known, or None if
        there is none."""
        states = self.state()
        if any(state.left_out for state in states):
            return LEFT_OUT
        behind = next((it for it in states if it.last_error and (it.behind_s >= BEHIND_S or not it.lists)), None)
        if behind is None:
            return None
        effect = "changes are not known" if behind.lists else "not listed yet"
        return f"{behind.resource}: {effect}: {behind.last_error}"

    async def _choose_slices(self) -> Resource[Any]:
        """Return the resource EndpointSlices if the server's list of API groups has discovery.k8s.io/v1, and Endpoints
        otherwise.

        A request for the group's own path would not tell: with kube-proxy's role, a server answers 403 for known and
        unknown groups. If reading the list of groups is forbidden, assume EndpointSlices.
        """
        try:
            body = await self._client.get_json("/apis")
        except ApiError as error:
            if error.status in (403, 404):
                return self._slices
            raise
        try:
            groups = msgspec.json.decode(body, type=_GroupList).groups or []
        except msgspec.DecodeError as error:
            raise GarbageError(
                f"/apis is not a list of API groups ({error}): {excerpt(body)}", cause="garbage"
            ) from error
        served = {version.group_version for group in groups for version in group.versions or []}
        return self._slices if "discovery.k8s.io/v1" in served else self._endpoints


def _always(resource: Resource[Any]) -> Choice:
    async def choose() -> Resource[Any]:
        return resource

    return choose
