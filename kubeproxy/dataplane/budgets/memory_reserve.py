"""A reserve of memory for the case that an allocation fails.

The kernel does not tell how much memory is left, so a failed allocation is the first sign of a shortage. At the start a
reserve is mapped, and it is freed when an allocation fails. Then the process can work again, and new clients are
limited to a third of the present number. A flooded frontend leaves a part of that third to others, as with descriptors
(see `fd_budget`). As soon as there is enough memory, the reserve is mapped again.
"""

from __future__ import annotations

import mmap

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.loop.reactor import Reactor

RESERVE_BYTES = 4 << 20
"""The size of the reserve in bytes. It is enough for the buffers of a hundred clients, or for some thousand idle
clients. Its pages are never written, so it takes only address space, which ``ulimit -v`` limits. (With a control
group's limit no allocation fails; the kernel kills the process instead.)"""
LOOK_S = 1.0
"""How often to try to map a freed reserve again, in seconds."""


class MemoryReserve:
    """The memory reserve of one process."""

    def __init__(self, *, budget: DescriptorBudget, reactor: Reactor) -> None:
        self._budget = budget
        self._reactor = reactor
        self._reserve = _map(RESERVE_BYTES)
        self.shortages = 0
        """How often the reserve was freed, or could not be mapped again."""

    def spend(self) -> bool:
        """Free the reserve after a failed allocation, and return whether a retry may succeed."""
        if self._reserve is None:
            return False
        self._reserve.close()
        self._reserve = None
        self.shortages += 1
        self._budget.tighten()
        self._reactor.after(LOOK_S, self._look)
        return True

    def _look(self) -> None:
        # Require twice the memory, because the reserve must not use up all of it.
        if (enough := _map(2 * RESERVE_BYTES)) is not None:
            enough.close()
            self._reserve = _map(RESERVE_BYTES)
        if self._reserve is None:
            self.shortages += 1
            self._reactor.after(LOOK_S, self._look)
        else:
            self._budget.loosen()


def _map(size: int) -> mmap.mmap | None:
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError):
        return None
