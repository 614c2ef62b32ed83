"""The client of an API server. It sends requests and reads watches, with time limits. Every failure is an
`ApiError`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from io import BytesIO
from time import monotonic, time
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec
from multidict import CIMultiDict

from kubeproxy.kubernetes.client.credentials import Access, ClientSettings
from kubeproxy.kubernetes.client.errors import ApiError, GarbageError, StatusError, UnauthorizedError, UnreachableError
from kubeproxy.kubernetes.client.kubeconfig import ClientConfig
from kubeproxy.kubernetes.client.policy import MAX_ANSWER_BYTES, MAX_WAIT_S, Policy
from kubeproxy.kubernetes.client.request_metrics import Requests
from kubeproxy.kubernetes.client.status import (
    excerpt,
    kubectl_error,
    parse_status,
    retry_after,
    status_error,
    warnings_of,
)
from kubeproxy.kubernetes.client.token_bucket import TokenBucket
from kubeproxy.kubernetes.client.transport import Link, lines, pieces, read, read_beginning
from kubeproxy.model.errors import ConfigError

LARGE_BODY: Final = 1 << 20
"""A request body of more bytes is sent in pieces."""
_MAX_ERROR_BYTES: Final = 256 << 10
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer, whose body is read completely."""

    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        """Return the media type with its parameters."""
        return self.headers.get("Content-Type", "")

    def decoded(self) -> Any:
        """Decode the JSON body. Raise `GarbageError` if it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise GarbageError(
                f"the server answered {self.code} with no JSON ({error}): {excerpt(self.body)}", cause="garbage"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request, and the limits of its answer."""

    path: str
    method: str = "GET"
    query: Mapping[str, str] = field(default_factory=dict)
    accept: str = _JSON
    encoding: str = "gzip"
    body: bytes | None = None
    content_type: str = ""
    json_only: bool = True
    """Whether to raise `GarbageError` for an answer whose content type is not JSON."""
    total_s: float | None = None
    silence_s: float | None = None
    head_s: float | None = None


