"""Finds the endpoints to which the kernel may send their own connections back. Such connections are masqueraded, so
that their answers come back through this node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set

from kubeproxy.model import Address, FrontendName

_NONE: frozenset[Address] = frozenset()


class Hairpins:
    """The addresses of endpoints that need masquerading, by frontend. A frontend without such an endpoint has no
    entry."""

    def __init__(self) -> None:
        self._of: dict[FrontendName, frozenset[Address]] = {}
        self._frontends: Counter[Address] = Counter()
        """The number of frontends that have each address."""
        self._moved: dict[Address, None] = {}

    def put(self, name: FrontendName, addresses: Iterable[Address]) -> None:
        """Set the hairpin addresses of a frontend. An empty set removes the frontend."""
        before, now = self._of.get(name, _NONE), frozenset(addresses)
        if now == before:
            return
        if now:
            self._of[name] = now
        else:
            del self._of[name]
        for address in now - before:
            self._frontends[address] += 1
        for address in before - now:
            self._frontends[address] -= 1
            if not self._frontends[address]:
                del self._frontends[address]
        self._moved.update(dict.fromkeys(now ^ before))

    @property
    def addresses(self) -> set[Address]:
        """Return a copy of all addresses."""
        return set(self._frontends)

    @property
    def has_moved(self) -> bool:
        """Return whether an address may have been added or removed since the last `settle`."""
        return bool(self._moved)

    def moved(self, in_force: Set[Address]) -> dict[Address, bool]:
        """Return the addresses that were added (true) or removed (false) since the last `settle`, without those for
        which `in_force` is already right."""
        return {
            address: address in self._frontends
            for address in self._moved
            if (address in self._frontends) is not (address in in_force)
        }

    def settle(self) -> None:
        """Record that the kernel is now being given the present addresses."""
        self._moved.clear()
