"""A data plane without sockets, for tests of its callers. It records every message, checks that its callers keep the
rules of the channel, and fails on request."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

from kubeproxy.dataplane.interface import (
    PREVIEWS_MAX,
    BalancePreview,
    Counters,
    EjectedEndpoint,
    Ended,
    Entrances,
    WorkerStatus,
)
from kubeproxy.dataplane.messages import (
    Join,
    Listen,
    MarkEndpoint,
    Message,
    RestoreBindings,
    Retire,
    SetEndpoints,
    Tune,
)
from kubeproxy.model import NODE_PORTS, Address, Family, FrontendName, Target, family_of
from kubeproxy.model import Protocol as Transport
from kubeproxy.model.errors import KernelError


class FakeDataPlane:
    """Records messages instead of serving."""

    def __init__(self) -> None:
        self.listening: dict[FrontendName, Listen] = {}
        self.joined: dict[FrontendName, Join] = {}
        self.endpoints: dict[FrontendName, SetEndpoints] = {}
        self.tune = Tune()
        self.sent: list[Message] = []
        """Every message that came into effect, in order."""
        self.refuse: dict[FrontendName, str] = {}
        """Frontends for which every message fails with this text."""
        self.broken: str | None = None
        """The error text of the next `send`. It fails once with this text and takes no message."""
        self.open_counts: dict[Address, int] = {}
        """Open connections by endpoint address."""
        self.closed = False
        self._holders: dict[tuple[Transport, int], FrontendName] = {}
        """The frontend that listened last at each port."""

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """Record the messages, after a pause in which the caller may be cancelled."""
        await asyncio.sleep(0)
        if self.broken is not None:
            error, self.broken = KernelError(self.broken), None
            raise error
        failures: dict[FrontendName, str] = {}
        for message in messages:
            if isinstance(message, Tune):
                self.tune = message
            elif fault := self._fault(message):
                failures.setdefault(message.frontend, fault)
                continue
            else:
                self._take(message)
            self.sent.append(message)
        await asyncio.sleep(0)
        return failures

    def _fault(self, message: Listen | Join | SetEndpoints | MarkEndpoint | Retire | RestoreBindings) -> str | None:
        if message.frontend in self.refuse:
            return self.refuse[message.frontend]
        listening = self.listening.get(message.frontend)
        if isinstance(message, Join) and message.listener not in self.listening:
            return f"{message.listener} is not listened for"
        if isinstance(message, SetEndpoints) and listening is None and message.frontend not in self.joined:
            return f"{message.frontend} is not listened for"
        if isinstance(message, Listen):
            if listening is not None and listening != message:
                return f"{message.frontend} is listened for already, at port {listening.port}"
            port = message.protocol, message.port
            other = self.listening.get(self._holders.get(port, message.frontend))
            if other is not None and other.frontend != message.frontend and (other.protocol, other.port) == port:
                return f"{message.protocol} port {message.port} is in use by {other.frontend}"
        return None

    def _take(self, message: Listen | Join | SetEndpoints | MarkEndpoint | Retire | RestoreBindings) -> None:
        if isinstance(message, Listen):
            self.listening[message.frontend] = message
            self._holders[message.protocol, message.port] = message.frontend
        elif isinstance(message, Join):
            self.joined[message.frontend] = message
        elif isinstance(message, SetEndpoints):
            self.endpoints[message.frontend] = message
        elif isinstance(message, Retire):
            self.listening.pop(message.frontend, None)
            self.joined.pop(message.frontend, None)
            self.endpoints.pop(message.frontend, None)

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """Empty: there was never a client."""
        return {name: Counters() for name in self.listening}

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """Empty: there is no worker."""
        return ()

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """Empty: no endpoint was dialed."""
        return {}

    async def open_by_endpoint(self) -> Mapping[FrontendName, Mapping[Target, int]]:
        """Empty: nothing is open."""
        return {}

    async def open_to(self, addresses: Collection[Address]) -> Mapping[Address, int]:
        """The set counts."""
        return {address: self.open_counts[address] for address in addresses if self.open_counts.get(address)}

    async def previews(self, frontend: FrontendName, client: Address, port: int) -> Sequence[BalancePreview]:
        """The endpoints in the order of the last message; no client is bound."""
        message = self.endpoints.get(frontend)
        return () if message is None else (BalancePreview(0, message.endpoints[:PREVIEWS_MAX]),)

    async def bindings(self) -> Sequence[RestoreBindings]:
        """Empty: there was never a client."""
        return ()

    async def ended(self) -> Sequence[Ended]:
        """Empty: there was never a client."""
        return ()

    restarts = 0
    problem: str | None = None
    open_connections = 0

    async def retire(self) -> None:
        """Does nothing: there are no clients to refuse."""

    async def adopt(self) -> Entrances:
        """Return none: nothing is served."""
        return Entrances()

    async def move(self, successor: str) -> tuple[int, int]:
        """See `DataPlane.move`."""
        return 0, 0

    async def drain(self, grace_s: float) -> int:
        """Zero: there are no connections."""
        return 0

    async def close(self) -> None:
        """Forget all frontends."""
        self.closed = True
        self.listening.clear()
        self.endpoints.clear()


class FakePortReserver:
    """Port numbers without sockets."""

    def __init__(self, *, kernel_choice: Iterator[int] | None = None) -> None:
        self.held: dict[tuple[Transport, Address, int], FakeReservation] = {}
        self._addresses: dict[tuple[Transport, Family, int], list[Address]] = {}
        """The addresses at which each port is held."""
        self.taken: set[tuple[Transport, int]] = set()
        """Ports of other processes."""
        self.error: OSError | None = None
        """The error of every reservation; None: reservations succeed."""
        self._kernel_choice = iter(range(32768, 61000)) if kernel_choice is None else kernel_choice

    def reserve(self, protocol: Transport, address: Address, port: int, *, claim: bool = False) -> FakeReservation:
        """Reserve a port under the kernel's rules."""
        if self.error is not None:
            raise self.error
        offers = iter((port,)) if port else self._kernel_choice
        chosen = next((port for port in offers if self._is_free(protocol, address, port)), 0)
        if not chosen:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        reservation = FakeReservation(self, protocol, address, chosen)
        self.held[protocol, address, chosen] = reservation
        self._addresses.setdefault((protocol, family_of(address), chosen), []).append(address)
        return reservation

    def share(self, on: bool) -> None:
        """Does nothing: there is no other process."""

    def _is_free(self, protocol: Transport, address: Address, port: int) -> bool:
        """Whether the port is free. The wildcard address stands for all addresses of its family."""
        family = family_of(address)
        rivals = self._addresses.get((protocol, family, port), [])
        clash = address in rivals or (rivals and NODE_PORTS[family] in (address, *rivals))
        return (protocol, port) not in self.taken and not clash

    def give_back(self, protocol: Transport, address: Address, port: int) -> None:
        """Free the port; KeyError when it was free before."""
        del self.held[protocol, address, port]
        self._addresses[protocol, family_of(address), port].remove(address)


class FakeReservation:
    """A reserved port number."""

    def __init__(self, reserver: FakePortReserver, protocol: Transport, address: Address, port: int) -> None:
        self._reserver = reserver
        self._key = (protocol, address, port)

    @property
    def port(self) -> int:
        """The reserved number."""
        return self._key[2]

    def release(self) -> None:
        """Free the number; KeyError when that was done before."""
        self._reserver.give_back(*self._key)
