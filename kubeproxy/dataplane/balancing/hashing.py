"""The policy that picks a client's endpoint by a hash of the client's address.

The table and the hash are those of the kernel path (`kubeproxy.model.maglev`). So a client gets the same endpoint on
both paths, on every node, and after a restart.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import lru_cache

from kubeproxy.model import Balancing, Scheduler, Target
from kubeproxy.model.maglev import place_of, table_of, usable_at

REMEMBERED = 1 << 14
"""The number of clients whose hash is cached. Most clients come more than once, and computing the hash is most of the
cost of a pick."""


class Hashing:
    """A `Policy` that picks by a hash of the client's address."""

    __slots__ = ("_by_port", "_endpoints", "_seed", "_table")

    def __init__(self) -> None:
        self._endpoints: tuple[Target, ...] = ()
        self._table: tuple[Target, ...] = ()
        self._seed = 0
        self._by_port = False

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """See `Policy.update`."""
        self._endpoints = tuple(endpoints)
        self._table = table_of(endpoints, balancing)
        self._seed, self._by_port = balancing.seed, balancing.scheduler is Scheduler.MAGLEV

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """Pick an endpoint; see `Policy.pick`. If the endpoint is not usable, the client gets the next one in its own
        order."""
        if not self._table:
            return None
        if self._by_port:
            place = place_of(_packed(client), port, seed=self._seed, size=len(self._table))
        else:
            place = _place_of_address(client, self._seed, len(self._table))
        return usable_at(self._table, place, usable)

    def copy(self) -> Hashing:
        """Return the policy itself, because a pick changes nothing."""
        return self

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, in no particular order."""
        return self._endpoints


@lru_cache(maxsize=REMEMBERED)
def _place_of_address(client: str, seed: int, size: int) -> int:
    return place_of(_packed(client), None, seed=seed, size=size)


def _packed(client: str) -> bytes:
    """Return an address in network byte order, without the zone of a link-local address."""
    if ":" in client:
        return socket.inet_pton(socket.AF_INET6, client.partition("%")[0])
    return socket.inet_aton(client)
