"""What this room reads of others, as far as it reads it. They are never imported; they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kubeproxy.model import ServiceName


class FrontendView(Protocol):
    """A listener that is wanted."""

    @property
    def proxy_port(self) -> int | None:
        """Where it listens; None: nowhere yet."""


class ProxierView(Protocol):
    """The proxier's state at one moment."""

    @property
    def frontends(self) -> Sequence[FrontendView]:
        """What is wanted."""

    @property
    def problems(self) -> Mapping[ServiceName, Sequence[str]]:
        """The Services that are not, or not wholly, served, and why."""

    @property
    def sources(self) -> Mapping[str, bool]:
        """Every source, and whether it has listed everything."""

    @property
    def service_changes_pending(self) -> int:
        """Services not in effect yet."""

    @property
    def service_changes_total(self) -> int:
        """Changes of Services received."""

    @property
    def endpoint_changes_pending(self) -> int:
        """Services whose endpoints are not in effect yet."""

    @property
    def endpoint_changes_total(self) -> int:
        """Changes of endpoints received."""
