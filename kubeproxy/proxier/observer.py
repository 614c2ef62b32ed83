"""Who wants to know how the proxier fares: metrics and health. They are told what happens; what merely *is*, they read
from `Proxier.snapshot()` when asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kubeproxy.model import ServiceName
from kubeproxy.model.errors import KubeproxyError


class ProxierObserver(Protocol):
    """Told synchronously, from the event loop's thread; must return at once and not raise."""

    def queued(self) -> None:
        """Something changed and is not in effect yet. Said once until `settled`."""

    def settled(self, trigger_times: Sequence[str]) -> None:
        """Everything known is in effect; said after every round that leaves it so. `trigger_times`: the annotations
        (RFC 3339) of the slices that came into effect since last time, for the network programming latency."""

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        """A netfilter transaction succeeded. `full`: what the kernel really has was looked at; `changed`: it had to be
        corrected or to learn something."""

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        """After a transaction the kernel's UDP flows agree with the rules; so many had to be deleted for it."""

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """They could not be looked at or deleted. The rules are in force all the same; it will be tried again."""

    def failed(self, error: KubeproxyError) -> None:
        """A netfilter transaction, or the handing over to the data plane, failed. It will be tried again."""

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """The Services that are not, or not wholly, served are now these, and why. Said when it changes."""

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Load balancers ask for the health of these Services, each at the port of its own (healthCheckNodePort), and
        this node has so many ready endpoints of it. Said when it changes."""


class NoObserver:
    """Nobody wants to know."""

    def queued(self) -> None:
        """Not told."""

    def settled(self, trigger_times: Sequence[str]) -> None:
        """Not told."""

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        """Not told."""

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        """Not told."""

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """Not told."""

    def failed(self, error: KubeproxyError) -> None:
        """Not told."""

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """Not told."""

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Not told."""
