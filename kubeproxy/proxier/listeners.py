"""Opens, updates and closes the listeners of the wanted frontends, and keeps the rules consistent with them.

`plan` has the table of moves. If a step gets no answer, because the task was cancelled or the data plane failed, its
moves are decided again. Every message describes a wanted state, so it may be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog

from kubeproxy.dataplane.messages import Join, Listen, Message, Retire
from kubeproxy.model import Address, Frontend, FrontendName, Protocol
from kubeproxy.proxier.availability import Availability
from kubeproxy.proxier.data_path_choice import Wanted
from kubeproxy.proxier.plan import ListenerState, Move, bind_address, endpoints_of, plan
from kubeproxy.proxier.port_allocator import NoPortError, Ports
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder
from kubeproxy.proxier.settings import DEFAULTS, ProxierSettings
from kubeproxy.proxier.shared_ports import SharedPort, SharedPorts

log = structlog.get_logger(__name__)

UDP_SHARE: Final = 2
"""How many UDP frontends may have a listener, as a multiple of `own_ports`. UDP frontends cannot share a listener,
because a datagram does not show the original destination. So further UDP frontends are served by the kernel path
alone."""
_REMEDY: Final = "raise the limit on open files, and widen net.ipv4.ip_local_port_range or --proxy-port-range"


@dataclass(frozen=True, slots=True)
class Step:
    """Messages for the data plane, with the frontends that they open, update and close."""

    listen: tuple[FrontendName, ...]
    update: tuple[FrontendName, ...]
    close: tuple[FrontendName, ...]
    messages: tuple[Message, ...]
    opened: tuple[SharedPort, ...] = ()
    """The shared ports that the messages open."""

    @property
    def names(self) -> tuple[FrontendName, ...]:
        """Return all frontends that take part in the step."""
        return self.listen + self.update + self.close


class Listeners:
    """The existing listeners, and the frontends that may have a move."""

    def __init__(self, ports: Ports, availability: Availability, rules: RuleSetBuilder) -> None:
        self.existing: dict[FrontendName, ListenerState] = {}
        self.faults: dict[FrontendName, str] = {}
        """The frontends whose last move failed, each with the error. They are tried again by `retry`."""
        self._ports = ports
        self._shared_ports = SharedPorts(ports)
        self._own: Counter[Protocol] = Counter()
        """The number of listeners with a port of their own, by protocol."""
        self._announced: set[Protocol] = set()
        """The protocols for which it was logged that further frontends share a listener or have none."""
        self._without_own: set[FrontendName] = set()
        """The frontends that the data plane could not serve on a port of their own."""
        self._availability = availability
        self._wanted = availability.wanted
        self._rules = rules
        self._settings = DEFAULTS
        self._unsettled: dict[FrontendName, None] = {}
        """The frontends that may have a move now, in order."""
        self._in_flight: tuple[FrontendName, ...] = ()
        """The frontends of the step that the data plane has not answered yet."""
        self._waiting: dict[FrontendName, None] = {}
        """The frontends that may have a move once the rules are in force."""
        self._portless: dict[FrontendName, None] = {}
        """The frontends in `faults` for which no port was available. They may have a move once a port is released."""
        self._kernel_alone: dict[FrontendName, None] = {}
        """The frontends that no worker serves. One of them gets a listener once a port is released."""
        self._applied = 0
        """The generation of the rules in force."""

    @property
    def settled(self) -> bool:
        """Return whether no frontend has a move, apart from those in `faults`."""
        return not (self._availability.changed or self._unsettled or self._in_flight or self._waiting)

    @property
    def rules_pending(self) -> bool:
        """Return whether there is a change that the kernel does not have yet."""
        return self._rules.generation != self._applied

    def use(self, settings: ProxierSettings) -> None:
        """Apply these settings from now on. Listeners whose address differs from `bind` are closed and opened again."""
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
        """Return whether the data plane and the kernel serve a frontend as wanted. A frontend for which no port was
        available counts as served, because it has no clients."""
        listener, wanted = self.existing.get(name), self._wanted[name]
        if listener is None:
            return name in self.faults
        in_force = listener.in_rules == wanted and self._applied >= listener.rules_generation
        return in_force and listener.confirmed and listener.sent == endpoints_of(wanted)

    # Moves.

    def next_step(self, limit: int) -> Step | None:
        """Return the next messages for the data plane, for about `limit` frontends at most, or None if there are none.
        Moves without a message, such as reserving a port or changing a rule, are made within this call."""
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
            if name not in self._wanted:
                self._without_own.discard(name)
        moves = plan(names, self._wanted, self.existing, bind=self._settings.bind, applied=self._applied)
        for name in moves.of(Move.ADD_RULE):
            self._update_rules(name, self._wanted[name])
        for name in moves.of(Move.REMOVE_RULE):
            self._update_rules(name, None)
        self._waiting.update(dict.fromkeys(moves.of(Move.WAIT)))
        for name in moves.of(Move.UPDATE):
            # Update the kernel path now; it does not wait for the data plane.
            self._rules.update_endpoints(self._wanted[name])
        opened = tuple(name for name in moves.of(Move.OPEN) if self._open(name))
        listen = tuple(name for name in opened + moves.of(Move.LISTEN) if self._take_destinations(name))
        return self._messages(listen, moves.of(Move.UPDATE), moves.of(Move.CLOSE))

    def _messages(
        self, listen: tuple[FrontendName, ...], update: tuple[FrontendName, ...], close: tuple[FrontendName, ...]
    ) -> Step:
        messages: list[Message] = []
        opened: dict[SharedPort, None] = {}
        for name in listen:
            listener = self.existing[name]
            if listener.shared is None:
                messages.append(Listen(name, listener.protocol, listener.address, listener.reservation.port))
            else:
                for port in (listener.shared, *self._shared_ports.refusing(listener.shared.listen).values()):
                    if not port.listens and port not in opened:
                        opened[port] = None
                        messages.append(port.listen)
                if listener.shared.serves:
                    listener.confirmed = False  # It is confirmed again by the data plane's answer.
                    messages.append(Join(name, listener.shared.listen.frontend, tuple(sorted(listener.joined))))
            messages.append(endpoints_of(self._wanted[name]))
        messages += [endpoints_of(self._wanted[name]) for name in update]
        messages += [Retire(name) for name in close]
        return Step(listen, update, close, tuple(messages), tuple(opened))

    def _update_rules(self, name: FrontendName, frontend: Frontend | None) -> None:
        """Put a frontend into the rules, or remove it from them if `frontend` is None."""
        listener, before = self.existing[name], self._rules.generation
        if frontend is None:
            self._rules.remove(name)
        else:
            refusing = {} if listener.shared is None else self._shared_ports.refusing(listener.shared.listen)
            refusals = {verdict: port.reservation.port for verdict, port in refusing.items()}
            unserved = self._udp_full if listener.kernel_alone else ""
            self._rules.put(frontend, listener.reservation.port, refusals, unserved=unserved)
        if self._rules.generation != before:
            listener.rules_generation = self._rules.generation
        listener.in_rules, listener.port_in_rules = frontend, listener.reservation.port
        self._unsettled[name] = None

    def _open(self, name: FrontendName) -> bool:
        """Reserve a port for a new listener. Return whether one was available."""
        frontend, address = self._wanted[name], bind_address(self._settings.bind, name.family)
        try:
            listener = self._reserve(frontend, address)
        except NoPortError as error:
            self.faults[name] = str(error)
            self._portless[name] = None
            return False
        self.existing[name] = listener
        if listener.kernel_alone:
            self._kernel_alone[name] = None
        self._availability.proxy_port_changed(frontend.protocol, listener.reservation.port)
        return True

    def _reserve(self, frontend: Frontend, address: Address) -> ListenerState:
        """Reserve a port for a frontend: its own port, or a shared one if `own_ports` frontends already have their own.
        If that kind of port is not available, try the other kind. A UDP frontend never shares a port: beyond
        `UDP_SHARE` of `own_ports`, it is left to the kernel alone. Raise NoPortError if no port is available."""
        protocol, most = frontend.protocol, self._settings.own_ports
        if protocol is not Protocol.TCP:
            if self._own[protocol] >= UDP_SHARE * most:
                return self._without_worker(protocol, address)
            return self._at_own_port(frontend, address)
        first, second = self._at_own_port, self._at_shared_port
        if self._own[protocol] >= most or frontend.name in self._without_own:
            first, second = second, first
        try:
            return first(frontend, address)
        except NoPortError:
            return second(frontend, address)

    def _at_own_port(self, frontend: Frontend, address: Address) -> ListenerState:
        reservation = self._ports.reserve(frontend.protocol, address)
        self._own[frontend.protocol] += 1
        return ListenerState(frontend.protocol, address, reservation)

    def _at_shared_port(self, frontend: Frontend, address: Address) -> ListenerState:
        shared = self._shared_ports.of(frontend, address)
        if self._is_first(frontend.protocol):
            log.info("listeners are shared from now on", own=self._own[frontend.protocol], remedy=_REMEDY)
        return ListenerState(frontend.protocol, address, shared.reservation, shared=shared)

    def _is_first(self, protocol: Protocol) -> bool:
        """Return whether this is the first call for a protocol, so that its first frontend without a listener of its
        own is logged, and no later one."""
        first = protocol not in self._announced
        self._announced.add(protocol)
        return first

    def _without_worker(self, protocol: Protocol, address: Address) -> ListenerState:
        """Leave a UDP frontend to the kernel path alone. Raise NoPortError if the kernel path is not available."""
        path = self._settings.data_path
        if path.wanted is Wanted.USERSPACE or path.refusal:
            raise NoPortError(f"{self._udp_full}; {_REMEDY}, or use the kernel path")
        shared = self._shared_ports.without_worker(protocol, address)
        if self._is_first(protocol):
            log.info("kernel alone serves further UDP service ports", own=self._own[protocol], remedy=_REMEDY)
        return ListenerState(protocol, address, shared.reservation, shared=shared)

    @property
    def _udp_full(self) -> str:
        return f"this host has room for {UDP_SHARE * self._settings.own_ports} UDP service ports in user space"

    def _take_destinations(self, name: FrontendName) -> bool:
        """Set the destinations that a shared listener has to accept for a frontend. Return False if the shared port
        cannot serve the frontend any more."""
        listener, wanted = self.existing[name], self._wanted[name]
        if listener.shared is None:
            return True
        if not listener.shared.suits(wanted):  # Another frontend now has one of the destinations on this port.
            self._unsettled[name] = None
            return False
        settled = listener.in_rules == wanted and self._applied >= listener.rules_generation
        destinations = frozenset(wanted.destinations) | (frozenset() if settled else listener.joined)
        listener.shared.hold(name, listener.joined, destinations)
        listener.joined = destinations
        return True

    def _drop(self, name: FrontendName) -> None:
        """Release the port of a listener that no longer exists."""
        listener = self.existing.pop(name)
        port = listener.reservation.port
        self._without_own.discard(name)
        self._kernel_alone.pop(name, None)
        if listener.shared is not None:
            listener.shared.hold(name, listener.joined, ())
        else:
            self._own[listener.protocol] -= 1
            self._ports.release(listener.protocol, listener.reservation)
            self._offer_port(listener.protocol)
        self._availability.proxy_port_changed(listener.protocol, port)

    def _offer_port(self, protocol: Protocol) -> None:
        """Let one of the frontends that wait for a port try again, because one port has become free. If none waits,
        give a listener to one that the kernel alone serves."""
        wanted = self._wanted
        waiting = next((it for it in self._portless if it in wanted and wanted[it].protocol is protocol), None)
        if waiting is not None:
            del self._portless[waiting]
            self._unsettled[waiting] = None
        elif protocol is Protocol.UDP and self._own[protocol] < UDP_SHARE * self._settings.own_ports:
            self._have_served()

    def _have_served(self) -> None:
        """Give a listener to one of the frontends that the kernel alone serves, first to one whose clients are refused,
        because the kernel cannot forward it."""
        alone, wanted = self._kernel_alone, self._wanted
        refused = (it for it in self._rules.refused if it in alone and it in wanted)
        name = next(refused, None) or next((it for it in alone if it in wanted), None)
        if name is None:
            return
        listener = self.existing[name]
        try:
            reservation = self._ports.reserve(listener.protocol, listener.address)
        except NoPortError:
            return
        del alone[name]
        self._own[listener.protocol] += 1
        listener.begin_at(reservation)
        self._availability.proxy_port_changed(listener.protocol, reservation.port)
        self._unsettled[name] = None

    def _leave_to_kernel(self, name: FrontendName) -> None:
        """Leave a frontend to the kernel alone again, because the data plane could not open its listener. The rules
        need no change, because they have never used that listener."""
        listener, reservation = self.existing[name], self.existing[name].reservation
        shared = self._shared_ports.without_worker(listener.protocol, listener.address)
        listener.begin_at(shared.reservation, shared)
        self._kernel_alone[name] = None
        self._own[listener.protocol] -= 1
        self._ports.release(listener.protocol, reservation)
        self._availability.proxy_port_changed(listener.protocol, reservation.port)

    # Results.

    def done(self, step: Step, failures: Mapping[FrontendName, str]) -> bool:
        """Record that the data plane has carried out a step. `failures` has the frontends for which it failed, each
        with the error.

        Return whether a listener was closed, so that ports may be free.
        """
        self._in_flight = ()
        for port in step.opened:
            port.listens = port.listen.frontend not in failures
        without_refusal = self._without_refusal(step)
        left_to_kernel: set[FrontendName] = set()
        for name in step.listen + step.update:
            listener = self.existing[name]
            if name not in failures:
                listener.confirmed, listener.sent = name not in without_refusal, endpoints_of(self._wanted[name])
            elif listener.sent is None and listener.in_rules is None:
                self._drop(name)  # The listener was never open, so no rule redirects to it.
                self._without_own.add(name)
            elif listener.sent is None and not listener.kernel_alone:
                self._leave_to_kernel(name)
                left_to_kernel.add(name)
            else:
                # The data plane may have lost the listener. With `confirmed` false, its next step begins with Listen.
                listener.confirmed = False
        closed = [name for name in step.close if name not in failures]
        for name in closed:
            self._drop(name)
        failures = {**without_refusal, **failures}
        for name in step.names:
            if name in failures and name not in left_to_kernel:
                self.faults[name] = failures[name]
            else:
                self._unsettled[name] = None
        return bool(closed)

    def _without_refusal(self, step: Step) -> dict[FrontendName, str]:
        """Return a failure for each frontend whose port for refused clients could not be opened. The next attempt opens
        that port again."""
        failed = {port.listen.frontend for port in step.opened if not port.listens}
        if not failed:
            return {}
        shared = ((name, self.existing[name].shared) for name in step.listen)
        return {
            name: "cannot listen: the shared port that refuses is not open"
            for name, port in shared
            if port and failed & {it.listen.frontend for it in self._shared_ports.refusing(port.listen).values()}
        }

    def applied(self, generation: int) -> None:
        """Record that rules of this generation are in force."""
        self._applied = generation
        self._unsettled.update(self._waiting)

    def close(self) -> None:
        """Release the ports of all listeners."""
        for name in list(self.existing):
            self._drop(name)
        self._shared_ports.close()
