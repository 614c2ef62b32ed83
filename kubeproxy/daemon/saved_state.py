"""Reads and writes the file of the last state. It has the objects of the sources, for a start that cannot list them
yet.

The file holds values of `kubeproxy.model`. These contain no secrets, but they name every Service of the cluster, so
only the file's owner may read it. A file from another node, boot, set of sources or version of the model is refused as
a whole (`UnusableStateError`). The file is replaced atomically, so a reader finds either the old or the new one. It is
not synced to disk, because a state from before a reboot, as after a power failure, is refused anyway.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import socket
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from kubeproxy.model import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Node,
    Service,
    ServicePort,
)
from kubeproxy.model.errors import KubeproxyError

FILE: Final = "state"
SIZE_MAX: Final = 256 << 20
"""The size limit of the file in bytes: ten times the uncompressed size of 10,000 Services with 10 endpoints each."""
_PART: Final = 100
"""How many objects are encoded at once. This takes less than a millisecond, during which no other thread runs."""
_PART_MAX: Final = 64 << 20
"""The largest size of a part in bytes, uncompressed."""
_MAGIC: Final = b"kubeproxy state\n"
_LENGTH: Final = struct.Struct(">I")
_NETNS_COOKIE: Final = 71
"""SO_NETNS_COOKIE of Linux 5.14 (asm-generic/socket.h)."""


class UnusableStateError(KubeproxyError):
    """Raised if the file cannot be used, or cannot be written."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The objects of one source."""

    name: str
    services: Sequence[Service]
    slices: Sequence[EndpointSlice]
    since: float | None = None
    """Since when (Unix time) changes may be missing, or None if none were missing when this was written."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """The objects of all complete sources, and the Node object."""

    sources: Sequence[SourceState]
    node: Node | None = None


class _Header(msgspec.Struct, array_like=True, frozen=True):
    shape: str
    place: str
    identity: str
    node: Node | None
    sources: list[tuple[str, float | None, int, int]]
    """For each source: its name, since when changes may be missing, and the numbers of Services and of
    EndpointSlices."""


class StateFile:
    """The state file in a directory. `identity` stands for the node and the configuration; a state with another
    identity is refused.

    The file's name contains the number of the network namespace, because daemons in two namespaces of a host may use
    the same directory. The methods block, so call them in a thread.
    """

    def __init__(self, directory: Path, identity: str) -> None:
        self._directory = directory
        self.path = directory / f"{FILE}-{_namespace()}"
        self._identity = identity

    def __str__(self) -> str:
        return str(self.path)

    def write(self, state: SavedState) -> None:
        """Replace the file. Raise UnusableStateError if that fails."""
        temporary = self._directory / f".{self.path.name}.{os.getpid()}"
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_unfinished()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(_MAGIC)
                for part in self._parts(state):
                    data = zlib.compress(part, 1)
                    if file.tell() + len(data) > SIZE_MAX:
                        raise UnusableStateError(f"{self}: more than {SIZE_MAX >> 20} MiB")
                    file.write(_LENGTH.pack(len(data)) + data)
            temporary.replace(self.path)
        except OSError as error:
            raise UnusableStateError(f"{self}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def confirm(self) -> None:
        """Record in the file that it is still up to date now."""
        with contextlib.suppress(OSError):  # The next write will report the error.
            os.utime(self.path)

    def read(self) -> SavedState | None:
        """Return the state in the file, with the `since` of each source set, or None if there is no file. Raise
        UnusableStateError if the file cannot be used."""
        try:
            with contextlib.suppress(FileNotFoundError):
                self._remove_unfinished()
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnusableStateError(f"{self}: {error.strerror or error}") from error
        try:
            with open(descriptor, "rb") as file:
                found = os.fstat(file.fileno())
                self._check(found)
                return self._decoded(file, found.st_mtime)
        except (OSError, zlib.error, struct.error, ValueError, TypeError, RecursionError) as error:
            # The errors of msgspec are ValueErrors.
            raise UnusableStateError(f"{self}: not a state: {error}") from error

    def is_of_here(self) -> bool:
        """Return whether there is a file for this network namespace."""
        with contextlib.suppress(OSError, ValueError, zlib.error, struct.error), self.path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC and _header(file).place == _place()
        return False

    def remove(self) -> bool:
        """Remove the file if it belongs to this network namespace, and return whether it did."""
        with contextlib.suppress(OSError):
            if self.is_of_here():
                self.path.unlink()
                return True
        return False

    def _remove_unfinished(self) -> None:
        """Remove the unfinished files of writers that were killed."""
        for path in self._directory.glob(f".{self.path.name}.*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _check(self, found: os.stat_result) -> None:
        directory = self._directory.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UnusableStateError(f"{self}: not a regular file")
        if found.st_uid != os.geteuid() or directory.st_uid not in (0, os.geteuid()):
            raise UnusableStateError(f"{self}: belongs to another user")
        if found.st_mode & 0o077 or directory.st_mode & 0o022:
            raise UnusableStateError(f"{self}: open to other users")
        if found.st_size > SIZE_MAX:
            raise UnusableStateError(f"{self}: more than {SIZE_MAX >> 20} MiB")

    def _parts(self, state: SavedState) -> Iterator[bytes]:
        encode = msgspec.msgpack.Encoder().encode
        sources = [(it.name, it.since, len(it.services), len(it.slices)) for it in state.sources]
        yield encode(_Header(_shape(), _place(), self._identity, state.node, sources))
        for source in state.sources:
            for objects in (source.services, source.slices):
                for start in range(0, len(objects), _PART):
                    yield encode(objects[start : start + _PART])

    def _decoded(self, file: BinaryIO, confirmed_at: float) -> SavedState:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise UnusableStateError(f"{self}: not a state")
        header = _header(file)
        if header.place != _place():
            raise UnusableStateError(f"{self}: of another boot, or of another network namespace")
        if header.identity != self._identity:
            raise UnusableStateError(f"{self}: of another node, or of other sources")
        services = msgspec.msgpack.Decoder(list[Service])
        slices = msgspec.msgpack.Decoder(list[EndpointSlice])
        sources = [
            SourceState(
                name,
                list(_objects(file, services, of_services)),
                list(_objects(file, slices, of_slices)),
                confirmed_at if since is None else since,
            )
            for name, since, of_services, of_slices in header.sources
        ]
        return SavedState(sources, header.node)


def _header(file: BinaryIO) -> _Header:
    header = msgspec.msgpack.decode(_part(file), type=_Header)
    if header.shape != _shape():
        raise ValueError("written by another version")
    return header


def _objects(file: BinaryIO, decoder: msgspec.msgpack.Decoder[list[Any]], count: int) -> Iterator[Any]:
    while count > 0:
        part = decoder.decode(_part(file))
        if not 0 < len(part) <= count:
            raise ValueError(f"a part of {len(part)} objects")
        count -= len(part)
        yield from part


def _part(file: BinaryIO) -> bytes:
    """Read the next part. The checksum of zlib detects damage."""
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    unpacking = zlib.decompressobj()
    part = unpacking.decompress(file.read(min(length, SIZE_MAX)), _PART_MAX)
    if not unpacking.eof:
        raise ValueError("incomplete")
    return part


def _place() -> str:
    """Return an identifier of this boot and this network namespace. In another boot or namespace the same addresses may
    mean other hosts."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {_namespace()}"


def _namespace() -> str:
    """Return the number of this network namespace. It is unique until the next boot. (Before Linux 5.14 it may be
    reused when the namespace is gone.)"""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        cookie = sock.getsockopt(socket.SOL_SOCKET, _NETNS_COOKIE, 8)
        return f"{int.from_bytes(cookie, 'little'):x}"
    return str(os.stat("/proc/self/ns/net").st_ino)


def _shape() -> str:
    """Return a digest of the model's fields. A version of this program with other fields refuses the file."""
    kinds: Iterable[type[Any]] = (Service, ServicePort, EndpointSlice, EndpointPort, Endpoint, Node)
    fields = [(kind.__name__, [(field.name, str(field.type)) for field in dataclasses.fields(kind)]) for kind in kinds]
    return hashlib.sha256(repr(fields).encode()).hexdigest()
