"""The messages for a worker that are sent in one frame, with their sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubeproxy.dataplane.messages import Join, Listen, Message
from kubeproxy.dataplane.workers.frontend_sockets import ServedFrontend
from kubeproxy.dataplane.workers.process import WorkerProcess
from kubeproxy.dataplane.workers.protocol import Apply, Reply
from kubeproxy.model import FrontendName

CHUNK = 32
"""The number of frontends in one frame. Their sockets are open in both processes for a moment."""
CHUNK_SOCKETS = 256
"""The number of sockets in one frame to each worker, over all workers."""
CHUNK_MESSAGES = 64
"""The number of messages in one frame. A worker decodes them in one turn, which takes about a millisecond with ten
endpoints each."""


class WorkerBatch:
    """A batch of messages and sockets for one worker."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.messages: list[Message] = []
        self._sockets: list[tuple[ServedFrontend[Any], socket.socket]] = []

    def add_first(self, frontend: ServedFrontend[Any]) -> None:
        """Add a frontend's first message, a `Listen` with the worker's socket. Raise OSError when there is no socket
        for it."""
        if (sock := frontend.socket_for(self.worker.number)) is not None:
            self._sockets.append((frontend, sock))
        self.messages.append(frontend.begin)

    def send(self) -> asyncio.Future[Reply | None]:
        """Send the batch as one request, and return the worker's reply (see `WorkerProcess.request`)."""
        messages = tuple(self.messages)
        reply = self.worker.request(lambda number: Apply(number, messages), [sock for _, sock in self._sockets])
        for sockets, sock in self._sockets:
            sockets.close_sent(sock)
        return reply


def add_to_all(
    batches: Mapping[int, WorkerBatch], message: Message, *, unless_unsent: FrontendName | None = None
) -> None:
    """Add a message to the batches of all workers that have the frontend `unless_unsent`. A new worker that has yet to
    get the frontend will get its state of that time."""
    for batch in batches.values():
        if unless_unsent not in batch.worker.unsent:
            batch.messages.append(message)


def chunks(messages: Sequence[Message], *, workers: int) -> Iterator[Sequence[Message]]:
    """Yield the messages in chunks of one frame. Each `Listen` or `Join` is in a chunk with those that follow it."""
    listens = max(1, min(CHUNK, CHUNK_SOCKETS // workers))
    chunk: list[Message] = []
    count = 0
    for message in messages:
        if isinstance(message, Listen | Join):
            count += 1
        if count > listens or len(chunk) == CHUNK_MESSAGES:
            yield chunk
            chunk, count = [], isinstance(message, Listen | Join)
        chunk.append(message)
    if chunk:
        yield chunk
