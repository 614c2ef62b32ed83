"""Proxy ports that many frontends share, because they get no port of their own.

A worker finds a client's frontend by the client's original destination. So only one of the frontends of a shared port
may have a destination. Two scopes of one service port, or two Services that claim the same address, are on different
ports, and the rules choose between the ports. Clients of frontends without endpoints are redirected to a port that
refuses or drops them, because rules can refuse only by port.

A worker identifies a node port by its number alone. So a node port never shares a proxy port with another frontend's
address that has the same port number. Otherwise a client of that address could be taken for a client of the node port
if its own frontend is removed before it is accepted, although source ranges may exclude it from the node port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Final

from kubeproxy.dataplane.interface import Reservation
from kubeproxy.dataplane.messages import Listen
from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Frontend,
    FrontendName,
    Protocol,
    ServicePortName,
    Verdict,
    family_of,
)
from kubeproxy.proxier.port_allocator import NoPortError, Ports

PORTS_MAX: Final = 16
"""The largest number of shared ports of one kind. More than two are needed only if Services claim one another's
addresses."""


@dataclass(slots=True, eq=False)
class SharedPort:
    """A proxy port that many frontends share."""

    listen: Listen
    """The message that opens the port's listener."""
    reservation: Reservation
    serves: bool = True
    """Whether workers serve the port's clients. Otherwise the rules refuse or drop them."""
    listens: bool = False
    """Whether the data plane has confirmed that the port's listener is open."""
    _holders: dict[Destination, FrontendName] = field(default_factory=dict)
    _addresses: Counter[int] = field(default_factory=Counter)
    """How many addresses (without node ports) of the port's frontends have each port number."""

    def suits(self, frontend: Frontend) -> bool:
        """Return whether a frontend may use this port without a conflict."""
        if not self.serves:
            return True
        if frontend.affinity_timeout_s is not None and not self.listen.pinned:
            return False
        holders, name, wanted = self._holders, frontend.name, frontend.destinations
        for destination in wanted:
            node_port = destination._replace(address=NODE_PORTS[name.family])
            if holders.get(destination, name) != name or holders.get(node_port, name) != name:
                return False
            if destination == node_port and (held := self._addresses[destination.port]):
                own = (it for it in wanted if it.port == destination.port and it != destination)
                if held > sum(holders.get(it) == name for it in own):
                    return False
        return True

    def hold(self, name: FrontendName, before: Iterable[Destination], now: Iterable[Destination]) -> None:
        """Replace the destinations that a frontend has on this port."""
        if not self.serves:
            return
        any_address = NODE_PORTS[name.family]
        for destination in before:
            if self._holders.pop(destination, None) is not None and destination.address != any_address:
                self._addresses[destination.port] -= 1
        for destination in now:
            self._holders[destination] = name
            self._addresses[destination.port] += destination.address != any_address


class SharedPorts:
    """The shared ports. They are reserved when first needed, and are then kept."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._of_kind: dict[tuple[Protocol, Address, bool], list[SharedPort]] = {}
        self._refusing: dict[tuple[Protocol, Address], dict[Verdict, SharedPort]] = {}
        self._numbers = count(1)

    def of(self, frontend: Frontend, address: Address) -> SharedPort:
        """Return the first port at `address` that a frontend may use. If there is none, reserve another. Raise
        NoPortError if that is not possible."""
        pinned = frontend.affinity_timeout_s is not None
        kind = frontend.protocol, address, pinned
        known = self._of_kind.get(kind, [])
        for port in known:
            if port.suits(frontend):
                return port
        if len(known) == PORTS_MAX:
            raise NoPortError(f"{PORTS_MAX} other Services claim its addresses")
        port = self._reserve(frontend.protocol, address, serves=True, pinned=pinned)[-1]
        self._of_kind[kind] = [*known, port]
        return port

    def without_worker(self, protocol: Protocol, address: Address) -> SharedPort:
        """Return the port that refuses the clients of a frontend that only the kernel path serves. Raise NoPortError if
        it cannot be reserved."""
        self._reserve(protocol, address)
        return self._refusing[protocol, address][Verdict.REFUSE]

    def _reserve(
        self, protocol: Protocol, address: Address, *, serves: bool = False, pinned: bool = False
    ) -> list[SharedPort]:
        """Reserve the ports that refuse and drop clients, unless they exist already. With `serves`, also reserve a new
        port that serves. Either all of them are reserved, or none."""
        first = (protocol, address) not in self._refusing
        got: list[SharedPort] = []
        try:
            for each in [*(False for _ in Verdict if first), *((True,) if serves else ())]:
                reservation = self._ports.reserve(protocol, address)
                name = FrontendName(ServicePortName("", "shared", str(next(self._numbers))), family_of(address))
                listen = Listen(name, protocol, address, reservation.port, shared=True, pinned=each and pinned)
                got.append(SharedPort(listen, reservation, each))
        except NoPortError:
            for port in got:
                self._ports.release(protocol, port.reservation)
            raise
        if first:
            self._refusing[protocol, address] = dict(zip(Verdict, got, strict=False))
        return got

    def refusing(self, listen: Listen) -> dict[Verdict, SharedPort]:
        """Return the ports that refuse and drop the clients of frontends without endpoints. These ports have listeners,
        too, because the rules drop packets to a port without one before they would refuse them."""
        return self._refusing[listen.protocol, listen.address]

    def close(self) -> None:
        """Release the ports."""
        for port in chain(*self._of_kind.values(), *(refusing.values() for refusing in self._refusing.values())):
            self._ports.release(port.listen.protocol, port.reservation)
        self._refusing.clear()
        self._of_kind.clear()
