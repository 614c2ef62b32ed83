"""Client of an API server: requests and watches with deadlines; every failure is an `ApiError`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Self
from urllib.parse import urlsplit

import aiohttp
import structlog
from multidict import CIMultiDict

from kubeproxy.kubernetes.client.credentials import Access, ClientSettings
from kubeproxy.kubernetes.client.decode import error_of, excerpt, parse_status, retry_after
from kubeproxy.kubernetes.client.errors import ApiError, Garbage, Unauthorized, Unreachable
from kubeproxy.kubernetes.client.request_metrics import Requests
from kubeproxy.kubernetes.client.token_bucket import TokenBucket
from kubeproxy.kubernetes.client.transport import Link, lines, pieces, read, read_beginning
from kubeproxy.model.errors import ConfigError

log = structlog.get_logger(__name__)

ANSWER_S = 75.0
"""Limit of a whole answer. The server's own is 60 s; its priority and fairness may first queue a request for 15 s."""
MAX_ANSWER_BYTES = 32 << 20
"""The longest body that is read whole. Lists are read in pieces (`Client.pieces`) and have no such bound."""
_MAX_ERROR_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request with its time limits."""

    path: str
    method: str = "GET"
    query: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "gzip"
    body: bytes | None = None
    content_type: str = ""
    total_s: float | None = None
    silence_s: float | None = None
    head_s: float | None = None


class Client:
    """Client of one API server. Build it with `connect`, then `close` it."""

    def __init__(self, access: Access, link: Link, bucket: TokenBucket, *, answer_s: float | None = None) -> None:
        """`answer_s`: the limit of a whole answer, in seconds; None: `ANSWER_S`."""
        self._access = access
        self._answer_s = ANSWER_S if answer_s is None else answer_s
        self._link = link
        self._bucket = bucket
        self._renewing = asyncio.Lock()
        self._renewed_at = float("-inf")
        self._complaint = ""
        self.requests = Requests(host=urlsplit(link.base).netloc)
        self.guard: Callable[[], None] | None = None
        """Called right before each request that writes; what it raises holds the request back."""

    @classmethod
    async def connect(cls, settings: ClientSettings) -> Self:
        """Read configuration and credentials, without a request. `ConfigError` if they are unusable."""
        return await cls.with_credentials(Access(settings.read), TokenBucket(qps=settings.qps, burst=settings.burst))

    @classmethod
    async def with_credentials(cls, access: Access, bucket: TokenBucket, *, answer_s: float | None = None) -> Self:
        """The same with credentials from elsewhere."""
        return cls(access, Link(await access.configuration()), bucket, answer_s=answer_s)

    async def close(self) -> None:
        """Close the session; running requests end with an error."""
        await self._link.close()

    @property
    def server(self) -> str:
        """The server's base URL."""
        return self._link.base

    async def get_json(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        max_bytes: int = MAX_ANSWER_BYTES,
        head_s: float | None = None,
    ) -> bytearray:
        """The body of a JSON answer; an `ApiError` for anything else, and if it does not begin within `head_s`."""
        async with self._answer(
            _Request(path=path, query=query or {}, total_s=self._answer_s, head_s=head_s)
        ) as response:
            return await read(response, max_bytes=max_bytes)

    @asynccontextmanager
    async def pieces(
        self, path: str, query: Mapping[str, str], *, head_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of a JSON answer in pieces (`transport.PIECE_BYTES` at most), as they arrive. An `ApiError` for
        anything else, where it does not begin within `head_s`, and where it is not over after `answer_s`."""
        request = _Request(path=path, query=query, total_s=self._answer_s, head_s=head_s)
        async with self._answer(request) as response:
            yield pieces(response)

    async def send_json(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json"
    ) -> bytearray:
        """Write an object (POST, PATCH); returns the answer's body. An `ApiError` if the server refused it; after an
        `Unreachable` the server may have accepted it."""
        request = _Request(method=method, path=path, body=body, content_type=content_type, total_s=self._answer_s)
        async with self._answer(request) as response:
            return await read(response, max_bytes=MAX_ANSWER_BYTES)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float, head_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch, without their line ends. It must begin within `head_s`; `silence_s` is its longest
        silence after that.

        The iterator ends with the stream, and raises `Unreachable` if the stream was cut off: it never yields half a
        line.
        """
        request = _Request(path=path, query=query, encoding="identity", silence_s=silence_s, head_s=head_s)
        async with self._answer(request) as response:
            yield lines(response)

    @asynccontextmanager
    async def _answer(self, request: _Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """A JSON response that means success. After a 401 or a TLS failure the client reads credentials and
        certificates again and repeats the request once."""
        for last in (False, True):
            async with AsyncExitStack() as held:
                link = self._link
                await held.enter_async_context(link.use())
                try:
                    response = await self._ask(link, request)
                except (Unauthorized, Unreachable) as error:
                    stale = isinstance(error, Unauthorized) or error.cause == "tls"
                    if last or not stale or not await self._renew(link, error):
                        raise
                    continue
                try:
                    yield response
                finally:
                    _done_with(response)
                return

    async def _ask(self, link: Link, request: _Request) -> aiohttp.ClientResponse:
        await asyncio.sleep(self._bucket.take(asyncio.get_running_loop().time()))
        headers = CIMultiDict(await self._credentials(link))
        headers["Accept-Encoding"] = request.encoding
        if request.content_type:
            headers["Content-Type"] = request.content_type
        if self.guard is not None and request.method != "GET":
            self.guard()
        status, begun = None, monotonic()
        try:
            response = await link.ask(
                request.method,
                request.path,
                request.query,
                headers=headers,
                body=request.body,
                total_s=request.total_s,
                silence_s=request.silence_s,
                head_s=request.head_s,
            )
            status = response.status
        finally:
            self.requests.answered(request.method, status, monotonic() - begun)
        if response.status in (200, 201) and response.content_type == "application/json":
            return response
        try:
            body = await read_beginning(response, max_bytes=_MAX_ERROR_BYTES)
        finally:
            _done_with(response)
        raise _refusal(response, body, where=link.base + request.path)

    async def _credentials(self, link: Link) -> Mapping[str, str]:
        """The headers. A failed renewal is logged once: the present credentials may still be good."""
        try:
            headers = await self._access.headers(link.configuration)
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("credentials not renewed", source="kubernetes", error=str(error))
            return self._access.last_headers(link.configuration)
        self._complaint = ""
        return headers

    async def _renew(self, stale: Link, why: ApiError) -> bool:
        """Read configuration and credentials again because of `why`; whether a new try makes sense."""
        async with self._renewing:
            if self._link is not stale:
                return True
            now = asyncio.get_running_loop().time()
            if now - self._renewed_at < self._access.forced_renewal_s:
                return False
            self._renewed_at = now
            try:
                self._link = Link(await self._access.configuration())
            except ConfigError as error:
                log.warning("credentials not renewed", source="kubernetes", error=str(error), after=str(why))
                return False
        await stale.retire()
        return True


def _done_with(response: aiohttp.ClientResponse) -> None:
    """Release a connection after its body was read completely; close any other."""
    if response.content.at_eof():
        response.release()
    else:
        response.close()


def _refusal(response: aiohttp.ClientResponse, body: bytearray, *, where: str) -> ApiError:
    if response.status in (200, 201):
        return Garbage(
            f"{where} answered {response.content_type} where JSON was expected; is this an API server? The answer: "
            f"{excerpt(body)}",
            cause="not JSON",
            status=response.status,
        )
    location = response.headers.get("Location")
    seen = f"{where} answered" + (f" (a redirect to {location})" if location else "")
    retry_after_s = retry_after(response.headers.get("Retry-After"), time())
    return error_of(parse_status(body), code=response.status, seen=seen, retry_after_s=retry_after_s)
