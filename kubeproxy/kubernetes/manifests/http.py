"""Fetches manifests from a web server, with conditional requests.

The HTTP client is imported at the first request, so that a daemon without URLs starts faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urljoin, urlsplit

from kubeproxy.kubernetes.environment_proxy import environment_proxy
from kubeproxy.kubernetes.manifests.files import MAX_BYTES, ReadError

if TYPE_CHECKING:
    import aiohttp

TOTAL_S, SILENT_S = 120.0, 10.0
"""The time limits in seconds for a whole answer (50 MB over a slow link), and for silence within it."""
_REDIRECTING = frozenset({301, 302, 303, 307, 308})
"""The HTTP statuses of redirects."""
_PORTS = {"http": 80, "https": 443}
_ACCEPT = "application/yaml, application/json, text/plain;q=0.9, */*;q=0.1"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched manifest."""

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Version:
    """The validators of an answer, which conditional requests send back."""

    etag: str = ""
    last_modified: str = ""


def is_url(path: str) -> bool:
    """Return whether a configured path is a URL."""
    return path.startswith(("http://", "https://"))


async def fetch(session: Session, url: str, last: Version) -> Fetched | None:
    """Fetch a manifest. Return None if it has not changed since the version `last`.

    Raise ReadError for any other answer. An error page is not a manifest, and an empty body would withdraw all objects.
    """
    import aiohttp

    headers = {"Accept": _ACCEPT}
    if last.etag:
        headers["If-None-Match"] = last.etag
    if last.last_modified:
        headers["If-Modified-Since"] = last.last_modified
    try:
        async with follow(session.open(), url, WITHIN_SERVER, headers) as response:
            if response.status == 304 and headers.keys() != {"Accept"}:
                return None
            if response.status != 200:
                raise ReadError(f"the server answered {response.status} {response.reason or ''}".rstrip())
            data = await _body(response)
    except TimeoutError:
        raise ReadError("the server did not answer in time") from None
    except (aiohttp.ClientError, ValueError, OSError) as error:
        raise ReadError(str(error) or type(error).__name__) from None
    if response.content_type in ("text/html", "application/xhtml+xml") or data.lstrip()[:1] == b"<":
        raise ReadError("the server answered HTML; allowed: YAML or JSON")
    if not data.strip():
        raise ReadError("the server answered nothing")
    return Fetched(data, Version(response.headers.get("ETag", ""), response.headers.get("Last-Modified", "")))


@dataclass(frozen=True, slots=True)
class Redirects:
    """The rules for following redirects."""

    most: int
    permit: Callable[[str, str], bool]
    """A function that returns whether the first URL may redirect to the second."""
    permitted: str
    """A description of the permitted redirects, for error messages."""


@asynccontextmanager
async def follow(
    session: aiohttp.ClientSession, url: str, redirects: Redirects, headers: Mapping[str, str] | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send a GET request and follow its redirects. Raise ValueError for a redirect that is not permitted."""
    at = url
    for _ in range(redirects.most + 1):
        async with session.get(at, headers=headers, allow_redirects=False, proxy=environment_proxy(at)) as response:
            location = response.headers.get("Location", "")
            if response.status not in _REDIRECTING or not location:
                yield response
                return
        to = urljoin(at, location)
        if not redirects.permit(at, to):
            # The query may contain a secret.
            shown = urlsplit(to)._replace(query="", fragment="").geturl()
            raise ValueError(f"the server redirects to {shown[:200]!r}; allowed: {redirects.permitted}")
        at = to
    raise ValueError(f"stopped after {redirects.most} redirects")


def _server(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL. Raise ValueError if the port is not a number."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


WITHIN_SERVER = Redirects(5, lambda at, to: _server(at) == _server(to), "the same scheme, host and port")
"""The redirects that are permitted for the daemon's manifests. Redirects to another server are refused, because it
might be one that only this node can reach, or one without TLS."""


async def _body(response: aiohttp.ClientResponse) -> bytes:
    if (response.content_length or 0) > MAX_BYTES:
        raise ReadError(f"{response.content_length} bytes; allowed: up to {MAX_BYTES}")
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MAX_BYTES:
            raise ReadError(f"more than {MAX_BYTES} bytes, which is what is allowed")
        pieces.append(piece)
    return b"".join(pieces)


class Session:
    """An HTTP session that uses the environment's proxies and no cookies. It is a context manager, and connects at the
    first use."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> aiohttp.ClientSession:
        """Return the client session, which is made at the first call."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
                timeout=aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=SILENT_S, sock_read=SILENT_S),
            )
        return self._session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
