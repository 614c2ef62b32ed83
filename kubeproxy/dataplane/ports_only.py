"""The data plane of a strict kernel path. It only reserves ports, and neither listens nor dials.

The kernel sends clients straight to endpoints, or rejects them. Rules use the number of a reserved port to reject
clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.interface import BalancePreview, Counters, EjectedEndpoint, Ended, Entrances, WorkerStatus
from kubeproxy.dataplane.messages import Message, RestoreBindings
from kubeproxy.dataplane.sockets.port_reservation import ReservedPort, ReservedPorts
from kubeproxy.model import Address, FrontendName, Protocol, Target


class PortsOnly:
    """A `DataPlane` that serves no clients, and its `PortReserver`."""

    restarts = 0
    problem: str | None = None
    open_connections = 0

    def __init__(self) -> None:
        self._ports = ReservedPorts(DescriptorBudget.of_this_process())

    def reserve(self, protocol: Protocol, address: Address, port: int, *, claim: bool = False) -> ReservedPort:
        """See `PortReserver.reserve`."""
        return self._ports.reserve(protocol, address, port, claim=claim)

    def share(self, on: bool) -> None:
        """See `PortReserver.share`."""
        self._ports.share(on)

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """Return no failures. All messages are in effect, because nothing listens and nothing is dialed."""
        return {}

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """See `DataPlane.counters`."""
        return {}

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """See `DataPlane.worker_status`."""
        return ()

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """See `DataPlane.ejected`."""
        return {}

    async def open_by_endpoint(self) -> Mapping[FrontendName, Mapping[Target, int]]:
        """See `DataPlane.open_by_endpoint`."""
        return {}

    async def previews(self, frontend: FrontendName, client: Address, port: int) -> Sequence[BalancePreview]:
        """See `DataPlane.previews`."""
        return ()

    async def open_to(self, addresses: Collection[Address]) -> Mapping[Address, int]:
        """See `DataPlane.open_to`."""
        return {}

    async def bindings(self) -> Sequence[RestoreBindings]:
        """See `DataPlane.bindings`."""
        return ()

    async def ended(self) -> Sequence[Ended]:
        """See `DataPlane.ended`."""
        return ()

    async def retire(self) -> None:
        """See `DataPlane.retire`."""

    async def adopt(self) -> Entrances:
        """Return no sockets, because nothing is served."""
        return Entrances()

    async def move(self, successor: str) -> tuple[int, int]:
        """See `DataPlane.move`."""
        return 0, 0

    async def drain(self, grace_s: float) -> int:
        """See `DataPlane.drain`."""
        return 0

    async def close(self) -> None:
        """Free all ports."""
        self._ports.close()
