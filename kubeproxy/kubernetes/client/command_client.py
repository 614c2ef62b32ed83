"""Requests of a command to an API server: any verb, warnings, waits that the server asks for.

A watch-based client is in `client`; this one is for programs that ask, write and end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from io import BytesIO
from time import time
from typing import Any, Final
from urllib.parse import urlsplit

from kubeproxy.kubernetes.client.credentials import headers as credential_headers
from kubeproxy.kubernetes.client.decode import excerpt, retry_after
from kubeproxy.kubernetes.client.errors import Garbage, Unreachable
from kubeproxy.kubernetes.client.kubeconfig import ClientConfig
from kubeproxy.kubernetes.client.status import StatusError, parse_status
from kubeproxy.kubernetes.client.transport import Link, lines, read, read_beginning

ANSWER_S: Final = 75.0
"""How long a whole answer may take, in seconds; the server gives up after 60 s."""
MAX_ANSWER_BYTES: Final = 256 << 20
MAX_WAITS: Final = 10
"""How often one request is repeated because the server asked for that (client-go: 10)."""
MAX_WAIT_S: Final = 60.0
"""The longest of these waits, even where the server asks for more."""
LARGE_BODY: Final = 1 << 20
"""Bytes; a longer one is handed to the connection piece by piece."""
_MAX_ERROR_BYTES: Final = 256 << 10
_REPEATED: Final = 3
"""How often a request that changes nothing is tried where the connection breaks."""
_REPEAT_S: Final = 0.5
UNSENT: Final = frozenset({"refused", "no route", "name", "tls"})
"""Causes of an `Unreachable` after which the server cannot have seen the request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A success."""

    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        """The media type with its parameters."""
        return self.headers.get("Content-Type", "")

    def decoded(self) -> Any:
        """The JSON body; `Garbage` where it is none."""
        import msgspec

        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Garbage(
                f"the server answered {self.code} with no JSON ({error}): {excerpt(self.body)}", cause="garbage"
            ) from None


def _nothing(*_: object) -> None:
    return None


@dataclass(slots=True)
class Hooks:
    """Callbacks of a client while it works."""

    on_warning: Callable[[str], None] = _nothing
    """A ``Warning`` header's text."""
    on_wait: Callable[[float, str], None] = _nothing
    """The seconds that the server asked for, and why."""


