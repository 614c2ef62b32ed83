"""Claims on node ports, and on service ports at this node's own addresses.

A redirect takes a port from any process of this host that listens there; and a process that comes later would listen
and never be reached. So each such port is held by a bound socket that never listens, or it is not redirected. A claim
on the wildcard address stands for every address of its family, as in the kernel.

Claims belong to destinations, not to frontends: a frontend that takes over a destination takes over its claim. A claim
without a claimant is kept until `release`, for the kernel may still redirect clients there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeproxy.dataplane.interface import PortReserver, Reservation
from kubeproxy.model import NODE_PORTS, Address, Destination, Family, FrontendName, Protocol, Target, family_of


class _Place(NamedTuple):
    """A port number in one protocol and family; two sockets at one place exclude each other."""

    protocol: Protocol
    family: Family
    port: int


@dataclass(slots=True)
class _Holding:
    """The sockets held at a place, and the frontends that claim it."""

    claimants: dict[Address, frozenset[FrontendName]] = field(default_factory=dict)
    held: dict[Address, Reservation] = field(default_factory=dict)
    faults: dict[Address, str] = field(default_factory=dict)

    def unavailable(self) -> dict[Address, frozenset[FrontendName]]:
        """The addresses that could not be bound, and their claimants."""
        return {address: self.claimants.get(address, frozenset()) for address in self.faults}


class NodePortClaims:
    """The claims of all frontends. A method that may change what is available returns the affected frontends."""

    def __init__(self, reserver: PortReserver, *, is_proxy_port: Callable[[Protocol, int], bool]) -> None:
        self._reserver = reserver
        self._is_proxy_port = is_proxy_port
        self._places: dict[_Place, _Holding] = {}
        self._claimed: dict[FrontendName, frozenset[Destination]] = {}
        self._faulty: dict[_Place, None] = {}
        self._idle: dict[_Place, None] = {}
        """Places with a socket that no frontend claims."""

    @property
    def faults(self) -> Mapping[Destination, str]:
        """Destinations that are not available, and why."""
        return {
            Destination(address, place.protocol, place.port): fault
            for place in self._faulty
            for address, fault in self._places[place].faults.items()
        }

    def claimants(self, destination: Destination) -> frozenset[FrontendName]:
        """The frontends that claim a destination."""
        return self._places[_place(destination)].claimants[destination.address]

    def unavailable(self, name: FrontendName) -> frozenset[Destination]:
        """The destinations that a frontend claims and does not get."""
        return frozenset(
            destination
            for destination in self._claimed.get(name, ())
            if destination.address in self._places[_place(destination)].faults
        )

    def claim(self, name: FrontendName, destinations: frozenset[Destination]) -> set[FrontendName]:
        """From now on a frontend claims these, and no others."""
        before = self._claimed.get(name, frozenset())
        if destinations == before:
            return set()
        if destinations:
            self._claimed[name] = destinations
        else:
            del self._claimed[name]
        for destination in before - destinations:
            claimants = self._places[_place(destination)].claimants
            claimants[destination.address] -= {name}
            if not claimants[destination.address]:
                del claimants[destination.address]
        for destination in destinations - before:
            claimants = self._places.setdefault(_place(destination), _Holding()).claimants
            claimants[destination.address] = claimants.get(destination.address, frozenset()) | {name}
        return self._arrange({_place(destination): None for destination in sorted(before ^ destinations)})

    def retry(self) -> set[FrontendName]:
        """Try again to bind what is not available."""
        return self._arrange(list(self._faulty))

    def release(self, in_use: Callable[[Destination], bool]) -> set[FrontendName]:
        """Release ports without a claimant, unless a rule still uses them."""
        places = list(self._idle)
        for place in places:
            holding = self._places[place]
            for address in holding.held.keys() - holding.claimants.keys():
                if not in_use(Destination(address, place.protocol, place.port)):
                    holding.held.pop(address).release()
        return self._arrange(places)

    def close(self) -> None:
        """Release all ports."""
        for holding in self._places.values():
            for reservation in holding.held.values():
                reservation.release()
        self._places.clear()
        self._claimed.clear()
        self._faulty.clear()
        self._idle.clear()

    def _arrange(self, places: Iterable[_Place]) -> set[FrontendName]:
        changed: set[FrontendName] = set()
        for place in places:
            holding = self._places[place]
            before = holding.unavailable()
            self._hold(place, holding)
            now = holding.unavailable()
            for address in before.keys() ^ now.keys():
                changed |= before.get(address, frozenset()) | now.get(address, frozenset())
            _mark(self._faulty, place, bool(holding.faults))
            _mark(self._idle, place, bool(holding.held.keys() - holding.claimants.keys()))
            if not (holding.claimants or holding.held):
                del self._places[place]
        return changed

    def _hold(self, place: _Place, holding: _Holding) -> None:
        """Bind claimed ports that are not held. The wildcard replaces single addresses, as it includes them."""
        wildcard = NODE_PORTS[place.family]
        holding.faults.clear()
        if wildcard in holding.claimants and wildcard not in holding.held:
            for reservation in holding.held.values():
                reservation.release()
            holding.held.clear()
            self._bind(place, wildcard, holding)
        if wildcard not in holding.held:
            for address in sorted(holding.claimants.keys() - holding.held.keys() - {wildcard}):
                self._bind(place, address, holding)

    def _bind(self, place: _Place, address: Address, holding: _Holding) -> None:
        try:
            holding.held[address] = self._reserver.reserve(place.protocol, address, place.port, claim=True)
        except OSError as error:
            holding.faults[address] = self._explain(place, address, error)

    def _explain(self, place: _Place, address: Address, error: OSError) -> str:
        if address == NODE_PORTS[place.family]:
            what = f"node port {place.port} ({place.protocol}, {place.family})"
        else:
            what = f"{place.protocol} {Target(address, place.port)}, an address of this node,"
        if error.errno != errno.EADDRINUSE:
            return f"{what} cannot be held and is not served: {error.strerror or error}; it is tried again"
        if self._is_proxy_port(place.protocol, place.port):
            return f"{what} is not served: it is one of the proxy ports; keep --proxy-port-range apart from node ports"
        return f"{what} is not served: another process of this host uses that port; it is tried again"


def _place(destination: Destination) -> _Place:
    return _Place(destination.protocol, family_of(destination.address), destination.port)


def _mark(marks: dict[_Place, None], place: _Place, on: bool) -> None:
    if on:
        marks[place] = None
    else:
        marks.pop(place, None)
