"""One look at what is wanted and what stands -> what may be done about it now. Pure.

The life of a listener. The data plane is told *before* the rules lead clients to it, and *after* they lead them away:
what a client meets is so always there. A move that has to wait for the kernel is looked at again once the rules that it
waits for are in force; should they never be, nothing is closed and what works goes on working.

    wanted       listener                       move
    ------       --------                       ----
    yes          none                           OPEN    reserve a port; Listen, SetEndpoints
    yes          not confirmed                  LISTEN  Listen, SetEndpoints (again, on the same port)
    yes          other endpoints than told      TELL    SetEndpoints, at once: netfilter has no part in it
    yes, empty   endpoints were told            RULE    refuse in the rules; WAIT for the kernel; then TELL
    yes          the rules say otherwise        RULE    addresses and verdict into the rules
    no *         in the rules                   UNRULE  out of the rules
    no *         out of the rules               WAIT    until the kernel has learned of it
    no *         out of the kernel              CLOSE   Retire; give the port back
    either       as it should be                REST

    * or wanted with another protocol, or at another address: closed first, then opened anew.

Labels, annotations, status and the addresses of a Service so never re-open a listener, nor change its proxy port.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from kubeproxy.dataplane.interface import Reservation
from kubeproxy.dataplane.messages import SetEndpoints
from kubeproxy.model import Address, Family, Frontend, FrontendName, Protocol

WILDCARD: Mapping[Family, Address] = {Family.IPV4: Address("0.0.0.0"), Family.IPV6: Address("::")}


class Move(Enum):
    """What may be done about a frontend now."""

    OPEN = auto()
    LISTEN = auto()
    TELL = auto()
    RULE = auto()
    UNRULE = auto()
    WAIT = auto()
    CLOSE = auto()
    REST = auto()


@dataclass(slots=True)
class ListenerState:
    """What stands for a frontend."""

    protocol: Protocol
    address: Address
    reservation: Reservation
    confirmed: bool = False
    """Whether the data plane said that it listens."""
    told: SetEndpoints | None = None
    """What the data plane said that it knows."""
    ruled: Frontend | None = None
    """The frontend as the rules have it; None: they do not lead here."""
    ruled_at: int = 0
    """The generation of the rules since which they say so."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next move of each frontend that was looked at and cannot rest, in the order in which they were looked at."""

    moves: Mapping[Move, tuple[FrontendName, ...]]

    def of(self, move: Move) -> tuple[FrontendName, ...]:
        """The frontends whose next move is this."""
        return self.moves.get(move, ())


def plan(
    names: Iterable[FrontendName],
    wanted: Mapping[FrontendName, Frontend],
    listeners: Mapping[FrontendName, ListenerState],
    *,
    bind: Mapping[Family, Address],
    applied: int,
) -> Plan:
    """The next moves of the frontends named, and of no others: what nobody touched costs nothing.

    `bind`: where listeners listen, if not on the wildcard address; `applied`: the generation of the rules in force.
    """
    moves: dict[Move, list[FrontendName]] = {}
    for name in names:
        address = bind_address(bind, name.family)
        move = next_move(wanted.get(name), listeners.get(name), address=address, applied=applied)
        if move is not Move.REST:
            moves.setdefault(move, []).append(name)
    return Plan({move: tuple(those) for move, those in moves.items()})


def next_move(wanted: Frontend | None, listener: ListenerState | None, *, address: Address, applied: int) -> Move:
    """The table above."""
    if listener is None:
        return Move.REST if wanted is None else Move.OPEN
    known = applied >= listener.ruled_at
    if wanted is None or (listener.protocol, listener.address) != (wanted.protocol, address):
        if listener.ruled is not None:
            return Move.UNRULE
        return Move.CLOSE if known else Move.WAIT
    if not listener.confirmed or listener.told is None:
        return Move.LISTEN
    if listener.told != endpoints_of(wanted):
        if wanted.endpoints or not listener.told.endpoints:
            return Move.TELL
        if listener.ruled == wanted:
            return Move.TELL if known else Move.WAIT
    return Move.REST if listener.ruled == wanted else Move.RULE


def endpoints_of(frontend: Frontend) -> SetEndpoints:
    """What the data plane has to know of a frontend."""
    return SetEndpoints(frontend.name, frontend.endpoints, frontend.affinity_timeout_s, frontend.preserve)


def bind_address(bind: Mapping[Family, Address], family: Family) -> Address:
    """Where listeners of a family listen."""
    return bind.get(family, WILDCARD[family])
