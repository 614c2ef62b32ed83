"""Lists and reads manifest files and directories, and detects when a change of a file is complete."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SUFFIXES = (".yaml", ".yml", ".json")
"""The file name suffixes of manifests in a directory. A file that is given by its own path may have any name."""
MAX_BYTES = 256 * 1024 * 1024
"""The largest file that is read, in bytes."""
SETTLE_S = 0.1
"""A changed file is read after it has not changed again for this time, because programs write files in pieces."""
SETTLE_GONE_S = 0.3
"""A file counts as deleted or empty only after this time, because editors move or truncate the old file before they
write the new one."""
SETTLE_AT_MOST_S = 5.0
"""A file that keeps changing is read after this time."""
REPLACED_AT_MOST_S = 0.5
"""A file that is repeatedly replaced by new files is read after this time. It is shorter, because new files are usually
complete."""


class Signature(NamedTuple):
    """Identifies the state of a file without reading it."""

    device: int
    inode: int
    size: int
    modified_ns: int


class Identity(NamedTuple):
    """Identifies a directory, to detect that another directory has taken its path."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The files found at a configured path at one moment."""

    files: Mapping[str, Signature] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    """The reason why a path could not be read, by path. Files below such a path count as unchanged."""
    directory: Identity | None = None
    """The directory's identity, or None if the path is a file or does not exist."""


def look(path: str, *, recursive: bool) -> Listing:
    """List the manifests at a path, which is a file, a directory, or a pattern such as ``app-*.yaml``. This never
    raises; paths that cannot be read are in `Listing.faults`."""
    try:
        found = os.stat(path)
    except OSError as error:
        return _matching(path) or Listing(faults={path: _reason(error)})
    if stat.S_ISREG(found.st_mode):
        return Listing(files={path: _signature(found)})
    if not stat.S_ISDIR(found.st_mode):
        return Listing(faults={path: "neither a file nor a directory"})
    files: dict[str, Signature] = {}
    faults: dict[str, str] = {}
    _look_into(path, recursive, files, faults, {Identity(found.st_dev, found.st_ino)})
    return Listing(files, faults, Identity(found.st_dev, found.st_ino))


def _matching(pattern: str) -> Listing | None:
    """List the regular files that match a pattern. Return None if no file matches."""
    if not glob.has_magic(pattern):
        return None
    files: dict[str, Signature] = {}
    for path in sorted(glob.glob(pattern)):
        with contextlib.suppress(OSError):  # It was deleted meanwhile, or is a dangling link.
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                files[path] = _signature(found)
    return Listing(files=files) if files else None


def _look_into(
    directory: str, recursive: bool, files: dict[str, Signature], faults: dict[str, str], seen: set[Identity]
) -> None:
    """Add the manifests of a directory in the order of their names, and then those of its subdirectories. Skip hidden
    files, also a ConfigMap's ``..data``. Editors' backups are skipped because of their suffix."""
    try:
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError as error:
        faults[directory] = _reason(error)
        return
    subdirectories = []
    for name in names:
        if not recursive and not name.endswith(SUFFIXES):
            continue
        path = os.path.join(directory, name)
        try:
            found = os.stat(path)
        except FileNotFoundError:
            continue  # It was deleted meanwhile, or is a dangling link.
        except OSError as error:
            faults[path] = _reason(error)
            continue
        if stat.S_ISREG(found.st_mode) and name.endswith(SUFFIXES):
            files[path] = _signature(found)
        elif recursive and stat.S_ISDIR(found.st_mode) and Identity(found.st_dev, found.st_ino) not in seen:
            seen.add(Identity(found.st_dev, found.st_ino))  # Links may form a cycle.
            subdirectories.append(path)
    for path in subdirectories:
        _look_into(path, recursive, files, faults, seen)


