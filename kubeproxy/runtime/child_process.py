"""Starts, kills and reaps a child process of the control process, which is connected by a socket."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

LOOK_S: Final = 0.01
"""The interval in seconds at which an ending process is checked for its exit."""
EXIT_S: Final = 2.0
"""A process that has not exited after this time in seconds is killed."""


class ChildProcess:
    """A child process, which the constructor starts. `channel` is this process's end of a socketpair, which the user of
    this object has to close."""

    def __init__(
        self,
        make_command: Callable[[int], Sequence[str]],
        *,
        kind: socket.SocketKind = socket.SOCK_STREAM,
        inherit: Sequence[int] = (),
    ) -> None:
        """Start the process. `make_command` gets the descriptor of the other end, and returns the command line.
        `inherit` are further descriptors that the process inherits. Raise OSError if it cannot start."""
        self._killed_for: str | None = None
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    make_command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *inherit],
                )
        except BaseException:
            self.channel.close()
            raise

    @property
    def pid(self) -> int:
        """Return the PID."""
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Return whether the process has exited."""
        return self._process.poll() is not None

    def kill(self, reason: str) -> None:
        """Kill the process. If this is called several times, the first reason is reported."""
        self._killed_for = self._killed_for or reason
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def reap(self, reason: str, on_exit: Callable[[str], None]) -> None:
        """Wait in the background until the process has exited, and then call `on_exit` with a text that says how it
        ended. A process that takes longer than `EXIT_S` is killed, with this reason."""
        loop = asyncio.get_running_loop()
        self._look(loop, loop.time() + EXIT_S, reason, on_exit)

    def _look(self, loop: asyncio.AbstractEventLoop, until: float, reason: str, on_exit: Callable[[str], None]) -> None:
        status = self._process.poll()
        if status is not None:
            on_exit(self._killed_for or _ending(status))
            return
        if loop.time() >= until:
            self.kill(reason)
        loop.call_later(LOOK_S, self._look, loop, until, reason, on_exit)


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
