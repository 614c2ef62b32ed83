"""One direction of a proxied TCP connection.

A flow reads from its source and writes to its sink. Bytes that the sink does not accept at once wait (in the *backlog*,
or in the pipe), and nothing more is read until they are written. This provides back-pressure and bounds the memory of a
flow.

Small messages use `read` and `write`. All that is read in a turn is written at the end of the turn: a receiver that is
still awake from the last message need not be woken again, and waking is most of the cost of a small message. (This gave
1.2 times the requests per second.) A flow that fills the buffer twice in a row carries bulk data. It takes a pipe, so
that the bytes stay in the kernel (`splice`). After a few small batches the flow returns the pipe.

FIN is passed on after all bytes before it, and the other flow continues (half-close). A reset, or any other error of a
socket, is passed on as a reset, after the bytes that are still in that socket have been read and written. TCP itself
does not guarantee that these bytes arrive, but a proxy should not discard an answer because its sender has closed.
"""

from __future__ import annotations

import os
import select
from os import read, write
from typing import TYPE_CHECKING, Protocol

from kubeproxy.dataplane.budgets.pipe_pool import PIPE_BYTES, Pipe
from kubeproxy.dataplane.sockets.fd_calls import finish_writing, write_last
from kubeproxy.dataplane.tcp.connection_state import FlowState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kubeproxy.dataplane.context import Context

READABLE = select.EPOLLIN | select.EPOLLPRI | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
READ_ON = select.EPOLLPRI | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
"""After one of these events, a short read does not mean that the source is empty. Either the end of the stream was
reported, which happens only once, or there is urgent data, at whose mark a read stops."""
END_ALONE = select.EPOLLRDHUP
"""If this is the only one of `READ_ON` in an event, FIN has arrived and there is no urgent data. So a short read has
reached the end."""
WRITABLE = select.EPOLLOUT
BROKEN = select.EPOLLERR
SPLICE_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK

READ_BYTES = 64 * 1024
BATCH_BYTES = 1 << 20
"""How many bytes one flow may move in a turn before other flows get their share."""
NO_MEMORY = "no memory"
FULL_READS_FOR_PIPE = 2
SMALL_BATCHES_FOR_COPY = 4


class Both(Protocol):
    """What a flow needs of its connection, whose module imports this one."""

    def finish(self) -> None:
        """End the connection after both sides have closed."""

    def reset_by(self, flow: Flow) -> None:
        """Reset the connection, because the source of `flow` is dead."""

    def abort(self, reason: str) -> None:
        """End the connection now. Both sides get a reset."""


