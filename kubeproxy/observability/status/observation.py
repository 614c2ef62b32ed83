"""All that the status is made of, as it was at one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint, WorkerStatus
from kubeproxy.model import Endpoint, FrontendName, Target
from kubeproxy.observability.health import Health
from kubeproxy.observability.views import ManifestsView, ProxierView, WatchView

Candidates = Callable[[FrontendName], Mapping[Target, Endpoint]]
"""Everybody who listens for a frontend's service port, those not chosen included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
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
    worker_status: Sequence[WorkerStatus]
    ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]]
    restarts: int
    problem: str | None
    """Why the data plane does not serve as it should; None: it does."""
    watches: Sequence[WatchView] = ()
    manifests: ManifestsView | None = None
