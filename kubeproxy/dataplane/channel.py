"""One end of the channel between the control process and a worker: frames and descriptors over a Unix stream socket.

It waits for nothing: whoever owns it calls `receive` when the socket is readable, and `flush` when it is writable and
`congested` says so.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic

from kubeproxy.dataplane.wire import DESCRIPTORS_LIMIT, Decoder, F, Frame, GarbledError, encode

READ_BYTES = 256 * 1024
_ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_LIMIT * array.array("i").itemsize)


class Channel(Generic[F]):
    """Sends frames of any kind and receives those of one."""

    def __init__(self, sock: socket.socket, receives: object) -> None:
        """`receives` is `wire.Request` or `wire.Report`."""
        sock.setblocking(False)
        self.sock = sock
        self._decoder: Decoder[F] = Decoder(receives)
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._received: deque[int] = deque()
        """Descriptors that came, and whose frame is not complete yet."""

    @property
    def congested(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._outgoing)

    def send(self, frame: Frame, descriptors: Sequence[int] = ()) -> None:
        """Send, or queue, a frame; the descriptors must stay open until it is answered. OSError when the other side is
        gone."""
        self._outgoing.append((memoryview(encode(frame, len(descriptors))), tuple(descriptors)))
        if len(self._outgoing) == 1:
            self.flush()

    def flush(self) -> None:
        """Send as much of the queue as the kernel takes. OSError when the other side is gone."""
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                sent = self.sock.sendmsg((data,), ancillary, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            if sent == len(data):
                self._outgoing.popleft()
            else:
                # The descriptors went with the first byte.
                self._outgoing[0] = (data[sent:], ())

    def receive(self) -> Iterator[tuple[F, tuple[int, ...]]]:
        """The frames that have come, with their descriptors, which are the receiver's now. EOFError when the other side
        is gone, OSError when that is how it shows, GarbledError when what came makes no sense."""
        while True:
            try:
                data, ancillary, flags, _ = self.sock.recvmsg(
                    READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    passed = array.array("i")
                    passed.frombytes(payload[: len(payload) - len(payload) % passed.itemsize])
                    self._received.extend(passed)
            if flags & socket.MSG_CTRUNC:
                raise GarbledError("descriptors were lost on the way; is the limit on open files reached?")
            if not data:
                raise EOFError
            for frame, count in self._decoder.feed(data):
                if count > len(self._received):
                    raise GarbledError(f"a frame announces {count} descriptors, and {len(self._received)} came")
                yield frame, tuple(self._received.popleft() for _ in range(count))

    def close(self) -> None:
        """Close the socket and what came and was not given out."""
        self.sock.close()
        self._outgoing.clear()
        while self._received:
            os.close(self._received.popleft())