class Flow:
    """One direction of a connection, from descriptor to descriptor."""

    __slots__ = (
        "_backlog",
        "_connection",
        "_context",
        "_end_alone",
        "_last",
        "_meter",
        "_more",
        "_pipe",
        "_piped",
        "_queue_write",
        "_read_on",
        "_sink",
        "_source",
        "_streak",
        "blocked",
        "broken",
        "count",
        "open",
        "reverse",
    )
    __deletable__ = ("reverse",)  # mypyc needs this for attributes that are deleted

    reverse: Flow
    """The flow in the other direction. It is deleted when the connection ends."""

    def __init__(
        self,
        context: Context,
        connection: Both,
        source: int,
        sink: int,
        *,
        meter: list[int],
        queue_write: Callable[[Flow], None],
    ) -> None:
        self._context = context
        self._connection = connection
        self._source = source
        self._sink = sink
        self._meter = meter
        self._queue_write = queue_write
        self.count = 0
        """How many bytes were read."""
        self.open = True
        """Whether the source may still send bytes."""
        self.blocked = False
        """Whether bytes are waiting for the sink."""
        self.broken = False
        """Whether the source is dead. The reset is passed on after the bytes that are still to be read from it."""
        self._read_on = False
        self._end_alone = False
        self._more = False
        self._last = False
        """Whether FIN has to follow the backlog."""
        self._backlog = b""
        self._pipe: Pipe | None = None
        self._piped = 0
        self._streak = 0
        """The number of full reads in a row or, with a pipe, of small batches in a row."""

    def on_event(self, what: int) -> None:
        """Handle an event of this flow's source, which is also the sink of the reverse flow."""
        reverse = self.reverse
        try:
            if what & READABLE:
                if what & READ_ON:
                    self._read_on = True
                    self._end_alone = what & READ_ON == END_ALONE
                    if what & BROKEN:
                        self.lost()
                        return
                if self.blocked:
                    self._more = True
                elif self.open:
                    self.pump()
            if what & WRITABLE and reverse.blocked:
                reverse.flush()
        except MemoryError:
            self._connection.abort(NO_MEMORY)

    def begin_with(self, data: bytes, sent: int) -> None:
        """Take over `data`, which was read before the flow existed. The first `sent` bytes of it are already
        written."""
        self.count = len(data)
        self._meter[0] += len(data)
        if sent < len(data):
            self._backlog = data[sent:]
            self.blocked = True
            self._queue_write(self)

    def pump(self) -> None:
        """Move bytes until the source is empty, the sink is full, or `BATCH_BYTES` have been moved."""
        if self._pipe is not None:
            self._pump_piped(self._pipe)
            return
        moved = 0
        while moved < BATCH_BYTES:
            try:
                data = read(self._source, READ_BYTES)
            except BlockingIOError:
                self._source_empty()
                return
            except MemoryError:
                # Nothing has been read yet, so the connection can continue if freeing the reserve helps.
                if not self._context.memory.spend():
                    raise
                break
            except OSError:
                self._over(reset=True)
                return
            if not data:
                self._over(reset=self.broken)
                return
            count = len(data)
            self.count += count
            self._meter[0] += count
            self._backlog = data
            self.blocked = True
            if count < READ_BYTES:
                self._streak = 0
                if self._end_alone:
                    self._more = self._last = True
                elif self._read_on:
                    self._look_for_end()
                else:
                    self._more = False
                self._queue_write(self)
                return
            self._more = True
            if not self._write_backlog():
                return
            self._streak += 1
            if self._streak >= FULL_READS_FOR_PIPE and (pipe := self._context.pipes.take()) is not None:
                self._pipe = pipe
                self._streak = 0
                self._pump_piped(pipe)
                return
            moved += count
        self._context.reactor.again(self._continue)

    def _look_for_end(self) -> None:
        """Read once more to find a reported end of the stream, so that FIN can be sent in the same packet as the
        data."""
        self._more = True
        if self.broken:
            return
        try:
            data = read(self._source, READ_BYTES)
        except BlockingIOError:
            self._more = False
        except OSError:
            self.broken = True
        else:
            count = len(data)
            self.count += count
            self._meter[0] += count
            self._backlog += data
            self._last = not data

    def flush(self) -> None:
        """Write the bytes that wait for the sink, if there still are any, and continue reading."""
        if not self.blocked:
            return
        if self._backlog:
            if not self._write_backlog():
                return
        elif self._pipe is not None and not self._empty_pipe(self._pipe):
            return
        self.blocked = False
        if self._last:
            self._over(reset=self.broken)
        elif self._more:
            self.pump()

    def _write_backlog(self) -> bool:
        """Write the backlog. Return whether the sink accepted all of it."""
        try:
            sent = (write_last if self._last else write)(self._sink, self._backlog)
        except BlockingIOError:
            return False
        except OSError:
            self._sink_lost()
            return False
        if sent < len(self._backlog):
            self._backlog = self._backlog[sent:]
            return False
        self._backlog = b""
        self.blocked = False
        return True

    def _pump_piped(self, pipe: Pipe) -> None:
        moved = 0
        while moved < BATCH_BYTES:
            try:
                count = os.splice(self._source, pipe.write_fd, PIPE_BYTES, flags=SPLICE_FLAGS)
            except BlockingIOError:
                if self._read_on:
                    self._read_past_mark(pipe)
                else:
                    self._consider_copying(moved)
                    self._source_empty()
                return
            except OSError:
                self._over(reset=True)
                return
            if not count:
                self._read_past_mark(pipe)
                return
            self.count += count
            self._meter[0] += count
            moved += count
            self._piped = count
            if not self._empty_pipe(pipe):
                return
        self._streak = 0
        self._context.reactor.again(self._continue)

    def _read_past_mark(self, pipe: Pipe) -> None:
        """Continue without a pipe. At the mark of urgent data `splice` reports no bytes or the end, even if more bytes
        follow."""
        self._release_pipe(pipe)
        self._context.reactor.again(self._continue)

    def _empty_pipe(self, pipe: Pipe) -> bool:
        """Write the bytes in the pipe. Return whether the sink accepted all of them."""
        while self._piped:
            try:
                self._piped -= os.splice(pipe.read_fd, self._sink, self._piped, flags=SPLICE_FLAGS)
            except BlockingIOError:
                self.blocked = self._more = True
                return False
            except OSError:
                self._sink_lost()
                return False
        return True

    def _consider_copying(self, moved: int) -> None:
        """Return the pipe if batches have become small, because a pipe costs two descriptors and, for each batch, two
        system calls."""
        if moved >= READ_BYTES:
            self._streak = 0
            return
        self._streak += 1
        if self._streak >= SMALL_BATCHES_FOR_COPY:
            self._release_pipe(self._pipe)

    def _release_pipe(self, pipe: Pipe | None) -> None:
        if pipe is not None:
            self._context.pipes.give(pipe, empty=self._piped == 0)
            self._pipe = None
            self._piped = self._streak = 0

    def _continue(self) -> None:
        if self.open and not self.blocked:
            try:
                self.pump()
            except MemoryError:
                self._connection.abort(NO_MEMORY)

    def lost(self) -> None:
        """Deliver the bytes that are still in the dead source, and then pass on the reset."""
        self.broken = self._more = True
        if self.blocked:
            return
        if self.open:
            self.pump()
        else:
            self._connection.reset_by(self)

    def _source_empty(self) -> None:
        if self.broken:
            self._over(reset=True)

    def _sink_lost(self) -> None:
        """Stop writing to the sink, which is dead, but read what its socket still contains."""
        self.stop()
        self.reverse.lost()

    def _over(self, *, reset: bool) -> None:
        """Pass on the end of the source. All its bytes have been delivered, because nothing is read while bytes
        wait."""
        self.stop()
        if reset:
            self._connection.reset_by(self)
        elif not self.reverse.open:
            self._connection.finish()
        elif not finish_writing(self._sink):
            self.reverse.lost()

    def stop(self) -> None:
        """Stop reading, and drop the waiting bytes."""
        self.open = self.blocked = False
        self._backlog = b""
        self._release_pipe(self._pipe)

    def state(self) -> FlowState:
        """Return the state that another process needs to continue."""
        return FlowState(
            count=self.count,
            open=self.open,
            broken=self.broken,
            last=self._last,
            backlog=self._backlog,
            piped=self._piped,
        )

    def take_pipe(self) -> tuple[int, ...]:
        """If the pipe contains bytes, remove it from the flow and return its descriptors. The pool still counts it as
        in use."""
        if not self._piped or self._pipe is None:
            return ()
        pipe, self._pipe, self._piped = self._pipe, None, 0
        return pipe

    def go_on(self, state: FlowState, pipe: Sequence[int]) -> None:
        """Continue from a state, perhaps of another process. `pipe` has the descriptors of a pipe with bytes, or is
        empty. The reactor reports again what the source has: bytes, its end or an error."""
        self.count, self.open, self.broken, self._last = state.count, state.open, state.broken, state.last
        self._backlog, self._piped = state.backlog, state.piped
        if pipe:
            self._pipe = Pipe(*pipe)
            self._context.pipes.share(self._pipe)
        self.blocked = bool(self._backlog or self._piped)
        self._more = True
        if self.blocked:
            self._queue_write(self)
        elif self.broken:
            # An error may already have been reported, and is not reported again.
            self._context.reactor.again(self._continue)


def send_backlogs(flows: Iterable[Flow]) -> None:
    """Write the backlogs of several flows. This does the same as `Flow.flush`, without a call for each write."""
    for flow in flows:
        if not flow.blocked:
            continue
        try:
            backlog = flow._backlog
            if flow._last or not backlog:
                flow.flush()
                continue
            sent = write(flow._sink, backlog)
            if sent < len(backlog):
                flow._backlog = backlog[sent:]
                continue
            flow._backlog = b""
            flow.blocked = False
            if flow._more:
                flow.pump()
        except BlockingIOError:
            continue
        except OSError:
            flow._sink_lost()
        except MemoryError:
            flow._connection.abort(NO_MEMORY)
