"""The interface with which a source delivers its objects.

A source first calls ``replace`` for each kind (its full list), then single changes. After a broken connection it calls
``replace`` again with its new list, and nothing is withdrawn in between. All calls are made from the event loop's
thread and return at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType, Protocol

from kubeproxy.model import EndpointSlice, Node, Service, ServiceName, SliceName

SourceName = NewType("SourceName", str)
"""The source's name in messages and labels: ``kubernetes`` or ``manifests``."""


class Sink(Protocol):
    """Takes the Services and EndpointSlices of all sources. It is the proxier's tracker, which a room of the same
    height must not import."""

    def replace_services(self, source: SourceName, services: Iterable[Service]) -> None:
        """Replace all Services of this source. Those that are not in the list are removed."""

    def put_service(self, source: SourceName, service: Service) -> None:
        """Add or change a Service."""

    def remove_service(self, source: SourceName, name: ServiceName) -> None:
        """Remove a Service that is gone, or that this proxy does not serve any more. An unknown name is ignored."""

    def replace_slices(self, source: SourceName, slices: Iterable[EndpointSlice]) -> None:
        """Replace all EndpointSlices of this source. Those that are not in the list are removed."""

    def put_slice(self, source: SourceName, endpoint_slice: EndpointSlice) -> None:
        """Add or change an EndpointSlice."""

    def remove_slice(self, source: SourceName, name: SliceName) -> None:
        """Remove an EndpointSlice. An unknown name is ignored."""


class NodeSink(Protocol):
    """Takes the object of this node. It is the tracker, too, and the manifests have no use for it."""

    def set_node(self, node: Node | None) -> None:
        """Set this node's object, or None if it does not exist."""
