"""The HTTP session with one API server. It turns network errors into `ApiError` with readable messages.

TCP keepalive is on, because otherwise a watch would wait forever if the peer has died without closing the connection.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import zlib
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import aiohttp
from multidict import CIMultiDict

from kubeproxy.kubernetes.client.decode import LineSplitter
from kubeproxy.kubernetes.client.errors import GarbageError, UnreachableError
from kubeproxy.kubernetes.client.kubeconfig import ClientConfig
from kubeproxy.kubernetes.client.status import excerpt
from kubeproxy.kubernetes.environment_proxy import environment_proxy
from kubeproxy.model.errors import ConfigError
from kubeproxy.model.version import __version__

TCP_CONNECT_S = 4.0
"""The time limit of a TCP handshake, in seconds. It is short, because the kernel repeats SYN only after 1, 3 and 7 s,
so a new connection reaches a returning server sooner."""
CONNECT_S = 10.0
"""The time limit for making a connection, with name resolution and TLS, in seconds."""
PIECE_BYTES = 256 << 10
"""The largest piece of a body that is returned at once, in bytes. Decompressing it takes about a millisecond."""

# Keepalive probes start after 5 s of silence, and the connection is closed 9 s after the peer's last packet, long
# before a read timeout. A connection survives shorter outages, because TCP repeats lost segments.
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 9000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class Link:
    """The HTTP session with one API server. After `retire` it closes as soon as its last request has ended."""

    def __init__(self, configuration: ClientConfig) -> None:
        """Make the session without connecting. Raise `ConfigError` if the certificates or the proxy are invalid."""
        self.configuration = configuration
        self.base: str = configuration.host.rstrip("/")
        self._proxy, self._proxy_headers = _proxy(self.base, configuration.proxy)
        try:
            tls = _tls(configuration)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the CA or client certificate for {self.base} is unusable: {error}") from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, socket_factory=_open_socket, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"kubeproxy/{__version__}", "Accept": "application/json"},
            auto_decompress=False,
        )
        self._users = 0
        self._retired = False

    async def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        total_s: float | None = None,
        silence_s: float | None = None,
        head_s: float | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request, and return the response with its body unread. Redirects are not followed. The headers of the
        answer must arrive within `head_s` seconds."""
        limits = aiohttp.ClientTimeout(
            total=total_s, connect=CONNECT_S, sock_connect=TCP_CONNECT_S, sock_read=silence_s
        )
        # With TLS, CONNECT has the proxy's headers. Without TLS, the request itself has to have them.
        if self._proxy_headers and self.base.startswith("http://"):
            headers = CIMultiDict([*headers.items(), *self._proxy_headers.items()])
        with explained(self.base + path):
            async with asyncio.timeout(head_s):
                return await self._session.request(
                    method,
                    self.base + path,
                    params=query,
                    data=body,
                    headers=headers,
                    timeout=limits,
                    allow_redirects=False,
                    proxy=self._proxy,
                    proxy_headers={**self._proxy_headers, **(self.configuration.proxy_headers or {})} or None,
                    server_hostname=self.configuration.tls_server_name,
                )

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Keep the session open inside the context."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._retired and self._users == 0:
                await self.close()

    async def retire(self) -> None:
        """Close the session when no request uses it any more."""
        self._retired = True
        if self._users == 0:
            await self.close()

    async def close(self) -> None:
        """Close the session at once."""
        await self._session.close()


async def read(response: aiohttp.ClientResponse, *, max_bytes: int) -> bytearray:
    """Read a whole body. Raise `GarbageError` if it is longer than `max_bytes`."""
    body = await read_beginning(response, max_bytes=max_bytes + 1)
    if len(body) > max_bytes:
        raise GarbageError(f"{response.url} answered with more than {max_bytes} bytes", cause="endless answer")
    return body


