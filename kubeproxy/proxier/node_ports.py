"""Node ports, held: and service ports at addresses that are this node's own.

A redirect takes a port away from whatever process of this host may listen there; and a process that comes later would
listen and never be reached. So each such port is held by a bound socket that never listens, or it is not redirected.
A claim on the wildcard address stands for every address of its family, as in the kernel.

Claims belong to destinations, not to frontends: who takes over a destination takes over its claim. One that nobody
wants any more is kept until `release`, for the kernel may still lead clients there.

What is never claimed, because it is not a Service's to have:

* ports that are reserved: those of this daemon's own servers, `Restrictions.reserved_ports`, health check node ports;
* at single addresses: another Service's node port;
* by spec.externalIPs alone, which every author of a Service may write: ports beyond `Restrictions.external_ports`, and
  any port at which another process was seen to listen since the start or the last reload: a claim that waited for such
  a port would have it as soon as the process restarts, and keep it from coming back.

A node port at which another process listens is a conflict of another kind, for the cluster gave that port to a Service:
`NodePortConflict` decides. Where the port is redirected all the same, the process is named in `notes`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeproxy.dataplane.interface import PortReserver, Reservation
from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Family,
    FrontendName,
    Protocol,
    ServiceName,
    Target,
    family_of,
)
from kubeproxy.netfilter.port_holders import Holder
from kubeproxy.proxier.restrictions import NO_RESTRICTIONS, NodePortConflict, Restrictions

FindHolders = Callable[[Protocol, Address, int], Sequence[Holder]]
"""The processes that have a port at an address; OSError when the kernel does not tell."""


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
    """What could not be had, and why."""
    final: set[Address] = field(default_factory=set)
    """Of these, what is not to be had: trying again is of no use."""
    notes: dict[Address, str] = field(default_factory=dict)
    """What is had though it is not held, and why."""

    @property
    def idle(self) -> set[Address]:
        """Held without need."""
        return self.held.keys() - (self.users.keys() - self.faults.keys())

    @property
    def awaited(self) -> set[Address]:
        """What trying again may mend."""
        return (self.faults.keys() - self.final) | self.notes.keys()

    def denied(self) -> dict[Address, frozenset[FrontendName]]:
        """The addresses that could not be had, and who wanted them."""
        return {address: self.users.get(address, frozenset()) for address in self.faults}


class NodePortClaims:
    """Every method that may change what is granted returns the frontends for which it did."""

    def __init__(
        self,
        reserver: PortReserver,
        *,
        is_proxy_port: Callable[[Protocol, int], bool],
        find_holders: FindHolders = lambda protocol, address, port: (),
    ) -> None:
        self._reserver = reserver
        self._is_proxy_port = is_proxy_port
        self._find_holders = find_holders
        self._restrictions = NO_RESTRICTIONS
        self._health: Mapping[int, ServiceName] = {}
        self._seen: dict[tuple[Protocol, int], str] = {}
        """Ports at which another process was seen, and which; for every family, as many processes listen in both."""
        self._external: dict[FrontendName, frozenset[Destination]] = {}
        """What frontends want by spec.externalIPs."""
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

    @property
    def awaited(self) -> set[Destination]:
        """What `retry` may mend: what is not had for now, and what is not held."""
        return {
            Destination(address, place.protocol, place.port)
            for place in self._faulty
            for address in self._places[place].awaited
        }

    @property
    def notes(self) -> Mapping[Destination, str]:
        """What is had though another process has it, too, and which process that is."""
        return {
            Destination(address, place.protocol, place.port): note
            for place in self._faulty
            for address, note in self._places[place].notes.items()
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

    def use(self, restrictions: Restrictions) -> set[FrontendName]:
        """These restrictions hold from now on; and what other processes had is forgotten."""
        self._restrictions = restrictions
        self._seen.clear()
        return self._arrange(list(self._places))

    def reserve_for_health(self, ports: Mapping[int, ServiceName]) -> set[FrontendName]:
        """These are the health check node ports now, and their Services."""
        changed = ports.items() ^ self._health.items()
        self._health = dict(ports)
        numbers = {port for port, _ in changed}
        concerned = [it for it in self._places if it.protocol is Protocol.TCP and it.port in numbers] if numbers else ()
        return self._arrange(concerned)

    def want(
        self, name: FrontendName, destinations: frozenset[Destination], *, external: Set[Destination] = frozenset()
    ) -> set[FrontendName]:
        """From now on a frontend wants these, and nothing else; some of them (`external`) by spec.externalIPs."""
        before = self._wants.get(name, frozenset())
        external_before = self._external.get(name, frozenset())
        by_externals = destinations & external
        if (destinations, by_externals) == (before, external_before):
            return set()
        _set_or_drop(self._wants, name, destinations)
        _set_or_drop(self._external, name, by_externals)
        for destination in before - destinations:
            users = self._places[_place(destination)].users
            users[destination.address] -= {name}
            if not users[destination.address]:
                del users[destination.address]
        for destination in destinations - before:
            users = self._places.setdefault(_place(destination), _Holding()).users
            users[destination.address] = users.get(destination.address, frozenset()) | {name}
        concerned = (before ^ destinations) | (external_before ^ by_externals)
        return self._arrange({_place(destination): None for destination in sorted(concerned)})

    def retry(self) -> set[FrontendName]:
        """Try again to get what was denied."""
        return self._arrange(list(self._faulty))

    def release(self, in_use: Callable[[Destination], bool]) -> set[FrontendName]:
        """Give back what nobody wants, unless it is still in use."""
        places = list(self._idle)
        for place in places:
            holding = self._places[place]
            for address in holding.idle:
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
        self._external.clear()
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
            _mark(self._faulty, place, bool(holding.faults or holding.notes))
            _mark(self._idle, place, bool(holding.idle))
            if not (holding.users or holding.held):
                del self._places[place]
        return changed

    def _hold(self, place: _Place, holding: _Holding) -> None:
        """Bind what is wanted and missing. Ours at single addresses make room for the wildcard, which includes them."""
        wildcard = NODE_PORTS[place.family]
        holding.faults.clear()
        holding.final.clear()
        holding.notes.clear()
        for address in holding.users:
            if reason := self._refusal(place, address, holding):
                holding.faults[address] = f"{_what(place, address)} is not served: {reason}"
                holding.final.add(address)
        wanted = holding.users.keys() - holding.faults.keys()
        if wildcard in wanted and wildcard not in holding.held:
            for reservation in holding.held.values():
                reservation.release()
            holding.held.clear()
            self._bind(place, wildcard, holding)
        if wildcard not in holding.held:
            for address in sorted(wanted - holding.held.keys() - {wildcard}):
                self._bind(place, address, holding)

    def _refusal(self, place: _Place, address: Address, holding: _Holding) -> str:
        """Why a port is not to be had, whether or not it is free; empty if it is."""
        if reason := self._restrictions.reserved(place.protocol, place.port):
            return reason
        if place.protocol is Protocol.TCP and place.port in self._health:
            return f"that is the health check node port of {self._health[place.port]}"
        wildcard = NODE_PORTS[place.family]
        if address == wildcard:
            return ""
        users = {name.service_port.service for name in holding.users[address]}
        if others := sorted({name.service_port.service for name in holding.users.get(wildcard, ())} - users):
            return f"that is the node port of {others[0]}"
        destination = Destination(address, place.protocol, place.port)
        if not all(destination in self._external.get(name, ()) for name in holding.users[address]):
            return ""
        if not self._restrictions.permits_external(place.port):
            return "external addresses have only kubeproxy.externalPortsOnNode at this node's own addresses"
        if address not in holding.held and (seen := self._seen.get((place.protocol, place.port))):
            return f"{seen} was seen to have that port; it is tried again after a reload (SIGHUP)"
        return ""

    def _bind(self, place: _Place, address: Address, holding: _Holding) -> None:
        try:
            holding.held[address] = self._reserver.reserve(place.protocol, address, place.port, claim=True)
        except OSError as error:
            what = _what(place, address)
            if error.errno != errno.EADDRINUSE:
                reason = f"cannot be held and is not served: {error.strerror or error}; it is tried again"
                holding.faults[address] = f"{what} {reason}"
            elif self._is_proxy_port(place.protocol, place.port):
                reason = "it is one of the proxy ports; keep --proxy-port-range apart from node ports"
                holding.faults[address] = f"{what} is not served: {reason}"
            else:
                self._yield_or_take(place, address, holding)

    def _yield_or_take(self, place: _Place, address: Address, holding: _Holding) -> None:
        """Another process of this host has the port."""
        what = _what(place, address)
        try:
            holders: Sequence[Holder] | None = self._find_holders(place.protocol, address, place.port)
        except OSError:
            holders = None
        names = ", ".join(map(str, holders or ())) or "another process"
        if address == NODE_PORTS[place.family] and self._takes(holders):
            holding.notes[address] = f"{what} is served, though it is in use by another process of this host: {names}"
            return
        holding.faults[address] = (
            f"{what} is not served: another process of this host uses that port: {names}; it is tried again"
        )
        strangers = [holder for holder in holders or () if not holder.ours]
        if strangers:
            self._seen[place.protocol, place.port] = str(strangers[0])
        if strangers and (reason := self._refusal(place, address, holding)):
            holding.faults[address] = f"{what} is not served: {reason}"
            holding.final.add(address)

    def _takes(self, holders: Sequence[Holder] | None) -> bool:
        """Whether a node port is redirected though these processes have it. A process that has it and does not listen
        is not among them; a redirect takes no client from it."""
        conflict = self._restrictions.node_port_conflict
        if conflict is NodePortConflict.TAKE_UNPRIVILEGED:
            return holders is not None and not any(holder.privileged for holder in holders)
        return conflict is NodePortConflict.TAKE


def _what(place: _Place, address: Address) -> str:
    if address == NODE_PORTS[place.family]:
        return f"node port {place.port} ({place.protocol}, {place.family})"
    return f"{place.protocol} {Target(address, place.port)}, an address of this node,"


def _place(destination: Destination) -> _Place:
    return _Place(destination.protocol, family_of(destination.address), destination.port)


def _mark(marks: dict[_Place, None], place: _Place, on: bool) -> None:
    if on:
        marks[place] = None
    else:
        marks.pop(place, None)


def _set_or_drop(
    book: dict[FrontendName, frozenset[Destination]], name: FrontendName, value: frozenset[Destination]
) -> None:
    """An entry that says nothing is none."""
    if value:
        book[name] = value
    else:
        book.pop(name, None)
