"""Writes log lines to stderr without waiting for a slow, stopped or missing reader.

Usually the kernel has room for a line. Otherwise the line goes into a bounded backlog, which a thread writes. (Other
processes share stderr, so it must not be set to O_NONBLOCK, and a blocking write would stop the event loop.)
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import time
from queue import SimpleQueue
from typing import Final, TextIO

BACKLOG_BYTES: Final = 1 << 20
"""The size of the backlog in bytes: some five thousand lines, in addition to the 64 KiB of a pipe."""
FLUSH_S: Final = 1.0
"""How many seconds `flush` waits for a slow reader when the process ends."""
_FLUSH_POLL_S: Final = 0.01


class LogWriter:
    """Writes whole lines to a stream, in order."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._encoding, self._errors = stream.encoding or "utf-8", stream.errors or "backslashreplace"
        try:
            self._descriptor = stream.fileno()
        except OSError:  # The stream has no descriptor.
            self._descriptor = -1
        # No lock is used: garbage collection may log at any point, also while this thread holds the lock. Each counter
        # has one writer instead.
        self._backlog: SimpleQueue[memoryview] = SimpleQueue()
        self._queued = self._written = 0
        self._refused = self._failed = 0
        self._has_thread = False
        self._last_check = 0, 0

    @property
    def lost(self) -> int:
        """Return how many writes have failed, or were dropped because the backlog was full."""
        return self._refused + self._failed

    @property
    def waiting(self) -> int:
        """Return the number of bytes in the backlog."""
        return self._queued - self._written

    def write(self, lines: str) -> bool:
        """Write or queue all lines, or none. Return whether they were accepted. Only one thread at a time may call
        this."""
        if self._descriptor < 0:
            self.stream.write(lines)
            self.stream.flush()
            return True
        data = memoryview(lines.encode(self._encoding, self._errors))
        try:
            rest = data if self.waiting else self._write_now(data)
        except OSError:
            self._refused += 1
            return False
        if len(rest) == len(data) and self.waiting + len(rest) > BACKLOG_BYTES:
            self._refused += 1
            return False
        if rest:
            self._queued += len(rest)
            self._backlog.put(rest)
            self._start_thread()
        return True

    def flush(self, *, within_s: float = FLUSH_S) -> None:
        """Wait until the backlog is empty, for at most `within_s` seconds."""
        until = time.monotonic() + within_s
        while self.waiting and time.monotonic() < until:
            time.sleep(_FLUSH_POLL_S)

    def problem(self) -> str | None:
        """Return what went wrong since the last call, or None if nothing did."""
        (lost, written), self._last_check = self._last_check, (self.lost, self._written)
        if self.waiting and self._written == written:
            return "stderr has no reader; log lines wait"
        return "cannot write to stderr; log lines are lost" if self.lost > lost else None

    def _write_now(self, data: memoryview) -> memoryview:
        while data and _has_room(self._descriptor, within_ms=0):
            try:
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
            except BlockingIOError:  # Another process has set O_NONBLOCK.
                break
        return data

    def _start_thread(self) -> None:
        # threading.Thread is not used: its start() waits for a signal of the new thread, which never comes without
        # memory.
        if not self._has_thread:
            with contextlib.suppress(RuntimeError):  # No thread could be started. The next line tries again.
                _thread.start_new_thread(self._write_backlog, ())
                self._has_thread = True

    def _write_backlog(self) -> None:
        while True:
            data = self._backlog.get()
            while data:
                try:
                    _has_room(self._descriptor, within_ms=None)
                    written = os.write(self._descriptor, data[: select.PIPE_BUF])
                except BlockingIOError:
                    continue
                except (OSError, MemoryError):
                    self._failed += 1
                    written = len(data)
                self._written += written
                data = data[written:]


def _has_room(descriptor: int, *, within_ms: int | None) -> bool:
    """Return whether a write of PIPE_BUF bytes would not block. It may still fail."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(within_ms))
