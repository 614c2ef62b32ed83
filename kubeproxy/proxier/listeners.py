"""Opens, updates and closes the listeners of the wanted frontends, and keeps the rules in step with them.

`plan` has the table of moves. If a step gets no answer, because the task was cancelled or the data plane broke, the
moves are decided again. Every message states a wanted condition, so repeating one is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from kubeproxy.dataplane.messages import Listen, Message, Retire
from kubeproxy.model import Frontend, FrontendName
from kubeproxy.proxier.availability import Availability
from kubeproxy.proxier.plan import ListenerState, Move, bind_address, endpoints_of, plan
from kubeproxy.proxier.port_allocator import NoPort, Ports
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder
from kubeproxy.proxier.settings import DEFAULTS, ProxierSettings


@dataclass(frozen=True, slots=True)
class Step:
    """Messages for the data plane, and the frontends that they open, update and close."""

    listen: tuple[FrontendName, ...]
    update: tuple[FrontendName, ...]
    close: tuple[FrontendName, ...]
    messages: tuple[Message, ...]

    @property
    def names(self) -> tuple[FrontendName, ...]:
        """Return all frontends of the step."""
        return self.listen + self.update + self.close


class Listeners:
    """The existing listeners, and the frontends that may have a move."""

    def __init__(self, ports: Ports, availability: Availability, rules: RuleSetBuilder) -> None:
        self.existing: dict[FrontendName, ListenerState] = {}
        self.faults: dict[FrontendName, str] = {}
        """The frontends whose last move failed, each with its error. They wait for `retry`."""
        self._ports = ports
        self._availability = availability
        self._wanted = availability.wanted
        self._rules = rules
        self._settings = DEFAULTS
        self._unsettled: dict[FrontendName, None] = {}
        """The frontends that may have a move. (A dictionary is used for its order.)"""
        self._in_flight: tuple[FrontendName, ...] = ()
        """The frontends of the step to which the data plane has not answered yet."""
        self._waiting: dict[FrontendName, None] = {}
        """The frontends that may have a move once the rules are in force."""
        self._portless: dict[FrontendName, None] = {}
        """Those of `faults` that have no port. They may have a move once a port is released."""
        self._applied = 0
        """The generation of the rules in force."""

    @property
    def settled(self) -> bool:
        """Return whether no frontend has a move, apart from the faults."""
        return not (self._availability.changed or self._unsettled or self._in_flight or self._waiting)

    @property
    def rules_pending(self) -> bool:
        """Return whether the kernel lacks a change."""
        return self._rules.generation != self._applied

    def use(self, settings: ProxierSettings) -> None:
        """Use these settings from now on. A listener at another address than `bind` is opened anew."""
        before, self._settings = self._settings, settings
        self._ports.use_range(settings.port_range)
        if settings.bind != before.bind:
            self._unsettled.update(dict.fromkeys(self.existing))
        if settings.port_range != before.port_range or settings.restrictions is not before.restrictions:
            self.retry()

    def retry(self) -> None:
        """Try the failed moves again."""
        self._unsettled.update(dict.fromkeys(self.faults))

    def serves_as_wanted(self, name: FrontendName) -> bool:
        """Return whether the data plane and the kernel serve a frontend as it is wanted. A listener without a port
        serves no client, so it does not count against that."""
        listener, wanted = self.existing.get(name), self._wanted[name]
        if listener is None:
            return name in self.faults
        in_force = listener.in_rules == wanted and self._applied >= listener.rules_generation
        return in_force and listener.confirmed and listener.sent == endpoints_of(wanted)

    # Moves.

    def next_step(self, limit: int) -> Step | None:
        """Return the next messages for the data plane, for about `limit` frontends at most. Return None if there are
        none. Moves without a message are made in this call: ports are reserved, and rules are changed."""
        changed = self._availability.changed
        self._unsettled.update(changed)
        changed.clear()
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
            self._waiting.pop(name, None)
            self._portless.pop(name, None)
            self.faults.pop(name, None)
        moves = plan(names, self._wanted, self.existing, bind=self._settings.bind, applied=self._applied)
        for name in moves.of(Move.ADD_RULE):
            self._update_rules(name, self._wanted[name])
        for name in moves.of(Move.REMOVE_RULE):
            self._update_rules(name, None)
        self._waiting.update(dict.fromkeys(moves.of(Move.WAIT)))
        for name in moves.of(Move.UPDATE):
            # The kernel path does not wait for the data plane.
            self._rules.lead(self._wanted[name])
        opened = tuple(name for name in moves.of(Move.OPEN) if self._open(name))
        return self._messages(opened + moves.of(Move.LISTEN), moves.of(Move.UPDATE), moves.of(Move.CLOSE))

    def _messages(
        self, listen: tuple[FrontendName, ...], update: tuple[FrontendName, ...], close: tuple[FrontendName, ...]
    ) -> Step:
        messages: list[Message] = []
        for name in listen:
            listener = self.existing[name]
            messages.append(Listen(name, listener.protocol, listener.address, listener.reservation.port))
            messages.append(endpoints_of(self._wanted[name]))
        messages += [endpoints_of(self._wanted[name]) for name in update]
        messages += [Retire(name) for name in close]
        return Step(listen, update, close, tuple(messages))

    def _update_rules(self, name: FrontendName, frontend: Frontend | None) -> None:
        """Put a frontend into the rules, or take it out of them with None."""
        listener, before = self.existing[name], self._rules.generation
        if frontend is None:
            self._rules.remove(name)
        else:
            self._rules.put(frontend, listener.reservation.port)
        if self._rules.generation != before:
            listener.rules_generation = self._rules.generation
        listener.in_rules = frontend
        self._unsettled[name] = None

    def _open(self, name: FrontendName) -> bool:
        """Reserve a port for a new listener, and return whether there is one."""
        frontend, address = self._wanted[name], bind_address(self._settings.bind, name.family)
        try:
            reservation = self._ports.reserve(frontend.protocol, address)
        except NoPort as error:
            self.faults[name] = str(error)
            self._portless[name] = None
            return False
        self.existing[name] = ListenerState(frontend.protocol, address, reservation)
        self._availability.proxy_port_changed(frontend.protocol, reservation.port)
        return True

    def _drop(self, name: FrontendName) -> None:
        """Release the port of a listener that no longer exists."""
        listener = self.existing.pop(name)
        port = listener.reservation.port
        self._ports.release(listener.protocol, listener.reservation)
        self._availability.proxy_port_changed(listener.protocol, port)
        self._unsettled.update(self._portless)

    # Results.

    def done(self, step: Step, failures: Mapping[FrontendName, str]) -> bool:
        """Note that the data plane has carried out a step, except for these frontends.

        Return whether it has closed a listener, so that ports may be free."""
        self._in_flight = ()
        for name in step.listen + step.update:
            listener = self.existing[name]
            if name not in failures:
                listener.confirmed, listener.sent = True, endpoints_of(self._wanted[name])
            elif listener.sent is None:
                self._drop(name)  # It never listened, so no rule redirects there.
            else:
                listener.confirmed = False  # The data plane may have lost it, so the next step begins with Listen.
        closed = [name for name in step.close if name not in failures]
        for name in closed:
            self._drop(name)
        for name in step.names:
            if name in failures:
                self.faults[name] = failures[name]
            else:
                self._unsettled[name] = None
        return bool(closed)

    def applied(self, generation: int) -> None:
        """Note that rules of this generation are in force."""
        self._applied = generation
        self._unsettled.update(self._waiting)

    def close(self) -> None:
        """Release the ports of all listeners."""
        for name in list(self.existing):
            self._drop(name)
