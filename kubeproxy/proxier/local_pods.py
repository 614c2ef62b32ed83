"""The pods on this node that are endpoints, and those of them that are leaving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from kubeproxy.model import Address, Endpoint, EndpointSlice, Protocol, ServiceName
from kubeproxy.proxier.node import NodeFacts


class Leaving(NamedTuple):
    """A pod that gets no new connections because its preStop hook is running."""

    address: Address
    pod: str
    """The pod's name, as in `Endpoint.pod`. The address alone is not enough, because another pod may get it soon
    afterwards."""


class LocalPods:
    """The endpoints on this node by Service, from the EndpointSlices. Endpoints on the host's network are not included,
    because they share the node's addresses."""

    def __init__(self) -> None:
        self._of: dict[ServiceName, tuple[Endpoint, ...]] = {}
        self._ports: dict[ServiceName, frozenset[int]] = {}
        """The TCP ports of each Service's endpoints."""
        self._at: dict[Address, dict[ServiceName, Endpoint]] = {}
        self.changes = 0
        """A number that increases with every change of `ports`."""
        self.on_first: Callable[[], None] = lambda: None
        """A callback for the appearance of the first pod."""

    def put(self, name: ServiceName, slices: Iterable[EndpointSlice], facts: NodeFacts) -> None:
        """Set the local endpoints of a Service. If it has none on this node, the Service is removed."""
        found = [
            (endpoint, it.ports)
            for it in slices
            for endpoint in it.endpoints
            if endpoint.node == facts.name and facts.name and not facts.is_own(endpoint.address)
        ]
        now, before = tuple(endpoint for endpoint, _ in found), self._of.get(name, ())
        ports = frozenset(it.port for _, each in found for it in each if it.protocol is Protocol.TCP)
        fresh = {endpoint.address: endpoint for endpoint in now}
        known = {endpoint.address for endpoint in before}
        # A pod that has joined or left one of its Services has other ports.
        self.changes += ports != self._ports.get(name, frozenset()) or fresh.keys() != known
        if now:
            self._of[name], self._ports[name] = now, ports
        else:
            self._of.pop(name, None)
            self._ports.pop(name, None)
        was_empty = not self._at
        for address in known - fresh.keys():
            services = self._at[address]
            del services[name]
            if not services:
                del self._at[address]
        for address, endpoint in fresh.items():
            self._at.setdefault(address, {})[name] = endpoint
        if self._at and was_empty:
            self.on_first()

    @property
    def ports(self) -> dict[Address, frozenset[int]]:
        """Return the addresses of all pods, each with the TCP ports of its Services' endpoints."""
        ports, none = self._ports, frozenset[int]()
        return {address: none.union(*(ports.get(it, none) for it in names)) for address, names in self._at.items()}

    def at(self, address: Address) -> Collection[Endpoint]:
        """Return the endpoints at an address, one for each Service with an endpoint there."""
        return self._at.get(address, {}).values()

    def services_at(self, addresses: Iterable[Address]) -> set[ServiceName]:
        """Return the Services with an endpoint at one of these addresses."""
        return {name for address in addresses for name in self._at.get(address, {})}

    def leaving(self, asking: Mapping[Address, str]) -> frozenset[Leaving]:
        """Return the pods to take out of service with all their addresses. `asking` has the pods' addresses at which
        the kubelet called preStop hooks, each with the result of `identity` at the first call. The kubelet calls only
        one address of a pod, which may have one of each family. An endpoint without a pod name is matched by
        address."""
        pods = {pod for pod in asking.values() if pod}
        return frozenset(
            Leaving(address, endpoint.pod)
            for address, services in self._at.items()
            for name, endpoint in services.items()
            if (pod := _identity(name, endpoint)) in pods or (address in asking and pod in ("", asking[address]))
        )

    def addresses_of(self, pods: Collection[str]) -> dict[str, set[Address]]:
        """Return the addresses of each of these pods, which are named as in the result of `identity`."""
        found: dict[str, set[Address]] = {}
        for address, services in self._at.items():
            for pod in {_identity(name, endpoint) for name, endpoint in services.items()}.intersection(pods):
                found.setdefault(pod, set()).add(address)
        return found

    def identity(self, address: Address) -> str:
        """Return the pod at an address, such as "shop/UID", or an empty text if it is not known."""
        services = self._at.get(address, {}).items()
        return next((pod for name, endpoint in services if (pod := _identity(name, endpoint))), "")


def _identity(service: ServiceName, endpoint: Endpoint) -> str:
    """Return the pod of an endpoint with its namespace. In slices made by hand the pod may have a name but no UID."""
    return f"{service.namespace}/{endpoint.pod}" if endpoint.pod else ""
