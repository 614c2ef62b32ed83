"""What the service manager is told of this process: sd_notify(3), datagrams of ``NAME=value`` lines.

A service manager that wants to hear of us puts a socket's address into ``NOTIFY_SOCKET``, and how often it wants to
hear that we are alive into ``WATCHDOG_USEC``. Without the first, nothing is told to anybody. That we are alive is said
from the event loop, never from a thread: a loop that hangs must fall silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping

import structlog

log = structlog.get_logger(__name__)

BEAT_S = 10.0
"""How often the status is told anew where no watchdog asks for more."""

PATIENCE_S = 30.0
"""How much longer than it planned the service manager is asked to wait, again with every beat, for a start or an end
that takes its time. A loop that hangs asks no more, and is given up after this."""

_BEATS_PER_PERIOD = 3
"""sd_watchdog_enabled(3) recommends two; one may come late."""

_UNSENT = 16
"""Messages kept while the socket is full: far more than are ever said at once."""


class Notifier:
    """One process's line to its service manager. `address`: a path, or ``@`` and a name for the abstract namespace;
    None: there is no service manager. `watchdog_s`: silence for so long counts as death; None: nobody watches."""

    def __init__(self, address: str | None, *, watchdog_s: float | None = None) -> None:
        self.beat_s = min(BEAT_S, watchdog_s / _BEATS_PER_PERIOD) if watchdog_s else BEAT_S
        self._watched = watchdog_s is not None
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._unsent: deque[str] = deque(maxlen=_UNSENT)
        self._patience = False
        self._failed = False
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, pid: int) -> Notifier:
        """As sd_notify(3) and sd_watchdog_enabled(3) read it. A watchdog meant for another process (``WATCHDOG_PID``)
        is none of ours; what is unreadable is told and left."""
        address = environment.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "/@":
            log.warning("NOTIFY_SOCKET is no address that we know; the service manager is told nothing", found=address)
            address = None
        return cls(address, watchdog_s=_watchdog_s(environment, pid) if address else None)

    # What happens, a method each.

    def starting(self, status: str) -> None:
        """Not ready yet. From here on every beat asks for patience."""
        self._patience = True
        self._tell(f"STATUS={_line(status)}", _extend(PATIENCE_S))

    def ready(self, status: str) -> None:
        """Serving: for the first time, or again after `reloading`."""
        self._patience = False
        self._tell("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` must follow, even if it is refused."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str, *, takes_s: float) -> None:
        """On the way out, which may take so long."""
        self._patience = True
        self._tell("STOPPING=1", f"STATUS={_line(status)}", _extend(takes_s + PATIENCE_S))

    async def beat(self, status: Callable[[], str]) -> None:
        """Say that we are alive and how things stand, until cancelled. To be run by the event loop that serves."""
        if self._socket is None:
            return
        while True:
            await asyncio.sleep(self.beat_s)
            self._tell(
                *(["WATCHDOG=1"] if self._watched else []),
                f"STATUS={_line(status())}",
                *([_extend(PATIENCE_S)] if self._patience else []),
            )

    def close(self) -> None:
        """Nothing is told any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, *lines: str) -> None:
        """All of it in one datagram. What does not fit into the socket now goes first next time: the loop must not
        wait for somebody else's, and a lost READY=1 would be a start that never ends."""
        if self._socket is None or self._address is None:
            return
        self._unsent.append("\n".join(lines))
        try:
            while self._unsent:
                self._socket.sendto(self._unsent[0].encode(), self._address)
                self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            self._unsent.clear()
            if not self._failed:
                log.warning(
                    "cannot notify service manager",
                    socket=self._address.replace("\0", "@"),
                    reason=error.strerror,
                )
            self._failed = True
        else:
            self._failed = False


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    if not (microseconds := environment.get("WATCHDOG_USEC")):
        return None
    with contextlib.suppress(ValueError):
        if int(environment.get("WATCHDOG_PID") or pid) != pid:
            return None
        if (period := int(microseconds)) > 0:
            return period / 1e6
    log.warning("WATCHDOG_USEC or WATCHDOG_PID is no number greater than 0; no watchdog is fed", found=microseconds)
    return None


def _extend(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}"


def _line(text: str) -> str:
    """Nobody's name or error may add a line of its own."""
    return " ".join(text.split())


def own_notifier() -> Notifier:
    """That of this process."""
    return Notifier.from_environment(os.environ, pid=os.getpid())
