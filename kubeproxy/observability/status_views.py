"""What the status reads of others. They are never imported; they fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kubeproxy.dataplane.interface import Counters, Ill, Vitals
from kubeproxy.model import Endpoint, Frontend, FrontendName, ServiceName, Target
from kubeproxy.observability.health import Health
from kubeproxy.observability.views import WatchView

Candidates = Callable[[FrontendName], Mapping[Target, Endpoint]]
"""Everybody who listens for a frontend's service port, those not chosen included."""


class FrontendView(Protocol):
    """A listener that is wanted."""

    @property
    def frontend(self) -> Frontend:
        """What it takes in and hands out."""

    @property
    def proxy_port(self) -> int | None:
        """Where it listens; None: nowhere yet."""


class ProxierView(Protocol):
    """The proxier's state at one moment; times are of its clock."""

    @property
    def frontends(self) -> Sequence[FrontendView]:
        """What is wanted."""

    @property
    def problems(self) -> Mapping[ServiceName, Sequence[str]]:
        """The Services that are not, or not wholly, served, and why."""

    @property
    def owners(self) -> Mapping[ServiceName, str]:
        """Every Service, and the source that it is served from."""

    @property
    def sources(self) -> Mapping[str, bool]:
        """Every source, and whether it has listed everything."""

    @property
    def netfilter(self) -> str:
        """The packet filter in use."""

    @property
    def failing(self) -> str | None:
        """Why something cannot be brought up to date; None: it can."""

    @property
    def failures(self) -> int:
        """Netfilter transactions that failed in a row."""

    @property
    def pending_since(self) -> float | None:
        """When the oldest change that is not in effect was first seen."""

    @property
    def programmed_at(self) -> float | None:
        """When the last netfilter transaction succeeded."""

    @property
    def service_changes_pending(self) -> int:
        """Services not in effect yet."""

    @property
    def endpoint_changes_pending(self) -> int:
        """Services whose endpoints are not in effect yet."""


class TroubleView(Protocol):
    """Something in a manifest that cannot be taken as it is; `str` says where and what."""

    @property
    def skipped(self) -> bool:
        """Only told: an object of a kind that is not taken."""


class ManifestsView(Protocol):
    """What the manifests amount to."""

    @property
    def loaded(self) -> bool:
        """Whether all have been read once."""

    @property
    def troubles(self) -> Sequence[TroubleView]:
        """What stands against them."""

    @property
    def last_change(self) -> float:
        """When they last said something new, in Unix seconds; 0: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """All that there is to see at one moment."""

    now: float
    """Of the proxier's clock."""
    wall: float
    """Unix seconds."""
    node: str
    pid: int
    began: float
    """Unix seconds."""
    health: Health
    proxier: ProxierView
    counters: Mapping[FrontendName, Counters]
    vitals: Sequence[Vitals]
    ill: Mapping[FrontendName, Sequence[Ill]]
    restarts: int
    trouble: str | None
    """Why the data plane does not serve as it should; None: it does."""
    watches: Sequence[WatchView] = ()
    manifests: ManifestsView | None = None
