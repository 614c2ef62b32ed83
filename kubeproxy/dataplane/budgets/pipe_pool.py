"""A pool of pipes for splicing. Opening a pipe takes three system calls, so pipes are pooled. Each pipe is two
descriptors, so their number is bounded."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import NamedTuple

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget

PIPE_BYTES = 1 << 20
"""The capacity that is requested. At the default of 64 KiB (16 pages) a pipe holds one large segment, and every splice
is a small one. The kernel grants less when the user's share (fs.pipe-user-pages-soft) is used up. A small pipe works as
well."""
POOL_SIZE = 32
"""The largest number of idle pipes in the pool."""
PIPES_MAX = 1024
"""The largest number of pipes in use at once. A connection that gets none continues with recv and send."""


class Pipe(NamedTuple):
    """Both ends of a non-blocking pipe."""

    read_fd: int
    write_fd: int


class PipePool:
    """A bounded pool of empty pipes."""

    def __init__(self, budget: DescriptorBudget) -> None:
        self._budget = budget
        self._idle: list[Pipe] = []
        self._shared: set[Pipe] = set()
        """The pipes that another process may still have."""
        self.in_use = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe, or None when the pool or the descriptor budget is used up."""
        if self._idle:
            self.in_use += 1
            return self._idle.pop()
        if self.in_use >= PIPES_MAX or not self._budget.take_spare(2):
            return None
        try:
            pipe = Pipe(*os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            self._budget.give(2)
            return None
        # This fails beyond the user's share of pipe pages; then the default capacity is enough.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe.write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.in_use += 1
        return pipe

    def adopt(self) -> None:
        """Count a pipe in use that another process has opened. The caller has checked that the budget has room."""
        self.in_use += 1
        self._budget.take(2)

    def share(self, pipe: Pipe) -> None:
        """Note that another process may still have this pipe, so that it never carries another connection's bytes."""
        self._shared.add(pipe)

    def give(self, pipe: Pipe, *, empty: bool) -> None:
        """Return a pipe to the pool. A pipe that still holds a connection's bytes, or that another process may have, is
        closed."""
        self.in_use -= 1
        if empty and pipe not in self._shared and len(self._idle) < POOL_SIZE:
            self._idle.append(pipe)
        else:
            self._close(pipe)

    def close(self) -> None:
        """Close the idle pipes."""
        for pipe in self._idle:
            self._close(pipe)
        self._idle.clear()

    def _close(self, pipe: Pipe) -> None:
        self._shared.discard(pipe)
        os.close(pipe.read_fd)
        os.close(pipe.write_fd)
        self._budget.give(2)