async def read_beginning(response: aiohttp.ClientResponse, *, max_bytes: int) -> bytearray:
    """Read a body, at most its first `max_bytes`. The buffer grows in place, because joining pieces would need twice
    the memory."""
    body = bytearray()
    async with aclosing(pieces(response)) as found:
        async for data in found:
            body += data[: max_bytes - len(body)]
            if len(body) == max_bytes:
                break
    return body


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the lines of a body while it arrives, without line ends. Raise `UnreachableError` if the body ends with an
    incomplete line."""
    splitter = LineSplitter()
    where = str(response.url.with_query(None))  # The query is long, and the same for all watches.
    async for data in pieces(response, where=where):
        for line in splitter.feed(data):
            yield line
    if rest := splitter.rest:
        raise UnreachableError(f"{where}: the stream ended within a line: {excerpt(rest)}", cause="half line")


async def pieces(response: aiohttp.ClientResponse, *, where: str = "") -> AsyncGenerator[bytes, None]:
    """Yield a body while it arrives, decompressed, in pieces of at most `PIECE_BYTES`. Error messages begin with
    `where`, by default the URL. aiohttp does not decompress, because it would return a received piece as a whole, and
    text of tenants may grow a thousandfold."""
    where = where or str(response.url)
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding not in ("gzip", "identity"):
        raise GarbageError(
            f"{where} answered in the encoding {excerpt(encoding.encode())}, not asked for", cause="garbage"
        )
    unpacked = _Gzip(where) if encoding == "gzip" else None
    while True:
        with explained(where):
            data = await response.content.readany()
        if not data:
            break
        if unpacked is None:
            yield data
        else:
            for piece in unpacked.feed(data):
                yield piece
    if unpacked is not None and not unpacked.ended:
        raise UnreachableError(f"{where}: the answer was cut off before its end", cause="cut")


class _Gzip:
    """Decompresses a body of one or more gzip members, piece by piece."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    @property
    def ended(self) -> bool:
        return self._member.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        full = False  # Whether there may be more output although all of `data` was consumed.
        while data or full:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            try:
                piece = self._member.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise GarbageError(f"{self._where} answered what is no gzip: {error}", cause="garbage") from error
            if piece:
                yield piece
            full = len(piece) == PIECE_BYTES and not self._member.eof
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn network errors inside the context into `UnreachableError`, whose message begins with `where`."""
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        cause, what = _cause(error)
        raise UnreachableError(": ".join(filter(None, (where, what, _text(error)))), cause=cause) from error


def _text(error: BaseException) -> str:
    """Return the error's message on one line, or an empty text if it says nothing new.

    If an answer ended too early, the library's message is "400", which would be misleading.
    """
    if isinstance(error, aiohttp.ClientPayloadError) and "not completed" in str(error):
        return str(error.__cause__) if isinstance(error.__cause__, OSError) else ""
    if type(error) is aiohttp.ClientConnectorError and (number := error.os_error.errno) is not None:
        # Use the name of the error number, because the library's message is about asyncio's calls. Subclasses are
        # excluded, because their numbers are TLS's or DNS's.
        return "" if number == errno.ECONNREFUSED else os.strerror(number)
    return " ".join(str(error).split()) or ("" if isinstance(error, TimeoutError) else type(error).__name__)


def _cause(error: BaseException) -> tuple[str, str]:
    match error:
        case ssl.SSLError() | aiohttp.ClientSSLError():
            return "tls", "TLS failed"
        case TimeoutError():
            return "timeout", "no answer in time"
        case aiohttp.ClientConnectorDNSError():
            return "name", "the name does not resolve"
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return "refused", "connection refused"
        case aiohttp.ClientConnectorError():
            return "no route", "could not connect"
        case aiohttp.ServerDisconnectedError():
            return "no response", "the server closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            return "cut", "the answer was cut off before its end"
        case OSError():
            return "reset", "the connection broke"
        case _:
            return "not HTTP", "the answer could not be understood"


def _proxy(base: str, configured: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the URL of the proxy from the configuration, or else from the environment, and a header with the
    credentials in that URL. Raise `ConfigError` if the proxy is not an HTTP proxy."""
    found = environment_proxy(base) if configured is None else configured
    if not found:
        return None, {}
    parts = urlsplit(found if "://" in found else f"http://{found}")
    if parts.scheme not in ("http", "https"):
        named_by = "the environment's proxy" if configured is None else "proxy-url"
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise ConfigError(f"{named_by}: found {where}; allowed: the URL of an HTTP proxy, with http or https")
    if parts.username is None:
        return parts.geturl(), {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    headers = {"Proxy-Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), headers


def _tls(configuration: ClientConfig) -> ssl.SSLContext | bool:
    if not configuration.host.startswith("https"):
        return True
    tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    # Since 3.13, Python rejects CAs without key usage or key identifier. Go accepts them.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # Trust every CA of the file, as Go does. By default, OpenSSL does not trust an intermediate CA without its root.
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    sock = socket.socket(family, kind, protocol)
    for level, option, value in _SOCKET_OPTIONS:
        sock.setsockopt(level, option, value)
    return sock
