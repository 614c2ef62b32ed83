"""Where log lines leave the process. Whoever reads them may be slow, stopped or gone; nobody here waits for it.

The kernel takes a line at once as long as there is room, and usually this is all. What it does not take waits here, up
to a limit, for a thread that is started then: stderr belongs to others, too, so it must not be set to O_NONBLOCK, and
without that only a thread can wait for it while the event loop goes on.
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
"""What may wait: some five thousand lines, beside the 64 KiB that a pipe holds itself."""
FLUSH_S: Final = 1.0
"""How long a process that ends waits for what nobody has read yet."""
_LOOK_S: Final = 0.01


class LogWriter:
    """The way out for whole lines, in their order."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._encoding, self._errors = stream.encoding or "utf-8", stream.errors or "backslashreplace"
        try:
            self._descriptor = stream.fileno()
        except OSError:  # a stream that only Python has
            self._descriptor = -1
        # No lock: a collector that runs anywhere may have something to log. Each of these is counted by one side alone.
        self._backlog: SimpleQueue[memoryview] = SimpleQueue()
        self._came = self._went = 0
        self._refused = self._failed = 0
        self._has_thread = False
        self._looked_at = 0, 0

    @property
    def lost(self) -> int:
        """How many writes have come to nothing so far."""
        return self._refused + self._failed

    @property
    def waiting(self) -> int:
        """How many bytes nobody has taken yet."""
        return self._came - self._went

    def write(self, lines: str) -> bool:
        """All of it or nothing; whether it has left, or waits. For one thread at a time."""
        if self._descriptor < 0:
            self.stream.write(lines)
            self.stream.flush()
            return True
        data = memoryview(lines.encode(self._encoding, self._errors))
        try:
            rest = data if self.waiting else self._write_what_there_is_room_for(data)
        except OSError:
            self._refused += 1
            return False
        if len(rest) == len(data) and self.waiting + len(rest) > BACKLOG_BYTES:
            self._refused += 1
            return False
        if rest:
            self._came += len(rest)
            self._backlog.put(rest)
            self._see_to_thread()
        return True

    def flush(self, *, within_s: float = FLUSH_S) -> None:
        """Back when nothing waits any more, or after so long."""
        until = time.monotonic() + within_s
        while self.waiting and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def complaint(self) -> str | None:
        """What has been wrong since this was last asked; None: nothing."""
        (lost, went), self._looked_at = self._looked_at, (self.lost, self._went)
        if self.waiting and self._went == went:
            return "nobody reads what is logged to stderr"
        return "log lines are lost: stderr does not take them" if self.lost > lost else None

    def _write_what_there_is_room_for(self, data: memoryview) -> memoryview:
        while data and _has_room(self._descriptor, within_ms=0):
            try:
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
            except BlockingIOError:  # somebody else has set O_NONBLOCK
                break
        return data

    def _see_to_thread(self) -> None:
        # Not threading.Thread, whose start() waits for the thread to say that it runs: without memory it never does.
        if not self._has_thread:
            with contextlib.suppress(RuntimeError):  # there may be no more for us: the next line tries again
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
                self._went += written
                data = data[written:]


def _has_room(descriptor: int, *, within_ms: int | None) -> bool:
    """Whether a write of PIPE_BUF bytes would not block (it may fail, though)."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(within_ms))
