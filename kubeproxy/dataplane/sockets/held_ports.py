"""The ports that a data plane holds: its `PortReserver`."""

from __future__ import annotations

import errno

from kubeproxy.dataplane.messages import Listen
from kubeproxy.dataplane.resources.fd_budget import DescriptorBudget
from kubeproxy.dataplane.sockets.reserved_ports import HeldPort
from kubeproxy.model import Address, Protocol


class HeldPorts:
    """Each is a descriptor out of a budget."""

    def __init__(self, budget: DescriptorBudget) -> None:
        self._budget = budget
        self._shared = False
        self._held: dict[tuple[Protocol, Address, int], HeldPort] = {}

    def reserve(self, protocol: Protocol, address: Address, port: int, *, claim: bool = False) -> HeldPort:
        """See `PortReserver.reserve`."""
        if not self._budget.take(1):
            raise OSError(errno.EMFILE, "all descriptors are in use; raise the limit on open files")
        try:
            held = HeldPort(protocol, address, port, on_release=self._released, claim=claim, shared=self._shared)
        except BaseException:
            self._budget.give(1)
            raise
        self._held[protocol, address, held.port] = held
        return held

    def share(self, on: bool) -> None:
        """See `PortReserver.share`."""
        self._shared = on
        for held in self._held.values():
            if held.claim:
                held.share(on)

    def of(self, message: Listen) -> HeldPort:
        """The port that is to be listened on; OSError when it was not reserved."""
        held = self._held.get((message.protocol, message.address, message.port))
        if held is None:
            raise OSError(errno.EINVAL, "it was not reserved")
        return held

    def close(self) -> None:
        """Give all back."""
        for held in list(self._held.values()):
            held.release()

    def _released(self, held: HeldPort) -> None:
        del self._held[held.protocol, held.address, held.port]
        self._budget.give(1)
