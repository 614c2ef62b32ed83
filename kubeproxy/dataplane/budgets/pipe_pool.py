"""A pool of pipes for `splice`. Pipes are pooled because opening and closing one takes four system calls. Their number
is limited because each takes two descriptors."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import NamedTuple

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget

PIPE_BYTES = 1 << 20
"""The requested capacity in bytes. With the default of 64 KiB (16 pages) a pipe holds only one large segment, so every
`splice` would move little. The kernel grants less if the user's limit (fs.pipe-user-pages-soft) is reached; a small
pipe also works."""
POOL_SIZE = 32
"""The largest number of idle pipes in the pool."""
PIPES_MAX = 1024
"""The largest number of pipes in use. A connection that gets no pipe continues with recv and send."""


class Pipe(NamedTuple):
    """Both ends of a non-blocking pipe."""

    read_fd: int
    write_fd: int


class PipePool:
    """A pool of empty pipes."""

    def __init__(self, budget: DescriptorBudget) -> None:
        self._budget = budget
        self._idle: list[Pipe] = []
        self._shared: set[Pipe] = set()
        """The pipes that another process may also have open."""
        self.in_use = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe. Return None if the limit is reached, if the descriptor budget has none to spare, or if
        the kernel refuses."""
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
        # This fails if the user's limit on pipe pages is reached. The default capacity is enough then.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe.write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.in_use += 1
        return pipe

    def adopt(self) -> None:
        """Count a pipe that another process has opened as in use. The caller has checked that the budget has room."""
        self.in_use += 1
        self._budget.take(2)

    def share(self, pipe: Pipe) -> None:
        """Record that another process may also have this pipe open. It is then never used for another connection."""
        self._shared.add(pipe)

    def give(self, pipe: Pipe, *, empty: bool) -> None:
        """Return a pipe. It is closed if it still contains bytes, or if another process may have it open."""
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
