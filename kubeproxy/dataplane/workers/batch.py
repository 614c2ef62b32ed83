"""A batch of messages and sockets for one worker, sent in one frame."""

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
"""The largest number of frontends in one frame. Their sockets are briefly open in both processes."""
CHUNK_SOCKETS = 256
"""The largest number of sockets in the frames for all workers together."""
CHUNK_MESSAGES = 64
"""The largest number of messages in one frame. A worker decodes a frame in one turn. With ten endpoints per message
this takes about a millisecond."""


class WorkerBatch:
    """A batch of messages and sockets for one worker."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.messages: list[Message] = []
        self._sockets: list[tuple[ServedFrontend[Any], socket.socket]] = []

    def add_first(self, frontend: ServedFrontend[Any]) -> None:
        """Add a frontend's first message: a `Listen` together with the worker's socket, or a `Join`, which needs none.
        Raise OSError if the kernel refuses to make the socket."""
        if (sock := frontend.socket_for(self.worker.number)) is not None:
            self._sockets.append((frontend, sock))
        self.messages.append(frontend.begin)

    def send(self) -> asyncio.Future[Reply | None]:
        """Send the batch as one request. The result is the worker's reply (see `WorkerProcess.request`)."""
        messages = tuple(self.messages)
        reply = self.worker.request(lambda number: Apply(number, messages), [sock for _, sock in self._sockets])
        for sockets, sock in self._sockets:
            sockets.close_sent(sock)
        return reply


def add_to_all(
    batches: Mapping[int, WorkerBatch], message: Message, *, unless_unsent: FrontendName | None = None
) -> None:
    """Add a message to the batches of all workers. With `unless_unsent`, skip new workers that have not been sent this
    frontend yet; they will get its latest state later."""
    for batch in batches.values():
        if unless_unsent not in batch.worker.unsent:
            batch.messages.append(message)


def chunks(messages: Sequence[Message], *, workers: int) -> Iterator[Sequence[Message]]:
    """Yield the messages in chunks for one frame each. A `Listen` or `Join` is never separated from the messages that
    belong to it."""
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
