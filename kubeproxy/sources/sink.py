"""What a source says, and to whom.

A source first says ``replace`` for each kind (its full list), then single changes. A source whose connection broke
says ``replace`` again after its relist; nothing is withdrawn meanwhile. All calls are made from the event loop's thread
and return at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType, Protocol

from kubeproxy.model import EndpointSlice, Node, Service, ServiceName, SliceName

SourceName = NewType("SourceName", str)
"""As it appears in messages and labels: ``kubernetes``, ``manifests``."""


class Sink(Protocol):
    """The listener's side."""

    def replace_services(self, source: SourceName, services: Iterable[Service]) -> None:
        """All Services of this source, as of now; those not named are gone."""

    def put_service(self, source: SourceName, service: Service) -> None:
        """A Service is new or changed."""

    def remove_service(self, source: SourceName, name: ServiceName) -> None:
        """A Service is gone, or is no longer ours to serve. Unknown names are fine."""

    def replace_slices(self, source: SourceName, slices: Iterable[EndpointSlice]) -> None:
        """All EndpointSlices of this source, as of now; those not named are gone."""

    def put_slice(self, source: SourceName, endpoint_slice: EndpointSlice) -> None:
        """An EndpointSlice is new or changed."""

    def remove_slice(self, source: SourceName, name: SliceName) -> None:
        """An EndpointSlice is gone. Unknown names are fine."""


class NodeSink(Protocol):
    """Who wants to know of this node."""

    def set_node(self, node: Node | None) -> None:
        """This node is so described now; None: there is no such node."""
