"""Which connections an HTTP server keeps when more come than it can serve. Pure.

Fairness is by the client's address: it is what one attacker cannot have many of. A flood from one address is cut before
it costs an answer, and where there are still too many connections the address that has most gives one up. So a probe
of the kubelet or of a load balancer, which has one or two, gets its answer.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

RATE: Final = 100.0
"""New connections per second that one address of another host may make. A load balancer makes one in some seconds."""
LOCAL_RATE: Final = 2000.0
"""The same for an address of this host: it is shared by the kubelet, scripts and every other local client."""
BURST_S: Final = 2.0
"""For how many seconds the rate may be used at once, after a pause."""
ADDRESSES: Final = 4096
"""How many addresses' rates are remembered; the one that was seen longest ago is forgotten."""
LOCAL_SHARE: Final = 4
"""Addresses of this host give up a connection last, unless one has more than this part of all (1/n)."""

T = TypeVar("T")


def sharer(address: str) -> str:
    """Whose connections count together: an IPv4 address, or the /64 network of an IPv6 address, which is one host's."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))


class Admission:
    """A bucket of new connections for each address."""

    def __init__(self, *, rate: float = RATE, local_rate: float = LOCAL_RATE) -> None:
        self._rate, self._local_rate = rate, local_rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Per sharer: how many more it may make, and as of when. The one seen longest ago stands first."""

    def admit(self, who: str, now: float, *, local: bool) -> bool:
        """Whether a new connection of this sharer is served."""
        rate = self._local_rate if local else self._rate
        left, since = self._buckets.get(who, (rate * BURST_S, now))
        left = min(rate * BURST_S, left + (now - since) * rate)
        admitted = left >= 1.0
        self._buckets[who] = (left - 1.0 if admitted else left, now)
        self._buckets.move_to_end(who)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        return admitted


class Kept(Generic[T]):
    """The open connections, by sharer, each sharer's oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_sharer: dict[str, dict[T, None]] = {}
        self._local: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        for mine in self._by_sharer.values():
            yield from mine

    def add(self, who: str, connection: T, *, local: bool) -> None:
        """One more is open."""
        self._by_sharer.setdefault(who, {})[connection] = None
        if local:
            self._local.add(who)
        self._count += 1

    def remove(self, who: str, connection: T) -> None:
        """It is open no more; nothing happens if it was not."""
        mine = self._by_sharer.get(who, {})
        if connection not in mine:
            return
        del mine[connection]
        self._count -= 1
        if not mine:
            del self._by_sharer[who]
            self._local.discard(who)

    def surplus(self) -> T | None:
        """The connection to give up, beyond the limit: the oldest of the sharer that has most; None: there is room."""
        if self._count <= self._limit:
            return None
        return next(iter(self._by_sharer[max(self._by_sharer, key=self._weight)]))

    def _weight(self, who: str) -> int:
        count = len(self._by_sharer[who])
        return 0 if who in self._local and count <= self._limit // LOCAL_SHARE else count
