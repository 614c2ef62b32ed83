"""Time to first byte of many clients at once, each with its own connection.

All clients are in one small process, so that the measurement does not measure the clients.

`first_bytes.py ADDRESS PORT COUNT AT_ONCE PER_S QUESTION` ends after COUNT connections, or at the end of its standard
input. At most PER_S clients start in a second (0: each starts as soon as one of the AT_ONCE places is free). It prints
the results as JSON: start and time to first byte of each client, and the errors of the others.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from subprocess import PIPE
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 20.0
"""How long a client waits for its first byte; far longer than every guaranteed time."""
LOOK_S = 0.25
"""How often the process looks for clients that have waited too long."""
NAME = "name\n"
"""The request that backends answer with their name."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The results of the clients. Times are in seconds; starts count from the start of the first client."""

    answered: Sequence[tuple[float, float]]
    """Start and time to first byte of each client."""
    failed: Sequence[tuple[float, float, str]]
    """Start and duration of the clients without a first byte, and the reason."""

    def times(self, *, since_s: float = 0.0) -> list[float]:
        """Sorted times to first byte of the clients that started at that moment or later."""
        return sorted(took for began, took in self.answered if began >= since_s)


def percentile(times: Sequence[float], percent: float) -> float:
    """The time that `percent` of the sorted times do not exceed. NaN if there are none."""
    return times[min(len(times) - 1, int(len(times) * percent / 100))] if times else float("nan")


def summary(times: Sequence[float]) -> str:
    """Percentiles of sorted times, as readable text."""
    figures = [f"p{percent} {percentile(times, percent) * 1e3:.1f}" for percent in (50, 99)]
    return f"{len(times)}: {', '.join(figures)}, max {percentile(times, 100) * 1e3:.1f} ms"


class Clients:
    """All clients of the process."""

    def __init__(self, address: tuple[str, int], question: bytes) -> None:
        self._address = address
        self._question = question
        self._poll = select.epoll()
        self._open: dict[int, tuple[socket.socket, float]] = {}
        """Each client's start."""
        self._origin = time.monotonic()
        self._answered: list[tuple[float, float]] = []
        self._failed: list[tuple[float, float, str]] = []

    def run(self, count: int, at_once: int, per_s: float) -> Seen:
        """Run until `count` clients have ended. At the end of standard input, wait for the open connections."""
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
        due, next_look = self._origin, self._origin + LOOK_S
        while True:
            while count and len(self._open) < at_once and due <= time.monotonic():
                count -= 1
                self._enter()
                # After a delay, the clients that are late do not start all at once.
                due = max(due + 1 / per_s, time.monotonic() - 1 / per_s) if per_s else due
            if not count and not self._open:
                return Seen(self._answered, self._failed)
            wait_s = max(0.0, due - time.monotonic()) if len(self._open) < at_once else LOOK_S
            for fd, what in self._poll.poll(min(wait_s, LOOK_S) if count else LOOK_S):
                if fd == sys.stdin.fileno():
                    count = 0
                    self._poll.unregister(fd)
                else:
                    self._on_event(fd, what)
            if (now := time.monotonic()) >= next_look:
                next_look = now + LOOK_S
                for fd, (_, began) in list(self._open.items()):
                    if now - began > PATIENCE_S:
                        self._leave(fd, "silence")

    def _enter(self) -> None:
        sock = socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET)
        sock.setblocking(False)
        self._open[sock.fileno()] = sock, time.monotonic()
        error = sock.connect_ex(self._address)
        if error in (0, errno.EINPROGRESS):
            self._poll.register(sock.fileno(), select.EPOLLOUT)
        else:
            self._leave(sock.fileno(), os.strerror(error))

    def _on_event(self, fd: int, what: int) -> None:
        sock, _ = self._open[fd]
        try:
            if what == select.EPOLLOUT:
                sock.send(self._question)
                self._poll.modify(fd, select.EPOLLIN)
            else:
                self._leave(fd, "" if sock.recv(4096) else "the end came first")
        except OSError as error:
            self._leave(fd, error.strerror or repr(error))

    def _leave(self, fd: int, failure: str) -> None:
        sock, began = self._open.pop(fd)
        took = time.monotonic() - began
        sock.close()
        if failure:
            self._failed.append((began - self._origin, took, failure))
        else:
            self._answered.append((began - self._origin, took))


class FirstBytes:
    """Clients on a host of the laboratory, until the block ends. `at_once` at the same time.

    A context manager. `seen` is set at its end.
    """

    def __init__(
        self, host: Any, address: tuple[str, int], *, at_once: int = 1, per_s: float = 0.0, question: str = NAME
    ) -> None:
        self._process = _start(host, address, 10**9, at_once, per_s, question)
        self.seen = Seen((), ())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stdin.close()
        self.seen = _seen(self._process)


def first_bytes(
    host: Any, address: tuple[str, int], count: int, *, at_once: int, per_s: float = 0.0, question: str = NAME
) -> Seen:
    """The results of `count` clients on a host of the laboratory."""
    return _seen(_start(host, address, count, at_once, per_s, question))


def _start(host: Any, address: tuple[str, int], count: int, at_once: int, per_s: float, question: str) -> Any:
    arguments = (address[0], str(address[1]), str(count), str(at_once), str(per_s), question)
    return host.popen([sys.executable, "-S", "-E", __file__, *arguments], stdin=PIPE, stdout=PIPE, text=True)


def _seen(process: Any) -> Seen:
    said = json.loads(process.stdout.read())
    assert process.wait() == 0
    return Seen(*([tuple(it) for it in saw] for saw in said))


if __name__ == "__main__":
    crowd = Clients((sys.argv[1], int(sys.argv[2])), sys.argv[6].encode())
    seen = crowd.run(int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    json.dump([seen.answered, seen.failed], sys.stdout)