class Client:
    """The client of one API server. It connects at its first request. `connect` returns a client that has already read
    its credentials."""

    def __init__(self, access: Access, policy: Policy | None = None) -> None:
        self._access = access
        self._policy = policy or Policy()
        self._bucket = TokenBucket(qps=self._policy.qps, burst=self._policy.burst)
        self._link: Link | None = None
        self._renewing = asyncio.Lock()
        self._renewed_at = float("-inf")
        self._complaint = ""
        self._clock_skew_s: float | None = None
        self.requests = Requests(host=self.host)
        self.guard: Callable[[], None] | None = None
        """A function that is called immediately before each write. If it raises, the request is not sent."""

    @classmethod
    async def connect(cls, settings: ClientSettings) -> Self:
        """Read configuration and credentials, and return a client. This sends no request. Raise `ConfigError` if they
        are invalid."""
        client = cls(Access(settings.read), Policy(qps=settings.qps, burst=settings.burst))
        await client._connected()
        return client

    async def close(self) -> None:
        """Close the session. Requests in progress fail."""
        if self._link is not None:
            await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def config(self) -> ClientConfig:
        """Return the configuration that was read last."""
        return self._access.config

    @property
    def server(self) -> str:
        """Return the server's base URL."""
        return self.config.host.rstrip("/")

    @property
    def host(self) -> str:
        """Return the server's host and port."""
        return urlsplit(self.config.host).netloc

    @property
    def has_answered(self) -> bool:
        """Return whether the server has ever answered. An answer without a Date header does not count, because every
        API server sends one."""
        return self._clock_skew_s is not None

    @property
    def clock_skew_s(self) -> float:
        """Return by how many seconds the server's clock is ahead of this host's, from the last Date header. It is
        accurate to a second, and 0 before the first answer."""
        return self._clock_skew_s or 0.0

    def now(self) -> float:
        """Return the server's time in Unix seconds, accurate to a second."""
        return time() + self.clock_skew_s

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = _JSON) -> Answer:
        """Send a GET request, and return the answer, which may have any content type. Raise `ApiError` if the request
        fails."""
        return await self.request("GET", path, query, accept=accept)

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Answer:
        """Send one request, and return the answer. The policy decides whether a failed request is sent again.

        Raise `ApiError` if the request fails. After an `UnreachableError`, the server may still have carried out the
        request.
        """
        request = _Request(
            method=method,
            path=path,
            query=query or {},
            accept=accept,
            body=body,
            content_type="" if body is None else content_type,
            json_only=False,
            total_s=self._policy.answer_s,
        )
        response, answer = await self._read_whole(request, self._policy.max_answer_bytes)
        return Answer(response.status, response.headers, bytes(answer))

    async def get_json(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        max_bytes: int = MAX_ANSWER_BYTES,
        head_s: float | None = None,
    ) -> bytearray:
        """Send a GET request, and return the body, which is JSON. Raise `ApiError` if the request fails, if the answer
        is not JSON, or if it does not begin within `head_s` seconds."""
        request = _Request(path=path, query=query or {}, total_s=self._policy.answer_s, head_s=head_s)
        return (await self._read_whole(request, max_bytes))[1]

    async def send_json(self, method: str, path: str, body: bytes, *, content_type: str = _JSON) -> bytearray:
        """Write an object by POST or PATCH, and return the body of the answer, which is JSON. Raise `ApiError` if the
        request fails. After an `UnreachableError`, the server may still have accepted the write."""
        request = _Request(
            method=method, path=path, body=body, content_type=content_type, total_s=self._policy.answer_s
        )
        return (await self._read_whole(request, MAX_ANSWER_BYTES))[1]

    @asynccontextmanager
    async def pieces(
        self, path: str, query: Mapping[str, str], *, head_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield an iterator of a JSON answer's body, in pieces of at most `transport.PIECE_BYTES`, while it arrives.
        Raise `ApiError` for any other answer, if the answer does not begin within `head_s` seconds, or if it is not
        complete after the policy's `answer_s` seconds."""
        request = _Request(path=path, query=query, total_s=self._policy.answer_s, head_s=head_s)
        async with self._answer(request) as response:
            yield pieces(response)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float, head_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield an iterator of a watch's lines, without their line ends. Raise `ApiError` if the answer does not begin
        within `head_s` seconds, or if nothing arrives for `silence_s` seconds.

        The iterator ends when the server ends the watch. If the stream breaks off, it raises `UnreachableError`, and
        never yields an incomplete line.
        """
        request = _Request(path=path, query=query, encoding="identity", silence_s=silence_s, head_s=head_s)
        async with self._answer(request) as response:
            yield lines(response)

    async def _read_whole(self, request: _Request, max_bytes: int) -> tuple[aiohttp.ClientResponse, bytearray]:
        """Send a request, again if the policy says so, and read the whole answer."""

        async def send() -> tuple[aiohttp.ClientResponse, bytearray]:
            failed = False
            for waits in range(self._policy.waits + 1):
                try:
                    async with self._answer(request) as response:
                        return response, await read(response, max_bytes=max_bytes)
                except StatusError as error:
                    code, wait_s = error.status or 0, error.retry_after_s
                    if wait_s is None or not (code == 429 or code >= 500) or waits == self._policy.waits:
                        error.repeated = failed
                        raise
                    failed = failed or code >= 500
                    wait_s = min(wait_s, MAX_WAIT_S)
                    self._policy.on_wait(wait_s, f"the server answered {code}")
                    await asyncio.sleep(wait_s)
            raise AssertionError("the last try returns or raises")

        return await self._policy.retries.attempt(request.method, send)

    @asynccontextmanager
    async def _answer(self, request: _Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield the response if it is successful. After a 401 or a TLS failure, read credentials
        and certificates again and repeat the request once."""
        for last in (False, True):
            async with AsyncExitStack() as held:
                link = await self._connected()
                await held.enter_async_context(link.use())
                try:
                    response = await self._ask(link, request)
                except (UnauthorizedError, UnreachableError) as error:
                    stale = isinstance(error, UnauthorizedError) or error.cause == "tls"
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
        headers["Accept"] = request.accept
        headers["Accept-Encoding"] = request.encoding
        if request.content_type:
            headers["Content-Type"] = request.content_type
        query = request.query
        if self._policy.field_manager and request.method in ("POST", "PUT", "PATCH"):
            query = {**query, "fieldManager": self._policy.field_manager}
        body = request.body
        if self.guard is not None and request.method != "GET":
            self.guard()
        status, begun = None, monotonic()
        try:
            response = await link.ask(
                request.method,
                request.path,
                query,
                headers=headers,
                body=BytesIO(body) if body is not None and len(body) > LARGE_BODY else body,
                total_s=request.total_s,
                silence_s=request.silence_s,
                head_s=request.head_s,
            )
            status = response.status
        finally:
            self.requests.answered(request.method, status, monotonic() - begun)
        self._note(response.headers)
        if response.status in (200, 201, 202) and (response.content_type == _JSON or not request.json_only):
            return response
        try:
            refusal = await read_beginning(response, max_bytes=_MAX_ERROR_BYTES)
        finally:
            _done_with(response)
        raise self._error(link, request, response, refusal)

    def _note(self, headers: Mapping[str, str]) -> None:
        with suppress(TypeError, ValueError, KeyError):  # The header is absent or invalid.
            self._clock_skew_s = parsedate_to_datetime(headers["Date"]).timestamp() - time()
        for value in getattr(headers, "getall", lambda *_: ())("Warning", ()):
            for text in warnings_of(value):
                self._policy.on_warning(text)

    def _error(self, link: Link, request: _Request, response: aiohttp.ClientResponse, body: bytearray) -> ApiError:
        code = response.status
        terse = self._policy.kubectl_words
        where = "the server" if terse else link.base + request.path
        if code in (200, 201, 202):
            return GarbageError(
                f"{where} answered {response.content_type} where JSON was expected; is this an API server? The answer:"
                f" {excerpt(body)}",
                cause="not JSON",
                status=code,
            )
        if 300 <= code < 400:
            location = response.headers.get("Location", "nowhere")
            return GarbageError(
                f"{where} answered {code} (a redirect to {location}); is this an API server?",
                cause=f"status {code}",
                status=code,
            )
        wait_s = retry_after(response.headers.get("Retry-After"), time())
        if terse:
            return kubectl_error(body, code, f"{request.method.lower()} {request.path}", retry_after_s=wait_s)
        return status_error(parse_status(body), code=code, seen=f"{where} answered", retry_after_s=wait_s)

    async def _connected(self) -> Link:
        """Return the session. If there is none, read the credentials and make one; concurrent calls wait for it."""
        if self._link is None:
            async with self._renewing:
                if self._link is None:
                    self._link = Link(await self._access.configuration())
        return self._link

    async def _credentials(self, link: Link) -> Mapping[str, str]:
        """Return the headers with the credentials. If their renewal fails, log that once and return the last headers,
        which may still be valid."""
        try:
            headers = await self._access.headers(link.configuration)
        except ConfigError as error:
            last = self._access.last_headers
            if last is None:
                raise
            if str(error) != self._complaint:
                self._complaint = str(error)
                log = _log()
                log.warning("credentials not renewed", source="kubernetes", error=str(error))
            return last
        self._complaint = ""
        return headers

    async def _renew(self, stale: Link, why: ApiError) -> bool:
        """Read configuration and credentials again, because the request failed with `why`. Return whether the request
        should be repeated."""
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
                log = _log()
                log.warning("credentials not renewed", source="kubernetes", error=str(error), after=str(why))
                return False
        await stale.retire()
        return True


def _log() -> Any:
    import structlog  # Imported here, because commands start faster without it and hardly ever log.

    return structlog.get_logger(__name__)


def _done_with(response: aiohttp.ClientResponse) -> None:
    """Release the response's connection for reuse if the body was read completely. Otherwise close it."""
    if response.content.at_eof():
        response.release()
    else:
        response.close()
