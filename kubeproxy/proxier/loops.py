"""Finds endpoints that lead back to this proxy, because the proxy itself accepts connections at their address and port.

The proxy would accept a connection to such an endpoint and dial the endpoint again. It accepts connections at Services'
addresses, and at this node's own addresses with a node port or a proxy port. The index is updated incrementally, so the
cost of a change does not depend on the number of frontends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

from kubeproxy.model import NODE_PORTS, Address, Destination, Frontend, FrontendName, Protocol, Target, family_of
from kubeproxy.proxier.node import UNKNOWN_NODE, NodeFacts

_LOOPBACK = (Address("127.0.0.1"), Address("::1"))


class Loops:
    """An index of the destinations and endpoints of all frontends."""

    def __init__(self, *, is_proxy_port: Callable[[Protocol, int], bool]) -> None:
        self._is_proxy_port = is_proxy_port
        self._facts = UNKNOWN_NODE
        self._taken: dict[Destination, int] = {}
        """For each destination, the number of frontends that have it."""
        self._at: dict[Target, FrontendName | set[FrontendName]] = {}
        """The frontends of each endpoint. An endpoint with a single frontend, as most have, needs no set."""
        self.affected: dict[FrontendName, None] = {}
        """The frontends with endpoints that have begun or ceased to lead back to this proxy. The caller removes those
        that it has processed."""

    def leading_back(self, frontend: Frontend) -> dict[Target, str]:
        """Return the endpoints of a frontend that lead back to this proxy. For each, say in words what it is, such as
        "a node port of this node"."""
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
        """Update the endpoints of a frontend."""
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
        """Update the destinations of a frontend."""
        taken = self._taken
        for destination in now - before:
            count = taken[destination] = taken.get(destination, 0) + 1
            if count == 1:
                self._mark_affected(destination)
        for destination in before - now:
            taken[destination] -= 1
            if not taken[destination]:
                del taken[destination]
                self._mark_affected(destination)

    def proxy_port_changed(self, protocol: Protocol, port: int) -> None:
        """Record that a proxy port was allocated or released."""
        for address in NODE_PORTS.values():
            self._mark_affected(Destination(address, protocol, port))

    def use_facts(self, facts: NodeFacts) -> None:
        """Apply these facts about the node from now on."""
        before, self._facts = self._facts, facts
        moved = _own(before) ^ _own(facts)
        if moved:
            for target, names in self._at.items():
                if target.address in moved:
                    self.affected.update(dict.fromkeys(_each(names)))

    def frontends_at(self, target: Target) -> Iterator[FrontendName]:
        """Return the frontends with this endpoint."""
        names = self._at.get(target)
        return iter(()) if names is None else _each(names)

    def _mark_affected(self, destination: Destination) -> None:
        any_address = destination.address in NODE_PORTS.values()
        for address in _own(self._facts).union(_LOOPBACK) if any_address else (destination.address,):
            names = self._at.get(Target(address, destination.port))
            if names is not None:
                self.affected.update(dict.fromkeys(_each(names)))


def _own(facts: NodeFacts) -> frozenset[Address]:
    return facts.own_addresses | facts.node_addresses


def _each(names: FrontendName | set[FrontendName]) -> Iterator[FrontendName]:
    if isinstance(names, set):
        yield from names
    else:
        yield names
