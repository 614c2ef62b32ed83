"""Decides which connections an HTTP server keeps when there are too many.

Limits hold per client address, because one attacker has few addresses. A flood from one address is refused before any
request of it is read. If there are still too many connections, the address with the most connections loses one. So a
probe of the kubelet or of a load balancer, with its one or two connections, gets its answer.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

RATE: Final = 100.0
"""How many new connections per second an address of another host may open. A load balancer opens one every few
seconds."""
LOCAL_RATE: Final = 2000.0
"""How many new connections per second an address of this host may open. All local clients share such an address."""
BURST_S: Final = 2.0
"""For how many seconds an unused allowance accumulates."""
ADDRESSES: Final = 4096
"""The number of addresses whose rate is recorded. Beyond that number the address that was seen longest ago is
dropped."""
LOCAL_SHARE: Final = 4
"""Connections from this host are closed last, unless one address of this host has more than this fraction (1/n) of the
limit."""

T = TypeVar("T")


def client_key(address: str) -> str:
    """Return the key by which a client is limited: its IPv4 address, or the /64 network of its IPv6 address, because
    one host can use every address of that network."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64))


class Admission:
    """A token bucket of new connections for each client key."""

    def __init__(self, *, rate: float = RATE, local_rate: float = LOCAL_RATE) -> None:
        self._rate, self._local_rate = rate, local_rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """For each client key, how many connections it may still open, and when that number was computed. The key that
        was seen longest ago comes first."""

    def admit(self, key: str, now: float, *, local: bool) -> bool:
        """Return whether a new connection of this client key may be served. `now` is in seconds."""
        rate = self._local_rate if local else self._rate
        left, since = self._buckets.get(key, (rate * BURST_S, now))
        left = min(rate * BURST_S, left + (now - since) * rate)
        admitted = left >= 1.0
        self._buckets[key] = (left - 1.0 if admitted else left, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        return admitted


class Kept(Generic[T]):
    """The open connections by client key, with the oldest of each key first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_key: dict[str, dict[T, None]] = {}
        self._local: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        for connections in self._by_key.values():
            yield from connections

    def add(self, key: str, connection: T, *, local: bool) -> None:
        """Add an open connection."""
        self._by_key.setdefault(key, {})[connection] = None
        if local:
            self._local.add(key)
        self._count += 1

    def remove(self, key: str, connection: T) -> None:
        """Remove a connection if it is known."""
        connections = self._by_key.get(key, {})
        if connection not in connections:
            return
        del connections[connection]
        self._count -= 1
        if not connections:
            del self._by_key[key]
            self._local.discard(key)

    def surplus(self) -> T | None:
        """Return the connection to close if there are more than the limit: the oldest one of the key with the most
        connections. Return None if the limit is not exceeded."""
        if self._count <= self._limit:
            return None
        return next(iter(self._by_key[max(self._by_key, key=self._weight)]))

    def _weight(self, key: str) -> int:
        count = len(self._by_key[key])
        return 0 if key in self._local and count <= self._limit // LOCAL_SHARE else count
