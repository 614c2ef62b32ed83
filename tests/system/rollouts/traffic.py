"""The Service of every experiment, and the traffic to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.support.lab import Host
from tests.system.e2e.stage import VIP, Object, service
from tests.system.e2e.steady_clients import Crowd

WEB: Final = (VIP, 80)
"""The address of the Service."""
POD_NAMES: Final = r"web-([a-z0-9]+-)?[a-z0-9]{5}"
"""The answers of the pods: a ReplicationController's or a ReplicaSet's name, and five letters of the server's."""
LEAD_S: Final = 2.0
"""How long the clients go on before and after a rollout: losses that come late belong to it, too."""


@dataclass(frozen=True, slots=True)
class Load:
    """New connections a second, and long ones at once; each of these ends by itself after so many seconds."""

    rate: int = 300
    long: int = 50
    lasting_s: tuple[float, float] = (2.0, 6.0)

    def on(self, host: Host) -> Crowd:
        """The clients on this host; a context manager, which has their report at its end."""
        return Crowd(host, WEB, rate=self.rate, long=self.long, name=POD_NAMES, lasting_s=self.lasting_s)


def web() -> Object:
    """The Service of the pods with the label ``app: web``."""
    found = service()
    return {**found, "spec": {**found["spec"], "selector": {"app": "web"}}}