def _signature(found: os.stat_result) -> Signature:
    return Signature(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


class ReadError(Exception):
    """Raised if a manifest cannot be read. The message is the reason."""


class FileChangingError(Exception):
    """Raised if a file changed or disappeared while it was read. The caller has to list the path again."""


def read_file(path: str) -> tuple[bytes, Signature]:
    """Return a file's contents and signature. Raise ReadError if it cannot be read, and FileChangingError if it changed
    meanwhile."""
    try:
        # O_NONBLOCK: a pipe may have replaced the file, and opening a pipe would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise ReadError("not a regular file")
            if before.st_size > MAX_BYTES:
                raise ReadError(f"{before.st_size} bytes; allowed: up to {MAX_BYTES}")
            data = file.read(before.st_size + 1)  # Allocates the whole buffer at once.
            if _signature(os.fstat(file.fileno())) != _signature(before):
                raise FileChangingError
    except FileNotFoundError:
        raise FileChangingError from None
    except OSError as error:
        raise ReadError(_reason(error)) from None
    return data, _signature(before)


class PathMemory:
    """Remembers the files of one configured path from check to check. It is pure: listings and time are arguments."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.directory: Identity | None = None
        self._loaded: dict[str, Signature] = {}
        self._unsettled: dict[str, tuple[Signature | None, float, float]] = {}
        """The files that may still be changing: the present signature, when it was first seen, and when the present
        series of changes began."""

        self._looked = False

    @property
    def settling(self) -> bool:
        """Return whether any file may still be changing. The caller then has to check again soon."""
        return bool(self._unsettled)

    def compare(self, listing: Listing, now: float) -> tuple[list[str], list[str], dict[str, str]]:
        """Compare a new listing with the known files. Return the files to be read, the deleted files, and the faults by
        path.

        If the path is missing, or the directory was replaced by an empty one because its volume was unmounted, no file
        counts as deleted. Objects are withdrawn if their file is deleted, but not if the volume is lost.
        """
        faults = dict(listing.faults)
        files = listing.files
        if self.path not in faults and self._loaded and not files and listing.directory != self.directory:
            faults[self.path] = "replaced by an empty directory"
        elif listing.directory is not None:
            self.directory = listing.directory
        lost = tuple(faults)
        missing = [path for path in self._loaded if path not in files and not (lost and _under(path, lost))]
        differing = [path for path, signature in files.items() if self._loaded.get(path) != signature]
        for path in self._unsettled.keys() - {*missing, *differing}:
            del self._unsettled[path]
        gone = [path for path in missing if self._settled(path, None, SETTLE_GONE_S, now)]
        # If a file appears while another disappears, it may have been renamed. Both are then reported at the same time,
        # because otherwise the file's objects would be missing for a moment.
        renaming = len(gone) < len(missing)
        changed = [
            path
            for path in differing
            if not self._looked
            or self._settled(
                path,
                files[path],
                SETTLE_GONE_S if not files[path].size or (renaming and path not in self._loaded) else SETTLE_S,
                now,
            )
        ]
        for path in gone:
            del self._loaded[path]
        self._looked = True
        return changed, gone, faults

    def _settled(self, path: str, state: Signature | None, patience_s: float, now: float) -> bool:
        """Return whether a file's new state (None: deleted) has been stable for `patience_s` seconds, or its changes
        have lasted for too long."""
        before, since, first = self._unsettled.get(path, (state, now, now))
        if before != state:
            since = now
        replaced = before is not None and state is not None and before.inode != state.inode
        self._unsettled[path] = (state, since, first)
        if now - since < patience_s and now - first < (REPLACED_AT_MOST_S if replaced else SETTLE_AT_MOST_S):
            return False
        del self._unsettled[path]
        return True

    def loaded(self, path: str, signature: Signature) -> None:
        """Note that a file was read, with its signature."""
        self._loaded[path] = signature

    def forget(self) -> None:
        """Forget all signatures, so that all files are read again at the next check."""
        self._loaded = {path: Signature(0, 0, 0, 0) for path in self._loaded}
        self._looked = False


def _under(path: str, parents: tuple[str, ...]) -> bool:
    return any(path == parent or path.startswith(parent.rstrip("/") + "/") for parent in parents)
