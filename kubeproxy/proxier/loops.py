"""Which endpoints lead back to this proxy: those that are an address and port at which it takes connections itself.

A connection to such an endpoint would be accepted by the proxy and dialed for again. The proxy takes connections at
Services' addresses, and at this node's own addresses with a node port or a proxy port. Kept as we go: a change of one
destination, or of one frontend's endpoints, costs the same however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

from kubeproxy.model import NODE_PORTS, Address, Destination, Frontend, FrontendName, Protocol, Target, family_of
from kubeproxy.proxier.node import NOWHERE, NodeFacts

_LOOPBACK = (Address("127.0.0.1"), Address("::1"))


class Loops:
    """The destinations of all frontends beside their endpoints."""

    def __init__(self, *, is_proxy_port: Callable[[Protocol, int], bool]) -> None:
        self._is_proxy_port = is_proxy_port
        self._facts = NOWHERE
        self._taken: dict[Destination, int] = {}
        """Destinations, and how many frontends have each."""
        self._at: dict[Target, FrontendName | set[FrontendName]] = {}
        """The frontends that have an endpoint; most endpoints are of one, which is then not worth a set."""
        self.overtaken: dict[FrontendName, None] = {}
        """Frontends of whose endpoints some lead back that did not, or no more. Taken out by those who look."""

    def leading_back(self, frontend: Frontend) -> dict[Target, str]:
        """Those of a frontend's endpoints that lead back here, and what they are."""
        taken, facts, protocol = self._taken, self._facts, frontend.protocol
        found: dict[Target, str] = {}
        for target in frontend.endpoints:
            address, port = target
            if Destination(address, protocol, port) in taken:
                found[target] = "an address of a Service"
            elif facts.is_own(address):
                if Destination(NODE_PORTS[family_of(address)], protocol, port) in taken:
                    found[target] = "a node port of this node"
                elif self._is_proxy_port(protocol, port):
                    found[target] = "a proxy port of this node"
        return found

    def endpoints_changed(self, name: FrontendName, before: Iterable[Target], now: Iterable[Target]) -> None:
        """A frontend has other endpoints than before."""
        old, new = frozenset(before), frozenset(now)
        for target in old - new:
            names = self._at[target]
            if isinstance(names, set):
                names.discard(name)
                if names:
                    continue
            del self._at[target]
        for target in new - old:
            names_or_one = self._at.setdefault(target, name)
            if isinstance(names_or_one, set):
                names_or_one.add(name)
            elif names_or_one != name:
                self._at[target] = {names_or_one, name}

    def destinations_changed(self, before: Set[Destination], now: Set[Destination]) -> None:
        """A frontend takes other destinations than before."""
        taken = self._taken
        for destination in now - before:
            count = taken[destination] = taken.get(destination, 0) + 1
            if count == 1:
                self._overtake(destination)
        for destination in before - now:
            taken[destination] -= 1
            if not taken[destination]:
                del taken[destination]
                self._overtake(destination)

    def proxy_port_changed(self, protocol: Protocol, port: int) -> None:
        """A proxy port is held now, or no more."""
        for address in NODE_PORTS.values():
            self._overtake(Destination(address, protocol, port))

    def use_facts(self, facts: NodeFacts) -> None:
        """This node has these addresses now."""
        before, self._facts = self._facts, facts
        moved = _own(before) ^ _own(facts)
        if moved:
            for target, names in self._at.items():
                if target.address in moved:
                    self.overtaken.update(dict.fromkeys(_each(names)))

    def _overtake(self, destination: Destination) -> None:
        everywhere = destination.address in NODE_PORTS.values()
        for address in _own(self._facts).union(_LOOPBACK) if everywhere else (destination.address,):
            names = self._at.get(Target(address, destination.port))
            if names is not None:
                self.overtaken.update(dict.fromkeys(_each(names)))


def _own(facts: NodeFacts) -> frozenset[Address]:
    return facts.own_addresses | facts.node_addresses


def _each(names: FrontendName | set[FrontendName]) -> Iterator[FrontendName]:
    if isinstance(names, set):
        yield from names
    else:
        yield names
