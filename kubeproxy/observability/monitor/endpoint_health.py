"""Which endpoints are ill, as the log has it: told when one falls ill, and when that is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubeproxy.dataplane.interface import EjectedEndpoint
from kubeproxy.model import FrontendName, ServicePortName, Target

EJECTED_LOG_AFTER: Final = 2
"""Failures in a row: a pod that ends is often asked once more before the cluster says that it has gone."""
QUIET_S: Final = 60.0
"""How long after its end the same illness is not told of again: one that comes and goes fills no log. If it stays, it
is told of afterwards."""


@dataclass(frozen=True, slots=True)
class News:
    """What has changed since the last look."""

    fallen: Sequence[tuple[ServicePortName, EjectedEndpoint]]
    over: Sequence[tuple[ServicePortName, Target, float]]
    """And for how many seconds it was ill."""


class EndpointHealthLog:
    """Remembers whom it has told of. An endpoint counts once for its service port, however many processes and
    frontends pass it over."""

    def __init__(self) -> None:
        self._since: dict[tuple[ServicePortName, Target], float] = {}
        self._over_at: dict[tuple[ServicePortName, Target], float] = {}

    def look(self, ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]], now: float) -> News:
        """`ill`: who is passed over now (see `DataPlane.ill`)."""
        worst: dict[tuple[ServicePortName, Target], EjectedEndpoint] = {}
        for name, endpoints in ejected.items():
            for one in endpoints:
                case = (name.service_port, one.target)
                if case not in worst or worst[case].failures < one.failures:
                    worst[case] = one
        self._over_at = {case: at for case, at in self._over_at.items() if now - at < QUIET_S}
        known = self._since.keys() | self._over_at.keys()
        fallen = [
            (case[0], one) for case, one in worst.items() if one.failures >= EJECTED_LOG_AFTER and case not in known
        ]
        over = [(*case, now - since) for case, since in self._since.items() if case not in worst]
        for service_port, target, _ in over:
            del self._since[service_port, target]
            self._over_at[service_port, target] = now
        for service_port, one in fallen:
            self._since[service_port, one.target] = now
        return News(fallen, over)
