"""Requests to an API server that may be away for a while: sent again until it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final, Protocol, TypedDict, Unpack

from kubeproxy.commands.rolling_update.options import FIELD_MANAGER
from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.client.command_client import Answer
from kubeproxy.kubernetes.client.decode import error_of
from kubeproxy.kubernetes.client.errors import Garbage, Unreachable
from kubeproxy.kubernetes.client.status import StatusError
from kubeproxy.runtime.backoff import DoublingBackoff

_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 3.0
_STARTING_S: Final = 15.0
"""A server that has just started refuses everything with 401 or 403 until its rules are loaded."""


class Content(TypedDict, total=False):
    """What a request carries."""

    body: bytes | None
    content_type: str


class Rest(Protocol):
    """An API server, as `RestClient` speaks to it."""

    clock_skew_s: float | None

    async def request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, **content: Unpack[Content]
    ) -> Answer:
        """Send one request. Raises StatusError, Unreachable, Garbage."""


class SteadyRest:
    """One server. A request may be sent more than once; one that never was answered is not repeated."""

    def __init__(
        self,
        rest: Rest,
        *,
        patience_s: float,
        on_wait: Callable[[str], None] = lambda _reason: None,
        random: Random | None = None,
    ) -> None:
        """`patience_s`: how long a server that has answered is waited for; `on_wait` is called meanwhile."""
        self._rest = rest
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._random = random or Random()
        self._answered = False
        self._down_since: float | None = None
        """When the failures in a row began; None: the last request was answered."""
        self._failed_at: float | None = None

    def now(self) -> float:
        """The server's time in Unix seconds, good to a second."""
        return time.time() + (self._rest.clock_skew_s or 0.0)

    async def request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, **content: Unpack[Content]
    ) -> Answer:
        """One request, sent again while the server is away. Raises StatusError, Unreachable, Garbage."""
        sent = dict(query or {}) | ({"fieldManager": FIELD_MANAGER} if method in ("PUT", "POST", "PATCH") else {})
        backoff = DoublingBackoff(first_s=_FIRST_PAUSE_S, limit_s=_LONGEST_PAUSE_S)
        while True:
            try:
                answer = await self._rest.request(method, path, sent, **content)
            except (Unreachable, StatusError, Garbage) as error:
                if not self._may_pass(error):
                    raise
                self._on_wait(f"the API server: {error}")
                await asyncio.sleep(backoff.next() * self._random.uniform(0.8, 1.2))
            else:
                self._note_answer()
                return answer

    def _note_answer(self) -> None:
        self._answered = True
        self._down_since = None

    def _may_pass(self, error: Exception) -> bool:
        """Whether the request may succeed when it is sent again."""
        now = asyncio.get_running_loop().time()
        if isinstance(error, StatusError) and error.code < 500 and error.code != 429:
            if error.code in (401, 403) and self._failed_at is not None and now - self._failed_at < _STARTING_S:
                return True
            self._note_answer()
            return False
        if not self._answered:
            return False
        self._failed_at = now
        if self._down_since is None:
            self._down_since = now
        return now - self._down_since < self._patience_s


class SteadyRequests:
    """The same server for an `ObjectClient`, which takes bodies and ApiErrors."""

    def __init__(self, rest: SteadyRest) -> None:
        self._rest = rest

    async def get_json(self, path: str, query: Mapping[str, str] | None = None) -> bytearray:
        """The body of an answer; an `ApiError` for anything else."""
        return await _body(self._rest.request("GET", path, query))

    async def send_json(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json"
    ) -> bytearray:
        """Write something; the body of the answer."""
        return await _body(self._rest.request(method, path, body=body, content_type=content_type))


async def _body(request: Awaitable[Answer]) -> bytearray:
    try:
        return bytearray((await request).body)
    except StatusError as error:
        status = api_types.Status(reason=error.reason, message=str(error))
        raise error_of(status, code=error.code, seen="the server answered") from None