class RestClient:
    """One API server. Use it as an async context manager."""

    def __init__(self, config: ClientConfig, *, timeout_s: float | None = None, hooks: Hooks | None = None) -> None:
        """`timeout_s`: for a single request; None: `ANSWER_S`."""
        self.config = config
        self.hooks = hooks or Hooks()
        self.clock_skew_s: float | None = None
        """The server's clock less ours, by its last Date header; good to a second. None: not known."""
        self._timeout_s = timeout_s or ANSWER_S
        self._link: Link | None = None
        self._renewing = asyncio.Lock()
        self._plugin_ran = False

    async def __aenter__(self) -> RestClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._link is not None:
            await self._link.close()

    @property
    def host(self) -> str:
        """Host and port."""
        return urlsplit(self.config.host).netloc

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "application/json"
    ) -> Answer:
        """A GET, tried again where the connection breaks. Raises StatusError, Unreachable, Garbage."""
        for attempt in range(1, _REPEATED + 1):
            try:
                return await self.request("GET", path, query, accept=accept)
            except Unreachable as error:
                if attempt == _REPEATED or error.cause not in ("no response", "reset", "cut"):
                    raise
            await asyncio.sleep(_REPEAT_S * attempt)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch; `silence_s` is its longest silence. Raises StatusError, Unreachable, Garbage."""
        link = await self._connected()
        headers = credential_headers(self.config)
        headers["Accept"] = "application/json"
        headers["Accept-Encoding"] = "identity"
        response = await link.ask("GET", path, query, headers=headers, body=None, silence_s=silence_s)
        try:
            self._note(response.headers)
            if response.status != 200:
                refusal = bytes(await read_beginning(response, max_bytes=_MAX_ERROR_BYTES))
                raise _refusal(response.status, response.headers, refusal, f"get {path}")
            yield lines(response)
        finally:
            response.close()

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        """Send one request.

        It is repeated only where the server asks for it (429 and 5xx with Retry-After), or refuses the credentials and
        there are new ones. Raises StatusError, Unreachable, Garbage."""
        renewed = failed = False
        waits = 0
        while True:
            link = await self._connected()
            headers = credential_headers(self.config)
            headers["Accept"] = accept
            headers["Accept-Encoding"] = "gzip"
            if body is not None:
                headers["Content-Type"] = content_type
            data = BytesIO(body) if body is not None and len(body) > LARGE_BODY else body
            response = await link.ask(method, path, query or {}, headers=headers, body=data, total_s=self._timeout_s)
            try:
                self._note(response.headers)
                if response.status in (200, 201, 202):
                    return Answer(
                        response.status, response.headers, bytes(await read(response, max_bytes=MAX_ANSWER_BYTES))
                    )
                refusal = bytes(await read_beginning(response, max_bytes=_MAX_ERROR_BYTES))
            finally:
                if response.content.at_eof():
                    response.release()
                else:
                    response.close()
            if response.status == 401 and not renewed:
                renewed = True
                if await self._renew(link):
                    continue
            wait_s = retry_after(response.headers.get("Retry-After"), time())
            if wait_s is not None and (response.status == 429 or response.status >= 500) and waits < MAX_WAITS:
                waits += 1
                failed = failed or response.status >= 500
                wait_s = min(wait_s, MAX_WAIT_S)
                self.hooks.on_wait(wait_s, f"the server answered {response.status}")
                await asyncio.sleep(wait_s)
                continue
            error = _refusal(response.status, response.headers, refusal, f"{method.lower()} {path}")
            if isinstance(error, StatusError):
                error.repeated = failed
            raise error

    async def _connected(self) -> Link:
        if self._link is None:
            async with self._renewing:  # requests that begin together wait for the plugin, which one of them runs
                if self.config.plugin is not None and not self._plugin_ran:
                    await self._run_plugin()
                self._link = self._link or Link(self.config)
        return self._link

    async def _run_plugin(self) -> None:
        from kubeproxy.kubernetes.client.plugins import Plugin

        self._plugin_ran = True
        self.config = await (await Plugin.load(self.config)).answer(self.config)

    async def _renew(self, refused: Link) -> bool:
        """Ask for new credentials; whether there may be any."""
        if self.config.plugin is None and not self.config.token_file:
            return False
        async with self._renewing:
            if self._link is refused and self.config.plugin is not None:
                before = self.config.token, self.config.cert_file
                await self._run_plugin()
                if (self.config.token, self.config.cert_file) == before:
                    return False
                self._link = None
                await refused.retire()
        return True

    def _note(self, headers: Mapping[str, str]) -> None:
        with suppress(TypeError, ValueError, KeyError):
            self.clock_skew_s = parsedate_to_datetime(headers["Date"]).timestamp() - time()
        for value in getattr(headers, "getall", lambda *_: ())("Warning", ()):
            for text in warnings_of(value):
                self.hooks.on_warning(text)


def _refusal(code: int, headers: Mapping[str, str], body: bytes, about: str) -> StatusError | Garbage:
    if 300 <= code < 400:
        return Garbage(
            f"the server answered {code} (a redirect to {headers.get('Location', 'nowhere')}); is this an API server?",
            cause="not JSON",
            status=code,
        )
    return parse_status(body, code, about)


def warnings_of(header: str) -> list[str]:
    """The texts of a Warning header with code 299 (RFC 7234, 5.5); what cannot be read is left out."""
    found = []
    rest = header.strip()
    while rest:
        code, _, rest = rest.partition(" ")
        _, _, rest = rest.partition(" ")  # the agent, mostly "-"
        if not code.isdecimal() or not rest.startswith('"'):
            break
        text, position, escaped = [], 1, False
        while position < len(rest) and (escaped or rest[position] != '"'):
            escaped = rest[position] == "\\" and not escaped
            if not escaped:
                text.append(rest[position])
            position += 1
        if int(code) == 299 and text:
            found.append("".join(text))
        rest = rest[position + 1 :].lstrip()
        if rest.startswith('"'):  # a date
            rest = rest[1:].partition('"')[2].lstrip()
        rest = rest.removeprefix(",").lstrip()
    return found
