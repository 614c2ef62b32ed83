"""Notifies the service manager as sd_notify(3) does, by datagrams with ``NAME=value`` lines.

``NOTIFY_SOCKET`` has the address of the service manager's socket, and ``WATCHDOG_USEC`` the period of its watchdog.
Without ``NOTIFY_SOCKET`` nothing is sent. The event loop, and not a thread, feeds the watchdog, so that the watchdog
fires if the loop hangs.
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
"""The interval in seconds at which the status is sent. It is shorter if the watchdog needs more frequent messages."""

PATIENCE_S = 30.0
"""During a long start or stop, each message extends the service manager's timeout to this number of seconds. If the
event loop hangs, no message is sent, and the service manager ends the process after this time."""

_BEATS_PER_PERIOD = 3
"""The number of messages in each watchdog period. sd_watchdog_enabled(3) recommends two; with three, one may be
late."""

_UNSENT = 16
"""The largest number of messages that are kept while the socket is full. It is far more than are ever pending."""


class Notifier:
    """The connection to the service manager.

    `address` is a path, or ``@`` and a name for the abstract namespace, or None without a service manager. `watchdog_s`
    is the period of the watchdog, or None if there is none.
    """

    def __init__(self, address: str | None, *, watchdog_s: float | None = None) -> None:
        self.beat_s = min(BEAT_S, watchdog_s / _BEATS_PER_PERIOD) if watchdog_s else BEAT_S
        self._watched = watchdog_s is not None
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._unsent: deque[str] = deque(maxlen=_UNSENT)
        self._extending = False
        self._failed = False
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, pid: int) -> Notifier:
        """Return the notifier for these variables, which are read as sd_notify(3) and sd_watchdog_enabled(3) do.

        A watchdog of another process (``WATCHDOG_PID``) is ignored. An unreadable value is logged and ignored.
        """
        address = environment.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "/@":
            log.warning("NOTIFY_SOCKET ignored: unknown address", found=address)
            address = None
        return cls(address, watchdog_s=_watchdog_s(environment, pid) if address else None)

    # Events.

    def starting(self, status: str) -> None:
        """Report that the process is starting. From now on, `beat` also extends the timeout."""
        self._extending = True
        self._send(f"STATUS={_line(status)}", _extend(PATIENCE_S))

    def ready(self, status: str) -> None:
        """Report that the process is serving, for the first time or again after `reloading`."""
        self._extending = False
        self._send("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """Report that a reload or re-exec begins. Call `ready` afterwards, even if it has failed."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str, *, takes_s: float) -> None:
        """Report that the process is stopping, which may take `takes_s` seconds."""
        self._extending = True
        self._send("STOPPING=1", f"STATUS={_line(status)}", _extend(takes_s + PATIENCE_S))

    async def beat(self, status: Callable[[], str]) -> None:
        """Feed the watchdog and send the status, until cancelled. Run this in the event loop that serves clients."""
        if self._socket is None:
            return
        while True:
            await asyncio.sleep(self.beat_s)
            self._send(
                *(["WATCHDOG=1"] if self._watched else []),
                f"STATUS={_line(status())}",
                *([_extend(PATIENCE_S)] if self._extending else []),
            )

    def close(self) -> None:
        """Send nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        """Send the lines in one datagram.

        A datagram for which the socket has no room is kept, and sent before the next one. The loop must not wait for
        another process, but READY=1 must not be lost, because without it the service manager would fail the start.
        """
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
    log.warning("WATCHDOG_USEC or WATCHDOG_PID ignored", found=microseconds, expected="numbers greater than 0")
    return None


def _extend(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}"


def _line(text: str) -> str:
    """Return the text as a single line, because a name or an error must not add lines."""
    return " ".join(text.split())


def own_notifier() -> Notifier:
    """Return the notifier for this process's environment."""
    return Notifier.from_environment(os.environ, pid=os.getpid())
