"""A connection with a deadline, whatever its client does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast


class TimedConnection(asyncio.Protocol):
    """Wraps aiohttp's protocol, and aborts the connection after `lifetime_s` seconds."""

    def __init__(self, inner: asyncio.Protocol, on_end: Callable[[TimedConnection], None], lifetime_s: float) -> None:
        """`on_end` is called when the connection ends, possibly more than once."""
        self._inner = inner
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._aborted = False
        self._deadline = asyncio.get_running_loop().call_later(lifetime_s, self.abort)
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        if self._aborted:  # The connection was aborted before it was made, because the loop was very late.
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the connection."""
        self._deadline.cancel()
        self._on_end(self)
        self._inner.connection_lost(exc)  # type: ignore[arg-type]

    def abort(self) -> None:
        """Abort the connection now. The client gets a reset."""
        self._aborted = True
        self._deadline.cancel()
        self._on_end(self)
        if self._transport is not None:
            self._transport.abort()
