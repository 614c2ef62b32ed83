"""Claims node ports, and service ports at this node's own addresses, against other processes of this host.

A redirect takes clients away from any process of this host that listens at the port. A process started later could
listen there and would never get a client. So a port is redirected only if a bound socket, which never listens, holds
it. A claim on the wildcard address includes every address of its family, as in the kernel.

A claim belongs to the destination: if another frontend takes the destination over, the claim stays. A claim without a
claimant is kept until `release`, because the kernel may still redirect clients of the port.

Some ports are never claimed, because a Service must not have them:

- Reserved ports: those of this daemon's own servers, `Restrictions.reserved_ports`, and health check node ports.
- At a single address, the node port of another Service.
- If only spec.externalIPs names the address, which any author of a Service may write: ports outside
  `Restrictions.external_ports`, and any port at which another process was seen to listen since the start or the last
  reload. If such a claim waited for the port, it would take the port when that process restarts, and keep it.

If another process listens at a node port, `NodePortConflict` decides, because the cluster allocated that port to a
Service. If the port is redirected nevertheless, `notes` names the process.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeproxy.dataplane.interface import Reservation
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
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.restrictions import NO_RESTRICTIONS, NodePortConflict, Restrictions


class _Place(NamedTuple):
    """A port number in one protocol and family. Two sockets at the same place conflict."""

    protocol: Protocol
    family: Family
    port: int


@dataclass(slots=True)
class _Holding:
    """The sockets bound at a place, and the frontends that claim it."""

    claimants: dict[Address, frozenset[FrontendName]] = field(default_factory=dict)
    held: dict[Address, Reservation] = field(default_factory=dict)
    faults: dict[Address, str] = field(default_factory=dict)
    """The addresses at which the port is not available, each with the reason."""
    final: set[Address] = field(default_factory=set)
    """The addresses in `faults` for which a retry is useless."""
    notes: dict[Address, str] = field(default_factory=dict)
    """The addresses that are served although no socket holds their port, each with the reason."""

    @property
    def idle(self) -> set[Address]:
        """Return the addresses that are held but not claimed."""
        return self.held.keys() - (self.claimants.keys() - self.faults.keys())

    @property
    def awaited(self) -> set[Address]:
        """Return the addresses for which a retry may succeed."""
        return (self.faults.keys() - self.final) | self.notes.keys()

    def unavailable(self) -> dict[Address, frozenset[FrontendName]]:
        """Return the addresses at which the port could not be bound, each with its claimants."""
        return {address: self.claimants.get(address, frozenset()) for address in self.faults}


class NodePortClaims:
    """The claims of all frontends. Each method that may make destinations available or unavailable returns the affected
    frontends."""

    def __init__(
        self,
        ports: PortSystemCalls,
        *,
        is_proxy_port: Callable[[Protocol, int], bool],
    ) -> None:
        self._reserver = ports.reserver
        self._find_holders = ports.find_holders
        self._is_proxy_port = is_proxy_port
        self._restrictions = NO_RESTRICTIONS
        self._health: Mapping[int, ServiceName] = {}
        self._seen: dict[tuple[Protocol, int], str] = {}
        """The ports at which another process was seen, each with the name of the process. A port counts for both
        families, because many processes listen in both."""
        self._external: dict[FrontendName, frozenset[Destination]] = {}
        """The destinations that each frontend claims by spec.externalIPs."""
        self._places: dict[_Place, _Holding] = {}
        self._claimed: dict[FrontendName, frozenset[Destination]] = {}
        self._faulty: dict[_Place, None] = {}
        self._idle: dict[_Place, None] = {}
        """The places with a socket that no frontend claims."""

    @property
    def faults(self) -> Mapping[Destination, str]:
        """Return the destinations that are not available, each with the reason."""
        return {
            Destination(address, place.protocol, place.port): fault
            for place in self._faulty
            for address, fault in self._places[place].faults.items()
        }

    @property
    def awaited(self) -> set[Destination]:
        """Return the destinations for which `retry` may succeed: those that are not available, and those served
        although no socket holds their port."""
        return {
            Destination(address, place.protocol, place.port)
            for place in self._faulty
            for address in self._places[place].awaited
        }

    @property
    def notes(self) -> Mapping[Destination, str]:
        """Return the destinations that are served although another process has the port, each with the name of the
        process."""
        return {
            Destination(address, place.protocol, place.port): note
            for place in self._faulty
            for address, note in self._places[place].notes.items()
        }

    def claimants(self, destination: Destination) -> frozenset[FrontendName]:
        """Return the frontends that claim a destination."""
        return self._places[_place(destination)].claimants[destination.address]

    def unavailable(self, name: FrontendName) -> frozenset[Destination]:
        """Return the destinations that a frontend claims but cannot have."""
        return frozenset(
            destination
            for destination in self._claimed.get(name, ())
            if destination.address in self._places[_place(destination)].faults
        )

    def use(self, restrictions: Restrictions) -> set[FrontendName]:
        """Apply these restrictions from now on, and forget at which ports other processes were seen."""
        self._restrictions = restrictions
        self._seen.clear()
        return self._arrange(list(self._places))

    def reserve_for_health(self, ports: Mapping[int, ServiceName]) -> set[FrontendName]:
        """Set the health check node ports and their Services."""
        changed = ports.items() ^ self._health.items()
        self._health = dict(ports)
        numbers = {port for port, _ in changed}
        concerned = [it for it in self._places if it.protocol is Protocol.TCP and it.port in numbers] if numbers else ()
        return self._arrange(concerned)

    def claim(
        self, name: FrontendName, destinations: frozenset[Destination], *, external: Set[Destination] = frozenset()
    ) -> set[FrontendName]:
        """Claim these destinations for a frontend, and release all others that it has claimed. `external` has those of
        them whose address is only in spec.externalIPs."""
        before = self._claimed.get(name, frozenset())
        external_before = self._external.get(name, frozenset())
        by_externals = destinations & external
        if (destinations, by_externals) == (before, external_before):
            return set()
        _set_or_drop(self._claimed, name, destinations)
        _set_or_drop(self._external, name, by_externals)
        for destination in before - destinations:
            claimants = self._places[_place(destination)].claimants
            claimants[destination.address] -= {name}
            if not claimants[destination.address]:
                del claimants[destination.address]
        for destination in destinations - before:
            claimants = self._places.setdefault(_place(destination), _Holding()).claimants
            claimants[destination.address] = claimants.get(destination.address, frozenset()) | {name}
        concerned = (before ^ destinations) | (external_before ^ by_externals)
        return self._arrange({_place(destination): None for destination in sorted(concerned)})

    def retry(self) -> set[FrontendName]:
        """Try again to bind the ports that are not available."""
        return self._arrange(list(self._faulty))

    def release(self, in_use: Callable[[Destination], bool]) -> set[FrontendName]:
        """Release ports without a claimant, unless a rule still uses them."""
        places = list(self._idle)
        for place in places:
            holding = self._places[place]
            for address in holding.idle:
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
        self._external.clear()
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
            _mark(self._faulty, place, bool(holding.faults or holding.notes))
            _mark(self._idle, place, bool(holding.idle))
            if not (holding.claimants or holding.held):
                del self._places[place]
        return changed

    def _hold(self, place: _Place, holding: _Holding) -> None:
        """Bind the claimed ports that are not bound yet. A socket on the wildcard address replaces those on single
        addresses."""
        wildcard = NODE_PORTS[place.family]
        holding.faults.clear()
        holding.final.clear()
        holding.notes.clear()
        for address in holding.claimants:
            if reason := self._refusal(place, address, holding):
                holding.faults[address] = f"{_what(place, address)} is not served: {reason}"
                holding.final.add(address)
        wanted = holding.claimants.keys() - holding.faults.keys()
        if wildcard in wanted and wildcard not in holding.held:
            for reservation in holding.held.values():
                reservation.release()
            holding.held.clear()
            self._bind(place, wildcard, holding)
        if wildcard not in holding.held:
            for address in sorted(wanted - holding.held.keys() - {wildcard}):
                self._bind(place, address, holding)

    def _refusal(self, place: _Place, address: Address, holding: _Holding) -> str:
        """Return why a port must not be claimed, even if it is free, or an empty text if it may be claimed."""
        if reason := self._restrictions.reserved(place.protocol, place.port):
            return reason
        if place.protocol is Protocol.TCP and place.port in self._health:
            return f"that is the health check node port of {self._health[place.port]}"
        wildcard = NODE_PORTS[place.family]
        if address == wildcard:
            return ""
        claimants = {name.service_port.service for name in holding.claimants[address]}
        if others := sorted({name.service_port.service for name in holding.claimants.get(wildcard, ())} - claimants):
            return f"that is the node port of {others[0]}"
        destination = Destination(address, place.protocol, place.port)
        if not all(destination in self._external.get(name, ()) for name in holding.claimants[address]):
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
        """Decide what to do with a port that another process of this host uses."""
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
        """Return whether to redirect a node port that these processes use. `holders` has only processes that listen,
        because a redirect takes no client from others. `holders` is None if the processes could not be determined."""
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
    """Set an entry, or remove it if the value is empty."""
    if value:
        book[name] = value
    else:
        book.pop(name, None)
