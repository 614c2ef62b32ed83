"""Node proxies, played by timers of a scenario's event loop: they follow drain requests and report."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from kubeproxy.kubernetes import timestamps
from kubeproxy.model import Address, Endpoint, EndpointSlice, Family, ServiceName, SliceName
from kubeproxy.model.drain_report import (
    NODE,
    REPORT,
    REPORT_NAMESPACE,
    NodeReport,
    ServiceReport,
    encode_report,
    lease_name,
)
from kubeproxy.model.drain_request import REQUESTS, DrainRequests, decode_requests
from kubeproxy.proxier.drained_endpoints import drain_state, drained
from tests.controllers.api import Api, Json, Write

LOOK_S = 0.25
HEARTBEAT_S = 60.0


class Proxies:
    """The proxies of some nodes. Each decides by the code of the real one; connections are numbers.

    A pod's connections end `connection_s` after the last node has stopped sending it new ones.
    """

    def __init__(self, api: Api, nodes: int = 3, *, follow_s: float = 0.5, connection_s: float = 5.0) -> None:
        self.api = api
        self.follow_s = follow_s
        """How long a change takes to be in effect on a node."""
        self.connection_s = connection_s
        self.stuck: set[str] = set()
        """Nodes with proxies that report, but follow nothing new."""
        self.gone: set[str] = set()
        """Nodes that have stopped."""
        self.served: dict[str, frozenset[Address]] = {}
        """The addresses to which each node sends new connections."""
        self.lost = Counter[str]()
        """Pods that were being deleted while a node still sent them new connections."""
        self.cut = Counter[str]()
        """Pods that were deleted with connections open."""
        self.reports = 0
        self._nodes: list[str] = []
        self._uids: dict[str, str] = {}
        """A Lease goes with its Node, and the garbage collector deletes one without."""
        self._leases: dict[str, str] = {}
        self._renewed: dict[str, float] = {}
        self._undrained_at: dict[str, float] = {}
        """When a pod was last sent a new connection by any node."""
        self._seen = -1
        """The version of the cluster for which the two below were made: every proxy looks four times a second."""
        self._services: list[tuple[ServiceName, tuple[EndpointSlice, ...], DrainRequests | None]] = []
        self._pods: list[tuple[Address, str]] = []
        self._tasks: list[asyncio.Future[None]] = []
        for number in range(nodes):
            self.join(f"node-{number}")
        api.observers.append(self._observe)

    def join(self, node: str) -> None:
        """A node, with its proxy, joins the cluster."""
        self._nodes.append(node)
        self._uids[node] = self.api.create("nodes", "", {"metadata": {"name": node}})["metadata"]["uid"]
        self._tasks.append(asyncio.ensure_future(self._live(node)))

    def close(self) -> None:
        """Stop all proxies."""
        for task in self._tasks:
            task.cancel()

    def _observe(self, write: Write) -> None:
        """Judge each deletion of a pod: its process ends now, as without a preStop hook."""
        if write.resource != "pods" or write.old is None or write.new is None:
            return
        if "deletionTimestamp" not in write.new["metadata"] or "deletionTimestamp" in write.old["metadata"]:
            return
        name, address = write.old["metadata"]["name"], _address(write.old)
        if address is None or not _ready(write.old):
            return
        if any(address in served for node, served in self.served.items() if node not in self.gone):
            self.lost[name] += 1
        if self._open(name):
            self.cut[name] += 1

    def _open(self, pod: str) -> int:
        """Open connections to a pod, all on the first node."""
        now = asyncio.get_running_loop().time()
        return 2 if now - self._undrained_at.get(pod, float("-inf")) < self.connection_s else 0

    async def _live(self, node: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if node not in self.gone:
                if node not in self.stuck:
                    report = self._serve(node)
                else:
                    report = self._leases.get(node) or encode_report(NodeReport())
                if report != self._leases.get(node) or loop.time() - self._renewed[node] > HEARTBEAT_S:
                    self._leases[node], self._renewed[node] = report, loop.time()
                    self._write(node, report)
            await asyncio.sleep(LOOK_S)

    def _serve(self, node: str) -> str:
        """Take what the cluster has now into effect; the report."""
        now = self.api.clock()
        self._look()
        services: dict[ServiceName, ServiceReport] = {}
        served: set[Address] = set()
        for name, slices, requests in self._services:
            if requests is not None:
                slices = drained(slices, requests, now)
            ready = {e.address for it in slices for e in it.endpoints if e.ready}
            served |= ready or {e.address for it in slices for e in it.endpoints if e.serving and e.terminating}
            if requests is not None and requests.active(now):
                state = drain_state(requests, now, slices=slices, frontends=())
                by_address = dict(self._pods)
                counts = {a: self._open(by_address[a]) for a in state.counted if a in by_address}
                first = node == self._nodes[0]
                services[name] = replace(
                    state.report, open={a: count for a, count in counts.items() if count} if first else {}
                )
        self.served[node] = frozenset(served)
        for address, pod in self._pods:
            if address in served:
                self._undrained_at[pod] = asyncio.get_running_loop().time()
        return encode_report(NodeReport(services))

    def _look(self) -> None:
        """Read the cluster, if it has changed since the last look of any proxy."""
        if self._seen == self.api.version:
            return
        self._seen = self.api.version
        self._pods = [
            (address, pod["metadata"]["name"]) for pod in self.api.all("pods") if (address := _address(pod)) is not None
        ]
        self._services = []
        for service in self.api.all("services"):
            text = service["metadata"].get("annotations", {}).get(REQUESTS)
            name = ServiceName("default", service["metadata"]["name"])
            self._services.append((name, self._slices(service), decode_requests(text) if text else None))

    def _slices(self, service: Json) -> tuple[EndpointSlice, ...]:
        """The endpoints of a Service, as the EndpointSlice controller makes them of the pods."""
        selector = service["spec"]["selector"]
        endpoints = []
        for pod in self.api.all("pods"):
            address = _address(pod)
            if address is None or not selector.items() <= pod["metadata"].get("labels", {}).items():
                continue
            terminating = "deletionTimestamp" in pod["metadata"]
            ready = _ready(pod)
            uid = pod["metadata"]["uid"]
            endpoints.append(
                Endpoint(address, ready and not terminating, serving=ready, terminating=terminating, pod=uid)
            )
        name = ServiceName("default", service["metadata"]["name"])
        return (EndpointSlice(SliceName(*name), name, Family.IPV4, (), tuple(endpoints)),)

    def _write(self, node: str, report: str) -> None:
        self.reports += 1
        metadata = {
            "name": lease_name(node),
            "labels": {REPORT: NODE},
            "annotations": {REPORT: report},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": self._uids[node]}],
        }
        renewed = timestamps.microseconds(self.api.clock())
        spec = {"holderIdentity": node, "leaseDurationSeconds": 150, "renewTime": renewed}
        if ("leases", REPORT_NAMESPACE, lease_name(node)) in self.api.objects:
            self.api.patch("leases", REPORT_NAMESPACE, lease_name(node), {"metadata": metadata, "spec": spec})
        else:
            self.api.create("leases", REPORT_NAMESPACE, {"metadata": metadata, "spec": spec})


def _address(pod: Json) -> Address | None:
    ips = pod["status"].get("podIPs") or []
    return Address(ips[0]["ip"]) if ips else None


def _ready(pod: Json) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def expose(api: Api, name: str = "web", app: str = "web") -> Json:
    """A Service that selects the pods of an application."""
    spec = {"type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "selector": {"app": app}}
    return api.create("services", "default", {"metadata": {"name": name}, "spec": spec})


def requests_on(api: Api, name: str = "web") -> list[tuple[str, str]]:
    """Pod and wish of each drain request of a Service."""
    text = api.get("services", name)["metadata"].get("annotations", {}).get(REQUESTS)
    return [] if text is None else [(each.pod, each.want.value) for each in decode_requests(text).requests]
