"""Finds the sources that ``-f`` arguments name: standard input, files, directories, patterns and URLs."""

from __future__ import annotations

import asyncio
import glob
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kubeproxy.kubernetes.manifests.files import MAX_BYTES, SUFFIXES
from kubeproxy.kubernetes.manifests.http import Redirects, Session, follow, is_url
from kubeproxy.kubernetes.resource_builder.errors import Position, SourceError, quoted
from kubeproxy.model.errors import ConfigError
from kubeproxy.runtime.threads import in_thread

STDIN: Final = "-"
STDIN_NAME: Final = "STDIN"
CHUNK: Final = 256 << 10
URL_ATTEMPTS: Final = 3
URL_PAUSE_S: Final = 1.0
_TLS: Final = "https://"
TO_ANY_SERVER: Final = Redirects(
    most=10,
    permit=lambda at, to: is_url(to) and (to.startswith(_TLS) or not at.startswith(_TLS)),
    permitted="https, or http from http",
)


class Source(Protocol):
    """A source of manifests."""

    @property
    def name(self) -> str:
        """Return the source's name for messages."""

    def read(self) -> AsyncIterator[bytes]:
        """Yield the contents, piece by piece. Raise SourceError if they cannot be read."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A source that is a file, a pipe, or a device."""

    name: str

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the contents. Waiting for a pipe does not block the event loop."""
        try:
            regular = stat.S_ISREG(os.stat(self.name).st_mode)
            descriptor = await _opened(self.name, in_time=regular)
            try:
                while data := await _piece(descriptor, in_time=regular):
                    yield data
            finally:
                os.close(descriptor)
        except OSError as error:
            reason = f"the path {quoted(self.name)} cannot be accessed: {error.strerror or error}"
            raise SourceError(reason, Position(self.name)) from None


async def _opened(path: str, *, in_time: bool) -> int:
    def attempt() -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    return attempt() if in_time else await in_thread(attempt)


async def _piece(descriptor: int, *, in_time: bool) -> bytes:
    """Read the next bytes. Unless `in_time`, read in a thread, because a terminal or a pipe may block."""
    if not in_time:
        return await in_thread(lambda: os.read(descriptor, CHUNK))
    await asyncio.sleep(0)
    return os.read(descriptor, CHUNK)


@dataclass(frozen=True, slots=True)
class StdinSource:
    """The source that is standard input."""

    name: str = STDIN_NAME

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the input while it arrives."""
        try:
            while data := await _piece(sys.stdin.fileno(), in_time=False):
                yield data
        except (OSError, ValueError) as error:
            raise SourceError(str(error), Position(self.name)) from None


@dataclass(frozen=True, slots=True)
class BytesSource:
    """A source whose contents are already in memory."""

    name: str
    data: bytes

    async def read(self) -> AsyncIterator[bytes]:
        """Yield all contents at once."""
        yield self.data


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A source that is a URL. Its whole answer is read into memory first, because no document may be used before the
    transfer is known to be complete."""

    name: str

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the body of the answer. Network errors and statuses from 500 on are retried."""
        async with Session() as web:
            for attempt in range(1, URL_ATTEMPTS + 1):
                try:
                    data = await _fetch(web, self.name)
                except _Passing as error:
                    if attempt == URL_ATTEMPTS:
                        raise SourceError(str(error), Position(self.name)) from None
                    await asyncio.sleep(URL_PAUSE_S)
                    continue
                for start in range(0, len(data), CHUNK):
                    yield data[start : start + CHUNK]
                return


class _Passing(Exception):
    """Raised for an error after which another attempt may succeed."""


async def _fetch(web: Session, url: str) -> bytes:
    import aiohttp

    where = Position(url)
    try:
        async with follow(web.open(), url, TO_ANY_SERVER) as response:
            if response.status != 200:
                said = f"{response.status} {response.reason or ''}".rstrip()
                message = f"unable to read URL {quoted(url)}, server reported {said}, status code={response.status}"
                raise _Passing(message) if response.status >= 500 else SourceError(message, where)
            pieces, size = [], 0
            async for piece in response.content.iter_any():
                size += len(piece)
                if size > MAX_BYTES:
                    raise SourceError(f"unable to read URL {quoted(url)}: more than {MAX_BYTES} bytes", where)
                pieces.append(piece)
    except TimeoutError:
        raise _Passing(f"unable to read URL {quoted(url)}: the server did not answer in time") from None
    except (aiohttp.InvalidURL, ValueError) as error:
        raise SourceError(f"unable to read URL {quoted(url)}: {error or 'no URL'}", where) from None
    except (aiohttp.ClientError, OSError) as error:
        raise _Passing(f"unable to read URL {quoted(url)}: {error or type(error).__name__}") from None
    data = b"".join(pieces)
    kind = response.content_type
    if kind in ("text/html", "application/xhtml+xml") or data.lstrip()[:1] == b"<":
        raise SourceError(f"unable to read URL {quoted(url)}: the server answered HTML, not YAML or JSON", where)
    return data


def expand(arguments: Sequence[str], *, recursive: bool) -> tuple[list[Source], list[ConfigError]]:
    """Return the sources that the arguments name, in their order, and the errors of invalid arguments.

    An argument may name several sources, separated by commas. With `recursive`, subdirectories are read, too.
    """
    sources: list[Source] = []
    errors: list[ConfigError] = []
    for name in (part for argument in arguments for part in _parts(argument)):
        try:
            found = list(_named(name, recursive=recursive))
        except ConfigError as error:
            errors.append(error)
            continue
        sources += found
    if sum(isinstance(source, StdinSource) for source in sources) > 1:
        errors.append(ConfigError("standard input cannot be used for multiple arguments"))
    return sources, errors


def _parts(argument: str) -> list[str]:
    """Split an argument at its commas, unless it is an existing file or a URL."""
    if "," not in argument or is_url(argument) or os.path.lexists(argument):
        return [argument]
    return argument.split(",")


def _named(name: str, *, recursive: bool) -> Iterator[Source]:
    if name == STDIN:
        yield StdinSource()
        return
    if is_url(name):
        yield UrlSource(name)
        return
    if not name:
        raise ConfigError('the path "" does not exist')
    if os.path.lexists(name):
        yield from _path(name, recursive=recursive)
        return
    matches = sorted(glob.glob(name)) if glob.has_magic(name) else []
    if not matches:
        raise ConfigError(f"the path {quoted(name)} does not exist")
    for match in matches:
        yield from _path(match, recursive=recursive)


def _path(path: str, *, recursive: bool) -> Iterator[Source]:
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise ConfigError(f"the path {quoted(path)} cannot be accessed: {error.strerror or error}") from None
    if not is_directory:
        yield FileSource(path)
        return
    found = [FileSource(file) for file in _walk(path, recursive=recursive)]
    if not found:
        raise ConfigError(f"error reading [{path}]: recognized file extensions are [.json .yaml .yml]")
    yield from found


def _walk(directory: str, *, recursive: bool) -> Iterator[str]:
    """Yield the paths of the manifests in a directory in the order of their names. The manifests of a subdirectory come
    at the place of its name.

    Links to directories are not followed. Names that begin with two dots are skipped, because in a mounted ConfigMap
    they are other versions of the same files.
    """
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise ConfigError(f"the path {quoted(directory)} cannot be accessed: {error.strerror or error}") from None
    for name in names:
        path = os.path.join(directory, name)
        if name.startswith(".."):
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            if recursive:
                yield from _walk(path, recursive=True)
        elif name.endswith(SUFFIXES):
            yield path
