"""What this room reads of others, as far as it reads it. They are never imported; they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


class WatchView(Protocol):
    """How the watch of one resource fares. Times are Unix seconds; None: never."""

    @property
    def resource(self) -> str:
        """Which: ``services``, ``endpointslices``."""

    @property
    def behind_s(self) -> float:
        """For how long it may have missed something; 0 while a watch works."""

    @property
    def last_event(self) -> float | None:
        """When the server last said anything."""

    @property
    def lists(self) -> int:
        """Full lists taken."""

    @property
    def watches(self) -> int:
        """Watches begun."""

    @property
    def events(self) -> int:
        """Events received."""

    @property
    def failures(self) -> Mapping[str, int]:
        """By cause: few words, never messages."""

    @property
    def faulty(self) -> int:
        """Objects of which some part cannot be served."""


class TroubleView(Protocol):
    """Something in a manifest that cannot be taken as it is."""

    @property
    def skipped(self) -> bool:
        """Only told: an object of a kind that is not taken."""


class ManifestsView(Protocol):
    """What the manifests amount to."""

    @property
    def troubles(self) -> Sequence[TroubleView]:
        """What stands against them."""

    @property
    def last_change(self) -> float:
        """When they last said something new, in Unix seconds; 0: never."""


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it at one moment."""

    proxier: ProxierView
    watches: Sequence[WatchView] = ()
    manifests: ManifestsView | None = None
    """None: there is no such source."""
