"""Pipes for splicing: pooled, as making one costs three system calls, and bounded, as each is two descriptors."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import NamedTuple

from kubeproxy.dataplane.resources.fd_budget import DescriptorBudget

PIPE_BYTES = 1 << 20
"""Capacity asked for: at the default of 64 KiB (16 pages) a pipe holds one large segment, and every splice is a small
one. The kernel grants less when the user's share (fs.pipe-user-pages-soft) is used up; a small pipe works as well."""
POOL_SIZE = 32
"""Idle pipes kept."""
PIPES_MAX = 1024
"""Pipes in use at once; a connection that finds none goes on by recv and send."""


class Pipe(NamedTuple):
    """Both ends, non-blocking."""

    read_fd: int
    write_fd: int


class PipePool:
    """Empty pipes to borrow."""

    def __init__(self, budget: DescriptorBudget) -> None:
        self._budget = budget
        self._idle: list[Pipe] = []
        self.in_use = 0

    def take(self) -> Pipe | None:
        """An empty pipe, or None when there is no room for another."""
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
        # Refused when over the user's share of pipe pages: the default capacity will do.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe.write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.in_use += 1
        return pipe

    def give(self, pipe: Pipe, *, empty: bool) -> None:
        """Give a pipe back. One that still holds bytes is closed: they are somebody's."""
        self.in_use -= 1
        if empty and len(self._idle) < POOL_SIZE:
            self._idle.append(pipe)
        else:
            self._close(pipe)

    def close(self) -> None:
        """Close the idle ones."""
        for pipe in self._idle:
            self._close(pipe)
        self._idle.clear()

    def _close(self, pipe: Pipe) -> None:
        os.close(pipe.read_fd)
        os.close(pipe.write_fd)
        self._budget.give(2)
