"""The interfaces to which a source delivers its objects.

For each kind, a source first calls ``replace_…`` with the complete list, and then ``put_…`` and ``remove_…`` for
changes. After it has lost its connection it calls ``replace_…`` with a new list; until then nothing is removed. All
methods are called in the event loop's thread, and return at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType, Protocol

from kubeproxy.model import EndpointSlice, Node, Service, ServiceName, SliceName

SourceName = NewType("SourceName", str)
"""The name of a source in messages and labels: ``kubernetes`` or ``manifests``."""


class Sink(Protocol):
    """Receives the Services and EndpointSlices of all sources. The proxier's tracker implements it; sources must not
    import the proxier."""

    def replace_services(self, source: SourceName, services: Iterable[Service]) -> None:
        """Replace all Services of this source. Services that are not in the list are removed."""

    def put_service(self, source: SourceName, service: Service) -> None:
        """Add or change a Service."""

    def remove_service(self, source: SourceName, name: ServiceName) -> None:
        """Remove a Service that was deleted, or that this proxy no longer serves. An unknown name is ignored."""

    def replace_slices(self, source: SourceName, slices: Iterable[EndpointSlice]) -> None:
        """Replace all EndpointSlices of this source. Slices that are not in the list are removed."""

    def put_slice(self, source: SourceName, endpoint_slice: EndpointSlice) -> None:
        """Add or change an EndpointSlice."""

    def remove_slice(self, source: SourceName, name: SliceName) -> None:
        """Remove an EndpointSlice. An unknown name is ignored."""


class NodeSink(Protocol):
    """Takes the object of this node. It is the tracker, too, and the manifests have no use for it."""

    def set_node(self, node: Node | None) -> None:
        """Set this node, or None if the cluster has no such Node."""
