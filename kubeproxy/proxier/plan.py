"""Compares wanted frontends with existing listeners and returns the next moves.

A listener is opened *before* rules redirect clients to it, and closed *after* they have stopped doing so. So a
redirected client always finds its listener. A move that waits for the kernel is decided again once the awaited rules
are in force. If they never are, nothing is closed, and working listeners keep working.

    wanted       listener                       move
    ------       --------                       ----
    yes          none                           OPEN    reserve a port; Listen, SetEndpoints
    yes          not confirmed                  LISTEN  Listen, SetEndpoints (again, on the same port)
    yes          has other endpoints            UPDATE  SetEndpoints, at once: no rule depends on them
    yes, empty   has endpoints                  ADD_RULE     refuse in the rules; WAIT for the kernel; then UPDATE
    yes          other addresses, verdict or    ADD_RULE     these into the rules
                 proxy port in the rules
    no *         in the rules                   REMOVE_RULE  out of the rules
    no *         out of the rules               WAIT    until these rules are in force
    no *         out of the kernel              CLOSE   Retire; release the port
    either       as wanted                      REST

    * or wanted with another protocol, or at another address: then it is closed first, and opened again.

So a change of a Service's labels, annotations, status or addresses never reopens a listener or changes its proxy port.

A listener on a shared port has to know the destinations of its frontend. LISTEN adds new destinations before they are
in the rules, and removes old ones after they have left the kernel. In two cases the listener is closed and opened again
on another port: when its frontend gets a destination that conflicts with another frontend of the shared port (see
`SharedPort.suits`), or session affinity on a port whose clients do not stay with one worker. In between no rule
redirects to the listener, so new clients fail for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum, auto

from kubeproxy.dataplane.interface import Reservation
from kubeproxy.dataplane.messages import SetEndpoints
from kubeproxy.model import Address, Destination, Family, Frontend, FrontendName, Protocol
from kubeproxy.proxier.shared_ports import SharedPort

WILDCARD: Mapping[Family, Address] = {Family.IPV4: Address("0.0.0.0"), Family.IPV6: Address("::")}


class Move(Enum):
    """The next action for a frontend."""

    OPEN = auto()
    LISTEN = auto()
    UPDATE = auto()
    ADD_RULE = auto()
    REMOVE_RULE = auto()
    WAIT = auto()
    CLOSE = auto()
    REST = auto()


@dataclass(slots=True)
class ListenerState:
    """The state of a frontend's listener."""

    protocol: Protocol
    address: Address
    reservation: Reservation
    confirmed: bool = False
    """Whether the data plane has confirmed that the listener is open."""
    sent: SetEndpoints | None = None
    """The endpoints that the data plane has confirmed, or None."""
    in_rules: Frontend | None = None
    """The frontend as the rules have it, or None if no rule redirects to this listener."""
    port_in_rules: int = 0
    """The proxy port that the rules have with `in_rules`."""
    rules_generation: int = 0
    """The generation of the rules in which `in_rules` was last changed."""
    shared: SharedPort | None = None
    """The shared port, or None if the listener has a port of its own."""
    joined: Set[Destination] = frozenset()
    """The destinations that were sent to the shared port's listener."""

    def suits(self, wanted: Frontend, address: Address) -> bool:
        """Return whether this listener can serve the wanted frontend at this address."""
        same = (self.protocol, self.address) == (wanted.protocol, address)
        return same and (self.shared is None or self.shared.suits(wanted))

    @property
    def kernel_alone(self) -> bool:
        """Return whether no worker serves the frontend, because there was no port for it."""
        return self.shared is not None and not self.shared.serves

    def begin_at(self, reservation: Reservation, shared: SharedPort | None = None) -> None:
        """Open the listener at this port. The rules redirect to the former port until the data plane has confirmed
        it."""
        self.reservation, self.shared = reservation, shared
        self.confirmed, self.sent, self.joined = False, None, frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """The next move of each frontend that has one, in the order given."""

    moves: Mapping[Move, tuple[FrontendName, ...]]

    def of(self, move: Move) -> tuple[FrontendName, ...]:
        """Return the frontends whose next move is this one."""
        return self.moves.get(move, ())


def plan(
    names: Iterable[FrontendName],
    wanted: Mapping[FrontendName, Frontend],
    listeners: Mapping[FrontendName, ListenerState],
    *,
    bind: Mapping[Family, Address],
    applied: int,
) -> Plan:
    """Return the next moves of the named frontends. Others are not looked at, so an unchanged frontend costs nothing.
    `bind` has the addresses of listeners where they are not the wildcard address. `applied` is the generation of the
    rules in force."""
    moves: dict[Move, list[FrontendName]] = {}
    for name in names:
        address = bind_address(bind, name.family)
        move = next_move(wanted.get(name), listeners.get(name), address=address, applied=applied)
        if move is not Move.REST:
            moves.setdefault(move, []).append(name)
    return Plan({move: tuple(those) for move, those in moves.items()})


def next_move(wanted: Frontend | None, listener: ListenerState | None, *, address: Address, applied: int) -> Move:
    """Return the next move of one frontend, by the table above."""
    if listener is None:
        return Move.REST if wanted is None else Move.OPEN
    known = applied >= listener.rules_generation
    if wanted is None or not listener.suits(wanted, address):
        if listener.in_rules is not None:
            return Move.REMOVE_RULE
        return Move.CLOSE if known else Move.WAIT
    if not listener.confirmed or listener.sent is None:
        return Move.LISTEN
    if not wanted.endpoints and listener.sent.endpoints:
        # Clients are refused by the rules first, also before a shared port gets other destinations of the frontend.
        if listener.in_rules == wanted:
            return Move.UPDATE if known else Move.WAIT
        return Move.ADD_RULE
    if listener.shared is not None and not wanted.destinations.keys() <= listener.joined:
        return Move.LISTEN
    if listener.sent != endpoints_of(wanted):
        return Move.UPDATE
    if listener.in_rules != wanted or listener.port_in_rules != listener.reservation.port:
        return Move.ADD_RULE
    if listener.shared is None or wanted.destinations.keys() == listener.joined:
        return Move.REST
    return Move.LISTEN if known else Move.WAIT


def endpoints_of(frontend: Frontend) -> SetEndpoints:
    """Return the message with the endpoints of a frontend."""
    return SetEndpoints(
        frontend.name,
        frontend.endpoints,
        frontend.affinity_timeout_s,
        preserve=frontend.preserve,
        balancing=frontend.balancing,
        staying=frontend.staying,
    )


def bind_address(bind: Mapping[Family, Address], family: Family) -> Address:
    """Return the address on which listeners of a family listen."""
    return bind.get(family, WILDCARD[family])
