"""Implements ``kubeproxy status --all-nodes``, which requests the status of every node's kubeproxy through the API
server."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from kubeproxy.model.errors import KubeproxyError
from kubeproxy.observability.status.document import State, Status
from kubeproxy.runtime.output import echo, write_data

if TYPE_CHECKING:
    from kubeproxy.kubernetes.client.client import Client

AT_ONCE: Final = 16
"""The number of parallel requests. The API server forwards each request to a node."""
PAGE: Final = 500
"""The largest number of pods in one page of a list."""
MOST_SERVICES: Final = 500
"""The largest number of Services that are requested from a node. Only Services that are not ok are requested."""
NAMED: Final = 4
"""The largest number of nodes that are named with a Service."""
NOT_OK: Final = ",".join(state for state in State if state is not State.OK)


class _Metadata(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _PodStatus(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Page(msgspec.Struct, rename={"next": "continue"}):
    next: str = ""


class _Pods(msgspec.Struct):
    items: list[_Pod] = []
    metadata: _Page = msgspec.field(default_factory=_Page)


@dataclass(slots=True)
class Node:
    """The status of one node, or the reason why it is unknown."""

    name: str
    status: Status | None = None
    fault: str = ""

    @property
    def rank(self) -> tuple[int, str]:
        """Return the node's sort key. The nodes with the worst state come first."""
        if self.status is None:
            return 0, self.name
        return (1 if not self.status.healthy else 2 if self.status.problems else 3), self.name


@dataclass(slots=True)
class Cluster:
    """The nodes, those with the worst state first, and the Services that are not ok on at least one node."""

    nodes: Sequence[Node]
    services: Mapping[str, Mapping[str, list[str]]] = field(init=False)
    """The nodes by Service and state. They are the nodes on which the Service is in this state."""

    def __post_init__(self) -> None:
        services: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for node in self.nodes:
            for it in node.status.services if node.status is not None else ():
                services[f"{it.namespace}/{it.name}"][it.state].append(node.name)
        self.services = services

    @property
    def well(self) -> bool:
        """Return whether all nodes have answered and are healthy."""
        return all(node.status is not None and node.status.healthy for node in self.nodes)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the output: a summary, the nodes, and the Services that are not ok on at least one
        node."""
        answered = [node.status for node in self.nodes if node.status is not None]
        yield f"{len(self.nodes)} nodes: {len(answered)} answered, {sum(it.healthy for it in answered)} healthy"
        yield ""
        yield from _table(("NODE", "VERSION", "SERVICES", "STATE"), [_row(node) for node in self.nodes])
        counts = {it.totals.services for it in answered}
        if len(counts) > 1:
            yield ""
            yield f"nodes disagree about the number of Services: {min(counts)} to {max(counts)}"
        if self.services:
            yield ""
            yield from _table(("SERVICE", "STATE", "NODES"), list(self._service_rows(len(answered))))

    def _service_rows(self, answered: int) -> Iterator[tuple[str, ...]]:
        """Yield a row for each Service and state. Services about which nodes disagree come first."""
        rows = [(name, state, nodes) for name, states in self.services.items() for state, nodes in states.items()]
        for name, state, nodes in sorted(rows, key=lambda row: (len(row[2]) == answered, row[0])):
            named = ", ".join(sorted(nodes)[:NAMED]) + (", ..." if len(nodes) > NAMED else "")
            yield name, state, f"{len(nodes)} of {answered}: {named}"


def _row(node: Node) -> tuple[str, ...]:
    status = node.status
    if status is None:
        return node.name, "-", "-", f"NO ANSWER: {node.fault}"
    first = f"; {status.problems[0]}" if status.problems else ""
    return node.name, status.version, str(status.totals.services), f"{status.summary}{first}"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def show(*, kubeconfig: str, context: str, namespace: str, selector: str, port: int, as_json: bool) -> int:
    """Request and print the status of all nodes. Return the exit status."""
    from kubeproxy.kubernetes.client.client import Client
    from kubeproxy.kubernetes.client.credentials import Access
    from kubeproxy.kubernetes.client.kubeconfig import Overrides, load
    from kubeproxy.kubernetes.client.policy import Policy

    async def run() -> Cluster:
        access = Access(lambda: load(Overrides(kubeconfig=kubeconfig, context=context)))
        async with Client(access, Policy.for_command(answer_s=15.0)) as client:
            return await ask(client, namespace=namespace, selector=selector, port=port)

    cluster = asyncio.run(run())
    if as_json:
        said = {node.name: node.status or {"fault": node.fault} for node in cluster.nodes}
        write_data(sys.stdout, f"{msgspec.json.format(msgspec.json.encode(said), indent=2).decode()}\n")
    else:
        echo(*cluster.lines())
    return 0 if cluster.well else 1


async def ask(client: Client, *, namespace: str, selector: str, port: int) -> Cluster:
    """Request the status of each pod that the selector matches. Raise KubeproxyError if there is no pod, or the API
    server does not answer."""
    pods = await _pods(client, namespace, selector)
    if not pods:
        raise KubeproxyError(
            f"no pods with the labels {selector} in namespace {namespace}; see --selector, --namespace"
        )
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(pod: _Pod) -> Node:
        async with gate:
            return await _ask(client, namespace, pod, port)

    return Cluster(sorted(await asyncio.gather(*map(one, pods)), key=lambda row: row.rank))


async def _pods(client: Client, namespace: str, selector: str) -> list[_Pod]:
    found: list[_Pod] = []
    query = {"labelSelector": selector, "limit": str(PAGE)}
    while True:
        answer = await client.get(f"/api/v1/namespaces/{quote(namespace)}/pods", query)
        page = msgspec.json.decode(answer.body, type=_Pods)
        found += page.items
        if not page.metadata.next:
            return found
        query["continue"] = page.metadata.next


async def _ask(client: Client, namespace: str, pod: _Pod, port: int) -> Node:
    node = Node(pod.spec.node_name or pod.metadata.name)
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/http:{quote(pod.metadata.name)}:{port}/proxy/statusz"
    try:
        answer = await client.get(path, {"format": "json", "state": NOT_OK, "limit": str(MOST_SERVICES)})
        node.status = msgspec.json.decode(answer.body, type=Status)
    except msgspec.DecodeError as error:
        node.fault = f"it is no kubeproxy of this version ({error})"
    except KubeproxyError as error:
        node.fault = f"pod {pod.metadata.name} ({pod.status.phase}): {error}"
    return node
