"""Compares wanted frontends with existing listeners and returns the next moves.

The life of a listener. The data plane is updated *before* rules redirect clients to a listener, and *after* they stop:
so a client always finds its listener. A move that waits for the kernel is decided again once the rules that it waits
for are in force. If they never are, nothing is closed, and working listeners go on working.

    wanted       listener                       move
    ------       --------                       ----
    yes          none                           OPEN    reserve a port; Listen, SetEndpoints
    yes          not confirmed                  LISTEN  Listen, SetEndpoints (again, on the same port)
    yes          has other endpoints            UPDATE  SetEndpoints, at once: no rule depends on them
    yes, empty   has endpoints                  ADD_RULE     refuse in the rules; WAIT for the kernel; then UPDATE
    yes          other addresses or verdict     ADD_RULE     addresses and verdict into the rules
                 in the rules
    no *         in the rules                   REMOVE_RULE  out of the rules
    no *         out of the rules               WAIT    until these rules are in force
    no *         out of the kernel              CLOSE   Retire; release the port
    either       as wanted                      REST

    * or wanted with another protocol, or at another address: closed first, then opened anew.

So labels, annotations, status and the addresses of a Service never re-open a listener, nor change its proxy port.

A listener at a shared port has to know the frontend's destinations. It learns new ones (LISTEN) before they are in the
rules, and forgets old ones (LISTEN, too) when they are out of the kernel. It is closed and opened anew, at another
port, when it gets a destination that another frontend of the port has or could be taken for (see `SharedPort.suits`),
or session affinity where clients do not keep to one worker. In between no rule leads to it, which is a short gap
for its new clients.
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
    """The next thing to do for a frontend."""

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
    """The listener of a frontend."""

    protocol: Protocol
    address: Address
    reservation: Reservation
    confirmed: bool = False
    """Whether the data plane has confirmed that the listener is open."""
    sent: SetEndpoints | None = None
    """The endpoints that the data plane has confirmed."""
    in_rules: Frontend | None = None
    """The frontend as the rules have it, or None if no rule redirects to this listener."""
    rules_generation: int = 0
    """The generation of the rules in which `in_rules` was last changed."""
    shared: SharedPort | None = None
    """The shared port, or None if the listener has a port of its own."""
    joined: Set[Destination] = frozenset()
    """The destinations that the shared port's listener knows, or that were sent to that listener."""

    def suits(self, wanted: Frontend, address: Address) -> bool:
        """Return whether this listener can serve a frontend at this address."""
        same = (self.protocol, self.address) == (wanted.protocol, address)
        return same and (self.shared is None or self.shared.suits(wanted))


@dataclass(frozen=True, slots=True)
class Plan:
    """The next move of each frontend that has one, in the given order."""

    moves: Mapping[Move, tuple[FrontendName, ...]]

    def of(self, move: Move) -> tuple[FrontendName, ...]:
        """Return the frontends that have this next move."""
        return self.moves.get(move, ())


def plan(
    names: Iterable[FrontendName],
    wanted: Mapping[FrontendName, Frontend],
    listeners: Mapping[FrontendName, ListenerState],
    *,
    bind: Mapping[Family, Address],
    applied: int,
) -> Plan:
    """Return the next moves of the named frontends only, so that an unchanged frontend costs nothing. `bind` is the
    address of listeners, if it is not the wildcard address. `applied` is the generation of the rules in force."""
    moves: dict[Move, list[FrontendName]] = {}
    for name in names:
        address = bind_address(bind, name.family)
        move = next_move(wanted.get(name), listeners.get(name), address=address, applied=applied)
        if move is not Move.REST:
            moves.setdefault(move, []).append(name)
    return Plan({move: tuple(those) for move, those in moves.items()})


def next_move(wanted: Frontend | None, listener: ListenerState | None, *, address: Address, applied: int) -> Move:
    """Return the move of one frontend, by the table above."""
    if listener is None:
        return Move.REST if wanted is None else Move.OPEN
    known = applied >= listener.rules_generation
    if wanted is None or not listener.suits(wanted, address):
        if listener.in_rules is not None:
            return Move.REMOVE_RULE
        return Move.CLOSE if known else Move.WAIT
    if not listener.confirmed or listener.sent is None:
        return Move.LISTEN
    if listener.shared is not None and not wanted.destinations.keys() <= listener.joined:
        return Move.LISTEN
    if listener.sent != endpoints_of(wanted):
        if wanted.endpoints or not listener.sent.endpoints:
            return Move.UPDATE
        if listener.in_rules == wanted:
            return Move.UPDATE if known else Move.WAIT
    if listener.in_rules != wanted:
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
    """Return the address at which listeners of a family listen."""
    return bind.get(family, WILDCARD[family])
