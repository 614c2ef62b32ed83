"""What is sent to a worker at once: messages, and the sockets that go with them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.dataplane.messages import Listen, Message
from kubeproxy.dataplane.workers.process import WorkerProcess
from kubeproxy.dataplane.workers.protocol import Answer, Apply
from kubeproxy.dataplane.workers.sockets import FrontendSockets
from kubeproxy.model import FrontendName

CHUNK = 32
"""Frontends told of in one frame: their sockets are open in both processes for a moment."""
CHUNK_SOCKETS = 256
"""At most that many for all workers together."""
CHUNK_MESSAGES = 64
"""In one frame, which a worker decodes in one turn: about a millisecond, with ten endpoints each."""


class WorkerBatch:
    """Messages for one worker, and the sockets that go with them."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.messages: list[Message] = []
        self._sockets: list[tuple[FrontendSockets, socket.socket]] = []

    def add_listen(self, sockets: FrontendSockets) -> None:
        """A frontend, with the worker's socket. OSError when there is none to be had."""
        self._sockets.append((sockets, sockets.socket_for(self.worker.number)))
        self.messages.append(sockets.listen)

    def send(self) -> asyncio.Future[Answer | None]:
        """Off it goes."""
        messages = tuple(self.messages)
        answer = self.worker.request(lambda number: Apply(number, messages), [sock for _, sock in self._sockets])
        for sockets, sock in self._sockets:
            sockets.passed(sock)
        return answer


def for_all(parcels: Mapping[int, WorkerBatch], message: Message, *, unless_untold: FrontendName | None = None) -> None:
    """For everybody, but those who have yet to be told of this frontend at all, and will be told what then is so."""
    for batch in parcels.values():
        if unless_untold not in batch.worker.untold:
            batch.messages.append(message)


def chunks(messages: Sequence[Message], *, workers: int) -> Iterator[Sequence[Message]]:
    """In order, as many at a time as so many workers may be told of at once, each Listen with what follows it."""
    listens = max(1, min(CHUNK, CHUNK_SOCKETS // workers))
    chunk: list[Message] = []
    count = 0
    for message in messages:
        if isinstance(message, Listen):
            count += 1
        if count > listens or len(chunk) == CHUNK_MESSAGES:
            yield chunk
            chunk, count = [], isinstance(message, Listen)
        chunk.append(message)
    if chunk:
        yield chunk
