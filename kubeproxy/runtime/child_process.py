"""A child process of the control process, with a channel, from its start until it has exited."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

LOOK_S: Final = 0.01
"""How often a process with a closed channel is checked for its exit."""
EXIT_S: Final = 2.0
"""How long a process may take to exit before it is killed."""


class ChildProcess:
    """A child process, which the constructor starts. `channel` is our end of a socketpair. The user of this object
    closes it."""

    def __init__(
        self,
        make_command: Callable[[int], Sequence[str]],
        *,
        kind: socket.SocketKind = socket.SOCK_STREAM,
        inherit: Sequence[int] = (),
    ) -> None:
        """`make_command` returns the command line for the descriptor of the other end. `inherit` are further
        descriptors for the process. Raise OSError if it cannot start."""
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
        """Return the process id."""
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Return whether the process has exited."""
        return self._process.poll() is not None

    def kill(self, reason: str) -> None:
        """Kill the process. If this is called several times, the first reason counts."""
        self._killed_for = self._killed_for or reason
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def reap(self, reason: str, on_exit: Callable[[str], None]) -> None:
        """Call `on_exit` with the way in which the process has ended, once it has ended. A process that takes too long
        is killed, for `reason`."""
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
