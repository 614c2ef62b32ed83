"""Memory is a budget, too, but nobody tells how much there is: that it is used up shows when it is.

So some is kept back. When there is no more, it is let go: from what was short, everybody can work again, and no more
clients are taken than a third of those who are there; of that third, as of descriptors (see `descriptors`), the others'
clients get theirs, whoever's flood it is. As soon as there is enough again, it is kept back anew.
"""

from __future__ import annotations

import mmap

from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.resources.fd_budget import DescriptorBudget

RESERVE_BYTES = 4 << 20
"""A hundred clients' buffers, or some thousand clients that say nothing. Never touched, so it is address space only:
what ``ulimit -v`` limits. (Who is over the limit of a control group is killed, and not asked.)"""
LOOK_S = 1.0
"""How often it is tried to keep some back again."""


class MemoryReserve:
    """What is kept back for the parts of one process that move bytes."""

    def __init__(self, *, budget: DescriptorBudget, reactor: Reactor) -> None:
        self._budget = budget
        self._reactor = reactor
        self._kept = _keep(RESERVE_BYTES)
        self.shortages = 0
        """How often it was let go, or could not be kept back again."""

    def spend(self) -> bool:
        """There was no memory for something. Whether there may be some now."""
        if self._kept is None:
            return False
        self._kept.close()
        self._kept = None
        self.shortages += 1
        self._budget.tighten()
        self._reactor.after(LOOK_S, self._look)
        return True

    def _look(self) -> None:
        # Twice as much: what is there must not be used up by keeping it.
        if (enough := _keep(2 * RESERVE_BYTES)) is not None:
            enough.close()
            self._kept = _keep(RESERVE_BYTES)
        if self._kept is None:
            self.shortages += 1
            self._reactor.after(LOOK_S, self._look)
        else:
            self._budget.loosen()


def _keep(size: int) -> mmap.mmap | None:
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError):
        return None
