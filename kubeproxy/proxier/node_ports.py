"""Node ports, held: and service ports at addresses that are this node's own.

A redirect takes a port away from whatever process of this host may listen there; and a process that comes later would
listen and never be reached. So each such port is held by a bound socket that never listens, or it is not redirected.
A claim on the wildcard address stands for every address of its family, as in the kernel.

Claims belong to destinations, not to frontends: who takes over a destination takes over its claim. One that nobody
wants any more is kept until `release`, for the kernel may still lead clients there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeproxy.dataplane.interface import PortReserver, Reservation
from kubeproxy.model import NODE_PORTS, Address, Destination, Family, FrontendName, Protocol, Target, family_of


class _Place(NamedTuple):
    """Ports that exclude each other are those of one place."""

    protocol: Protocol
    family: Family
    port: int


@dataclass(slots=True)
class _Holding:
    """What is held at a place, and for whom."""

    users: dict[Address, frozenset[FrontendName]] = field(default_factory=dict)
    held: dict[Address, Reservation] = field(default_factory=dict)
    faults: dict[Address, str] = field(default_factory=dict)

    def denied(self) -> dict[Address, frozenset[FrontendName]]:
        """The addresses that could not be had, and who wanted them."""
        return {address: self.users.get(address, frozenset()) for address in self.faults}


class NodePortClaims:
    """Every method that may change what is granted returns the frontends for which it did."""

    def __init__(self, reserver: PortReserver, *, is_proxy_port: Callable[[Protocol, int], bool]) -> None:
        self._reserver = reserver
        self._is_proxy_port = is_proxy_port
        self._places: dict[_Place, _Holding] = {}
        self._wants: dict[FrontendName, frozenset[Destination]] = {}
        self._faulty: dict[_Place, None] = {}
        self._idle: dict[_Place, None] = {}
        """Places where something is held that nobody wants."""

    @property
    def faults(self) -> Mapping[Destination, str]:
        """What could not be had, and why."""
        return {
            Destination(address, place.protocol, place.port): fault
            for place in self._faulty
            for address, fault in self._places[place].faults.items()
        }

    def users(self, destination: Destination) -> frozenset[FrontendName]:
        """Who wants a destination."""
        return self._places[_place(destination)].users[destination.address]

    def denied(self, name: FrontendName) -> frozenset[Destination]:
        """What a frontend wanted and did not get."""
        return frozenset(
            destination
            for destination in self._wants.get(name, ())
            if destination.address in self._places[_place(destination)].faults
        )

    def want(self, name: FrontendName, destinations: frozenset[Destination]) -> set[FrontendName]:
        """From now on a frontend wants these, and nothing else."""
        before = self._wants.get(name, frozenset())
        if destinations == before:
            return set()
        if destinations:
            self._wants[name] = destinations
        else:
            del self._wants[name]
        for destination in before - destinations:
            users = self._places[_place(destination)].users
            users[destination.address] -= {name}
            if not users[destination.address]:
                del users[destination.address]
        for destination in destinations - before:
            users = self._places.setdefault(_place(destination), _Holding()).users
            users[destination.address] = users.get(destination.address, frozenset()) | {name}
        return self._arrange({_place(destination): None for destination in sorted(before ^ destinations)})

    def retry(self) -> set[FrontendName]:
        """Try again to get what was denied."""
        return self._arrange(list(self._faulty))

    def release(self, in_use: Callable[[Destination], bool]) -> set[FrontendName]:
        """Give back what nobody wants, unless it is still in use."""
        places = list(self._idle)
        for place in places:
            holding = self._places[place]
            for address in holding.held.keys() - holding.users.keys():
                if not in_use(Destination(address, place.protocol, place.port)):
                    holding.held.pop(address).release()
        return self._arrange(places)

    def close(self) -> None:
        """Give everything back."""
        for holding in self._places.values():
            for reservation in holding.held.values():
                reservation.release()
        self._places.clear()
        self._wants.clear()
        self._faulty.clear()
        self._idle.clear()

    def _arrange(self, places: Iterable[_Place]) -> set[FrontendName]:
        changed: set[FrontendName] = set()
        for place in places:
            holding = self._places[place]
            before = holding.denied()
            self._hold(place, holding)
            now = holding.denied()
            for address in before.keys() ^ now.keys():
                changed |= before.get(address, frozenset()) | now.get(address, frozenset())
            _mark(self._faulty, place, bool(holding.faults))
            _mark(self._idle, place, bool(holding.held.keys() - holding.users.keys()))
            if not (holding.users or holding.held):
                del self._places[place]
        return changed

    def _hold(self, place: _Place, holding: _Holding) -> None:
        """Bind what is wanted and missing. Ours at single addresses make room for the wildcard, which includes them."""
        wildcard = NODE_PORTS[place.family]
        holding.faults.clear()
        if wildcard in holding.users and wildcard not in holding.held:
            for reservation in holding.held.values():
                reservation.release()
            holding.held.clear()
            self._bind(place, wildcard, holding)
        if wildcard not in holding.held:
            for address in sorted(holding.users.keys() - holding.held.keys() - {wildcard}):
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
