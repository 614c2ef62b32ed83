"""The policy of a client: its limits, its retries, and the functions that it calls for warnings and waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol, TypeVar

from kubeproxy.kubernetes.client.errors import ApiError, GarbageError, StatusError, UnreachableError
from kubeproxy.runtime.backoff import DoublingBackoff

T = TypeVar("T")

ANSWER_S: Final = 75.0
"""The time limit in seconds for a whole answer. The server's own limit is 60 s, after API priority and fairness has
queued the request for up to 15 s."""
MAX_ANSWER_BYTES: Final = 32 << 20
"""The largest body that is read as a whole. Lists are read in pieces (`Client.pieces`), without this limit."""
MAX_COMMAND_ANSWER_BYTES: Final = 256 << 20
"""The largest body that a command reads as a whole. It is larger, because commands read whole lists and exit soon."""
MAX_WAITS: Final = 10
"""How often a command repeats a request if the server asks for that with Retry-After, as in client-go."""
MAX_WAIT_S: Final = 60.0
"""The longest wait in seconds for which a server may ask. Longer waits are reduced to it."""


class Retries(Protocol):
    """Decides whether a failed request is sent again."""

    async def attempt(self, method: str, send: Callable[[], Awaitable[T]]) -> T:
        """Call `send`, again if a retry may help, until it succeeds, and return its result. Raise its last error
        otherwise."""


class NoRetries:
    """Sends each request once. It is for reflectors and controllers, which have their own backoff."""

    async def attempt(self, method: str, send: Callable[[], Awaitable[T]]) -> T:
        """Send the request once."""
        return await send()


class RepeatReads:
    """Repeats a GET request if its connection breaks. Writes are not repeated, because the server may have carried them
    out."""

    TRIES: Final = 3
    PAUSE_S: Final = 0.5

    async def attempt(self, method: str, send: Callable[[], Awaitable[T]]) -> T:
        """Send the request. A GET request whose connection breaks is sent up to `TRIES` times."""
        for number in range(1, self.TRIES + 1):
            try:
                return await send()
            except UnreachableError as error:
                broken = error.cause in ("no response", "reset", "cut")
                if method != "GET" or not broken or number == self.TRIES:
                    raise
            await asyncio.sleep(self.PAUSE_S * number)
        raise AssertionError("the last try returns or raises")


class WaitForServer:
    """Repeats every request until it is answered, while a server that has answered before is unreachable.

    A write may therefore be carried out more than once. If the server has never answered, nothing is repeated.
    """

    FIRST_PAUSE_S: Final = 0.25
    LONGEST_PAUSE_S: Final = 3.0
    STARTING_S: Final = 15.0
    """How long, in seconds, 401 and 403 are retried after an outage. A server that has just started sends them until
    its RBAC rules are loaded."""

    def __init__(
        self,
        patience_s: float,
        *,
        on_wait: Callable[[str], None] = lambda _reason: None,
        random: Random | None = None,
    ) -> None:
        """Wait at most `patience_s` seconds for the server. Call `on_wait` with the reason before each further
        attempt."""
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._random = random or Random()
        self._answered = False
        self._down_since: float | None = None
        """When the present series of failures began, or None if the last request was answered."""
        self._failed_at: float | None = None

    async def attempt(self, method: str, send: Callable[[], Awaitable[T]]) -> T:
        """Send the request until the server answers, or has been unreachable for too long."""
        backoff = DoublingBackoff(first_s=self.FIRST_PAUSE_S, limit_s=self.LONGEST_PAUSE_S)
        while True:
            try:
                answer = await send()
            except (UnreachableError, StatusError, GarbageError) as error:
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

    def _may_pass(self, error: ApiError) -> bool:
        """Return whether the request may succeed at a further attempt."""
        now = asyncio.get_running_loop().time()
        code = error.status if isinstance(error, StatusError) else None
        if code is not None and code < 500 and code != 429:
            if code in (401, 403) and self._failed_at is not None and now - self._failed_at < self.STARTING_S:
                return True
            self._note_answer()
            return False
        if not self._answered:
            return False
        self._failed_at = now
        if self._down_since is None:
            self._down_since = now
        return now - self._down_since < self._patience_s


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a client sends requests. The defaults are for long-lived programs; `for_command` returns the policy of a
    command."""

    qps: float = 0.0
    """The average number of requests per second. There is no limit if it is 0 or less."""
    burst: int = 10
    answer_s: float = field(default_factory=lambda: ANSWER_S)
    """The time limit for a whole answer, in seconds."""
    max_answer_bytes: int = MAX_ANSWER_BYTES
    waits: int = 0
    """How often a request is repeated if the server answers 429 or 5xx with Retry-After."""
    retries: Retries = field(default_factory=NoRetries)
    field_manager: str = ""
    """The field manager that the server records for each write. If it is empty, the server uses the User-Agent."""
    kubectl_words: bool = False
    """Whether errors have kubectl's messages, without the URL, for a person at a terminal."""
    on_warning: Callable[[str], None] = _ignore
    """A function that is called with the text of each ``Warning`` header."""
    on_wait: Callable[[float, str], None] = _ignore
    """A function that is called with the seconds to wait, and the reason, before each wait for which the server
    asks."""

    @classmethod
    def for_command(
        cls,
        *,
        answer_s: float | None = None,
        retries: Retries | None = None,
        field_manager: str = "",
        on_warning: Callable[[str], None] = _ignore,
        on_wait: Callable[[float, str], None] = _ignore,
    ) -> Policy:
        """Return the policy of a command. If `answer_s` is None, the time limit for an answer is `ANSWER_S`."""
        return cls(
            answer_s=answer_s or ANSWER_S,
            max_answer_bytes=MAX_COMMAND_ANSWER_BYTES,
            waits=MAX_WAITS,
            retries=retries or RepeatReads(),
            field_manager=field_manager,
            kubectl_words=True,
            on_warning=on_warning,
            on_wait=on_wait,
        )
