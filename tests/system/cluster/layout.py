"""The names and addresses of the cluster.

```
outside 172.30.0.100 ─┐
                      br0 on the switch 172.30.0.1: API server :6443, DNS :53, e2e.test
node1 172.30.0.11 ────┤   pods 10.244.1.0/24 on cni0
node2 172.30.0.12 ────┤   pods 10.244.2.0/24 on cni0
node3 172.30.0.13 ────┘   pods 10.244.3.0/24 on cni0        Services 10.96.0.0/16
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SWITCH: Final = "172.30.0.1"
OUTSIDE: Final = "172.30.0.100"
"""A client that is neither a node nor a pod."""
API_PORT: Final = 6443
SERVER: Final = f"https://{SWITCH}:{API_PORT}"
PODS: Final = "10.244.0.0/16"
SERVICES: Final = "10.96.0.0/16"
FIRST_SERVICE: Final = "10.96.0.1"
"""The address of the Service `kubernetes`."""
DNS_SERVICE: Final = "10.96.0.10"
DOMAIN: Final = "cluster.local"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is: its number is from 1 to 9."""

    number: int

    @property
    def name(self) -> str:
        """The name of its Node object, which is its host name, too."""
        return f"node{self.number}"

    @property
    def address(self) -> str:
        """Its address at the switch."""
        return f"172.30.0.1{self.number}"

    @property
    def pods(self) -> str:
        """The range of its pods."""
        return f"10.244.{self.number}.0/24"

    @property
    def zone(self) -> str:
        """One of three zones: tests of topology want that many."""
        return f"zone-{(self.number - 1) % 3 + 1}"


def places(count: int) -> tuple[Place, ...]:
    """The places of that many nodes."""
    return tuple(Place(number) for number in range(1, count + 1))
