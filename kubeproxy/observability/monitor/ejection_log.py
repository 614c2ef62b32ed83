"""Decides which ejections of endpoints are logged, and which ends of ejections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubeproxy.dataplane.interface import EjectedEndpoint
from kubeproxy.model import FrontendName, ServicePortName, Target

EJECTED_LOG_AFTER: Final = 2
"""The number of failed dials in a row before the log reports an ejection. A terminating pod often fails once before the
cluster removes it."""
LASTS_S: Final = 300.0
"""After this many seconds of ejection the Service gets an Event, because developers see Events but not the metrics of
nodes."""
QUIET_S: Final = 60.0
"""For how many seconds after the end of an ejection the next ejection of the same endpoint is not logged. If that one
lasts, it is logged later."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of ejections since the last update."""

    ejected: Sequence[tuple[ServicePortName, EjectedEndpoint]]
    restored: Sequence[tuple[ServicePortName, Target, float]]
    """The endpoints whose ejection has ended, each with the seconds that it lasted."""
    removed: Sequence[tuple[ServicePortName, Target, float]]
    """The endpoints that have left their Service while they were ejected, each with the seconds since its ejection. It
    is unknown whether they would answer."""
    lasting: Sequence[tuple[ServicePortName, Target]]
    """The endpoints that have just been ejected for `LASTS_S` seconds."""


class EjectionLog:
    """Remembers the endpoints whose ejection was logged.

    An endpoint counts once for its service port, however many workers and frontends have ejected it.
    """

    def __init__(self, is_endpoint: Callable[[FrontendName, Target], bool]) -> None:
        """`is_endpoint` returns whether the target is still an endpoint of that frontend."""
        self._is_endpoint = is_endpoint
        self._since: dict[tuple[ServicePortName, Target], float] = {}
        self._frontends: dict[tuple[ServicePortName, Target], FrontendName] = {}
        self._restored_at: dict[tuple[ServicePortName, Target], float] = {}
        self._lasting: set[tuple[ServicePortName, Target]] = set()

    def update(self, ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]], now: float) -> Changes:
        """Return the changes to log. `ejected` has all ejected endpoints (see `DataPlane.ejected`). `now` is in
        seconds."""
        worst: dict[tuple[ServicePortName, Target], EjectedEndpoint] = {}
        for name, endpoints in ejected.items():
            for one in endpoints:
                key = (name.service_port, one.target)
                if key not in worst or worst[key].failures < one.failures:
                    worst[key] = one
                    self._frontends[key] = name
        self._restored_at = {key: at for key, at in self._restored_at.items() if now - at < QUIET_S}
        known = self._since.keys() | self._restored_at.keys()
        logged = [(key[0], one) for key, one in worst.items() if one.failures >= EJECTED_LOG_AFTER and key not in known]
        over = [key for key in self._frontends if key not in worst]
        restored: list[tuple[ServicePortName, Target, float]] = []
        removed: list[tuple[ServicePortName, Target, float]] = []
        for key in over:
            name = self._frontends.pop(key)
            if (since := self._since.get(key)) is not None:
                there = self._is_endpoint(name, key[1])
                (restored if there else removed).append((*key, now - since))
        for service_port, target, _ in (*restored, *removed):
            del self._since[service_port, target]
            self._restored_at[service_port, target] = now
        for service_port, one in logged:
            self._since[service_port, one.target] = now
        lasting = {key for key, since in self._since.items() if now - since >= LASTS_S}
        news = sorted(lasting - self._lasting)
        self._lasting = lasting
        return Changes(logged, restored, removed, news)
