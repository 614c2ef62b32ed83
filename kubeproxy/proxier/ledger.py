"""The books: which frontends are wanted, which listeners stand, which ports they hold, what the rules say.

All state of the proxier is here and changes only between awaits. The Proxier asks `next_step` what the data plane is to
be told now, tells it, and enters the answer with `done`; it gives the rules to netfilter and enters the success with
`applied`. A step whose answer never came (the task was cancelled, the data plane broke) is looked at again: every
message states a wanted condition, so repeating one is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from kubeproxy.dataplane.messages import Listen, Message, Retire
from kubeproxy.model import Address, Family, Frontend, FrontendName, Protocol, ServiceName, Target
from kubeproxy.proxier.plan import Listener, Move, bind_address, endpoints_of, plan
from kubeproxy.proxier.ports import NoPort, Ports
from kubeproxy.proxier.resolve import resolve
from kubeproxy.proxier.rules import Rules
from kubeproxy.proxier.tracker import Change

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Step:
    """What the data plane is to be told now: who is to be listened for, told of, closed."""

    listen: tuple[FrontendName, ...]
    tell: tuple[FrontendName, ...]
    close: tuple[FrontendName, ...]
    messages: tuple[Message, ...]

    @property
    def names(self) -> tuple[FrontendName, ...]:
        """Everybody whom it concerns."""
        return self.listen + self.tell + self.close


class Ledger:
    """Not for two tasks at once."""

    def __init__(self, *, ports: Ports, families: Iterable[Family], protocols: Iterable[Protocol]) -> None:
        self.ports = ports
        self.rules = Rules()
        self.wanted: dict[FrontendName, Frontend] = {}
        self.listeners: dict[FrontendName, Listener] = {}
        self.owners: dict[ServiceName, str] = {}
        self.faults: dict[FrontendName, str] = {}
        """Frontends whose last move failed, and why. They are left alone until `retry`."""
        self._families = frozenset(families)
        self._protocols = frozenset(protocols)
        self._frontends_of: dict[ServiceName, tuple[FrontendName, ...]] = {}
        self._remarks: dict[ServiceName, tuple[str, ...]] = {}
        self._unsettled: dict[FrontendName, None] = {}
        """To be looked at. (A dictionary for its order.)"""
        self._in_flight: tuple[FrontendName, ...] = ()
        self._waiting: set[FrontendName] = set()
        """To be looked at once the rules are in force."""
        self._applied = 0

    @property
    def rules_pending(self) -> bool:
        """Whether the kernel has not learned of everything."""
        return self.rules.generation != self._applied

    @property
    def settled(self) -> bool:
        """Whether everything absorbed is in effect, but for the faults."""
        return not (self._unsettled or self._in_flight or self._waiting or self.rules_pending)

    # What is wanted.

    def absorb(self, changes: Sequence[Change]) -> None:
        """Services changed: find out what they want now."""
        for change in changes:
            service, source = change.after.service, change.after.owner
            frontends = () if service is None else resolve(service, change.after.slices)
            served = tuple(f for f in frontends if f.protocol in self._protocols and f.name.family in self._families)
            self._want(change.name, served)
            remarks = [
                f"port {port.name or port.port}: {port.protocol} is not served"
                for port in (() if service is None else service.ports)
                if port.protocol not in self._protocols
            ]
            remarks += [f"also defined by {other}; the one of {source} stays" for other in change.after.refused]
            _set_or_drop(self._remarks, change.name, tuple(remarks))
            _set_or_drop(self.owners, change.name, source)

    def _want(self, service: ServiceName, frontends: tuple[Frontend, ...]) -> None:
        names = tuple(frontend.name for frontend in frontends)
        for name in self._frontends_of.get(service, ()):
            if name not in names:
                del self.wanted[name]
                self._unsettled[name] = None
        for frontend in frontends:
            if self.wanted.get(frontend.name) != frontend:
                self.wanted[frontend.name] = frontend
                self._unsettled[frontend.name] = None
        _set_or_drop(self._frontends_of, service, names)

    def use_addresses(self, landing: Mapping[Family, Address], bind: Mapping[Family, Address]) -> None:
        """Where the rules lead to, and where listeners listen; one that listens elsewhere is opened anew."""
        if dict(bind) != self.rules.bind:
            self._unsettled.update(dict.fromkeys(self.listeners))
        self.rules.use_addresses(landing, bind)

    def retry(self) -> None:
        """Look again at what failed."""
        self._unsettled.update(dict.fromkeys(self.faults))

    # What to do about it.

    def next_step(self, limit: int) -> Step | None:
        """What the data plane is to be told now about at most `limit` frontends; None: nothing more.

        What needs no word to the data plane is done on the way: ports are reserved, rules are written.
        """
        self._unsettled.update(dict.fromkeys(self._in_flight))
        self._in_flight = ()
        while self._unsettled:
            step = self._step_of(list(islice(self._unsettled, limit)))
            if step.messages:
                self._in_flight = step.names
                return step
        return None

    def _step_of(self, names: list[FrontendName]) -> Step:
        for name in names:
            del self._unsettled[name]
            self._waiting.discard(name)
            self.faults.pop(name, None)
        moves = plan(names, self.wanted, self.listeners, bind=self.rules.bind, applied=self._applied)
        for name in moves.of(Move.RULE):
            self._rule(name, self.wanted[name])
        for name in moves.of(Move.UNRULE):
            self._rule(name, None)
        self._waiting.update(moves.of(Move.WAIT))
        listen = tuple(name for name in moves.of(Move.OPEN) if self._reserve(name)) + moves.of(Move.LISTEN)
        tell, close = moves.of(Move.TELL), moves.of(Move.CLOSE)
        messages: list[Message] = []
        for name in listen:
            listener = self.listeners[name]
            messages.append(Listen(name, listener.protocol, listener.address, listener.reservation.port))
            messages.append(endpoints_of(self.wanted[name]))
        messages += [endpoints_of(self.wanted[name]) for name in tell]
        messages += [Retire(name) for name in close]
        return Step(listen, tell, close, tuple(messages))

    def _rule(self, name: FrontendName, frontend: Frontend | None) -> None:
        listener, before = self.listeners[name], self.rules.generation
        if frontend is None:
            self.rules.remove(name)
        else:
            self.rules.put(frontend, listener.reservation.port)
        if self.rules.generation != before:
            listener.ruled_at = self.rules.generation
        listener.ruled = frontend
        self._unsettled[name] = None

    def _reserve(self, name: FrontendName) -> bool:
        frontend, address = self.wanted[name], bind_address(self.rules.bind, name.family)
        try:
            reservation = self.ports.reserve(frontend.protocol, address)
        except NoPort as error:
            self.faults[name] = str(error)
            return False
        self.listeners[name] = Listener(frontend.protocol, address, reservation)
        return True

    def _drop(self, name: FrontendName) -> None:
        listener = self.listeners.pop(name)
        self.ports.release(listener.protocol, listener.reservation)

    # What came of it.

    def done(self, step: Step, failures: Mapping[FrontendName, str]) -> None:
        """The data plane did what a step says, but for these."""
        self._in_flight = ()
        for name in step.listen + step.tell:
            listener = self.listeners[name]
            if name not in failures:
                listener.confirmed, listener.told = True, endpoints_of(self.wanted[name])
            elif listener.told is None:
                self._drop(name)  # it never stood, so nobody was led there
            else:
                listener.confirmed = False  # it may have been lost over there: next time begin with Listen
        for name in step.close:
            if name not in failures:
                self._drop(name)
        for name in step.names:
            if name in failures:
                self.faults[name] = failures[name]
            else:
                self._unsettled[name] = None
        if any(name not in failures for name in step.close):
            self.retry()  # ports may have come free

    def applied(self, generation: int) -> None:
        """These rules are in force."""
        self._applied = generation
        self._unsettled.update(dict.fromkeys(self._waiting))

    def close(self) -> None:
        """Give all ports back."""
        for name in list(self.listeners):
            self._drop(name)

    # What is wrong.

    def problems(self) -> dict[ServiceName, tuple[str, ...]]:
        """The Services that are not, or not wholly, served, and why."""
        found = self._remarks.copy()
        for name, fault in self.faults.items():
            service = name.service_port.service
            found[service] = (*found.get(service, ()), f"{name}: {fault}")
        for destination, holder, others in self.rules.contests():
            address = f"{destination.protocol} {Target(destination.address, destination.port)}"
            for name in others:
                service = name.service_port.service
                found[service] = (*found.get(service, ()), f"{name}: {address} belongs to {holder}")
        return found


def _set_or_drop(book: dict[ServiceName, V], service: ServiceName, value: V) -> None:
    """An entry that says nothing is none."""
    if value:
        book[service] = value
    else:
        book.pop(service, None)
