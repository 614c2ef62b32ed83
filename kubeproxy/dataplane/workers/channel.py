"""The channel between the control process and a worker, for frames and descriptors, over a Unix stream socket. It
never blocks: its owner calls `receive` when the socket is readable, and `flush` when it is writable and `congested`
is true."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic

from kubeproxy.dataplane.workers.protocol import DESCRIPTORS_LIMIT, Decoder, F, Frame, GarbledError, encode

_ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_LIMIT * array.array("i").itemsize)


class Channel(Generic[F]):
    """One end of the channel. It receives frames of type F."""

    def __init__(self, sock: socket.socket, receives: object) -> None:
        """`receives` is the type of frames to receive: `protocol.Request` or `protocol.Report`."""
        sock.setblocking(False)
        self.sock = sock
        self._decoder: Decoder[F] = Decoder(receives)
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._received: deque[int] = deque()
        """Received descriptors that belong to an incomplete frame."""

    @property
    def congested(self) -> bool:
        """Return whether bytes are waiting to be sent."""
        return bool(self._outgoing)

    @property
    def ended(self) -> bool:
        """Return whether the other side has closed, and everything that it sent has been received."""
        try:
            return not self._decoder.left and not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, frame: Frame, descriptors: Sequence[int] = ()) -> None:
        """Send or queue a frame. The caller may close the descriptors afterwards. Raise OSError if the other side has
        closed, or if no more descriptors can be queued."""
        data = memoryview(encode(frame, len(descriptors)))
        waits = self.congested or not self._send(data, descriptors)
        if waits:
            self._outgoing.append((data, tuple(map(os.dup, descriptors))))

    def flush(self) -> None:
        """Send as much of the queue as the kernel accepts. Raise OSError if the other side has closed."""
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            sent = self._send_some(data, descriptors)
            if sent:
                self._close(descriptors)
                self._outgoing[0] = (data[sent:], ())
            if sent < len(data):
                return
            self._outgoing.popleft()

    def _send(self, data: memoryview, descriptors: Sequence[int]) -> bool:
        """Send a frame, and queue what the kernel does not accept. Return False if it accepted nothing."""
        sent = self._send_some(data, descriptors)
        if 0 < sent < len(data):
            self._outgoing.append((data[sent:], ()))
        return sent > 0

    def _send_some(self, data: memoryview, descriptors: Sequence[int]) -> int:
        """Return the number of bytes that the kernel accepted. The descriptors are sent with the first byte."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            return self.sock.sendmsg((data,), ancillary, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0

    def receive(self) -> Iterator[tuple[F, tuple[int, ...]]]:
        """Yield received frames with their descriptors, which the caller then owns. Raise EOFError or OSError if the
        other side has closed, and GarbledError for an invalid frame. After a MemoryError the bytes are kept; call this
        again, because the socket may not become readable."""
        yield from self._frames(0)
        try:
            arrived, ancillary, flags, _ = self.sock.recvmsg_into(
                (self._decoder.room,), _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                self._received.extend(received)
        # Descriptors may belong to an incomplete frame and to the one after it.
        if len(self._received) > 2 * DESCRIPTORS_LIMIT:
            raise GarbledError(f"{len(self._received)} descriptors arrived, and no frame for them")
        if flags & socket.MSG_CTRUNC:
            raise GarbledError("the kernel dropped descriptors; is the limit on open files reached?")
        if not arrived:
            raise EOFError
        yield from self._frames(arrived)

    def _frames(self, arrived: int) -> Iterator[tuple[F, tuple[int, ...]]]:
        for frame, count in self._decoder.frames(arrived):
            if count > len(self._received):
                raise GarbledError(f"a frame needs {count} descriptors, {len(self._received)} arrived")
            yield frame, tuple(self._received.popleft() for _ in range(count))

    def close(self) -> None:
        """Close the socket, and all descriptors that are received or queued."""
        self.sock.close()
        for _, descriptors in self._outgoing:
            self._close(descriptors)
        self._outgoing.clear()
        self._close(self._received)
        self._received.clear()

    @staticmethod
    def _close(descriptors: Iterable[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
