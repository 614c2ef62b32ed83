"""Compares manifests with their last reading, and reads the changed manifests. It blocks, so it has to run in a
thread."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import PurePath
from typing import NamedTuple

from kubeproxy.kubernetes.manifests.files import FileChangingError, PathMemory, ReadError, Signature, look, read_file
from kubeproxy.kubernetes.manifests.http import is_url
from kubeproxy.model import EndpointSlice, Service
from kubeproxy.model.manifests import ManifestProblem, ManifestState, PathState
from kubeproxy.sources.manifests.documents import Reading, read
from kubeproxy.sources.manifests.inventory import Difference, Inventory
from kubeproxy.sources.manifests.objects import ObjectKind, Terms
from kubeproxy.sources.manifests.watch import Directories, directories

STDIN = "-"
STDIN_ORIGIN = "standard input"
NO_MEMORY = "not enough memory to read it"
EMPTIED_S = 10.0
"""How long the Services of a file are kept after the file has lost all of them, because programs may truncate a file
before they write it."""

Answer = bytes | ReadError | None
"""The content of a URL or of standard input, or the reason why it cannot be read, or None if it is unchanged."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one comparison: the changes, and all objects if they were requested."""

    difference: Difference
    state: ManifestState
    services: Sequence[Service] = ()
    slices: Sequence[EndpointSlice] = ()


class _Look(NamedTuple):
    """The files of a configured path, and their differences from the last reading."""

    files: Mapping[str, Signature]
    changed: list[str]
    gone: list[str]
    faults: dict[str, str]


class ManifestReader:
    """Keeps the last reading of each manifest. The caller ensures that only one comparison runs at a time."""

    def __init__(self, paths: Sequence[str], *, recursive: bool, terms: Terms) -> None:
        self.paths = tuple(dict.fromkeys(path if _special(path) else os.path.normpath(path) for path in paths))
        self._recursive = recursive
        self._terms = terms
        self._memories = {path: PathMemory(path) for path in self.paths if not _special(path)}
        self._inventory = Inventory()
        self._readings: dict[str, Reading] = {}
        self._faults: dict[str, dict[str, str]] = {}
        """The faults of each configured path, and of files and directories in it, by path."""
        self._unread: dict[str, str] = {}
        """The reason why a file's newest version could not be read, by file."""
        self._emptied: dict[str, float] = {}
        """The files that have lost all of their Services, and the time until which the Services are kept."""
        self._state = ManifestState()
        self.directories: Directories = frozenset()
        """The directories to be watched without their subdirectories. They include the parents of configured paths,
        because a path may be replaced."""
        self.trees: Directories = frozenset()
        """The directories to be watched with everything below them."""

    @property
    def awaits_stdin(self) -> bool:
        """Return whether standard input is a manifest and has not been read yet."""
        return STDIN in self.paths and STDIN_ORIGIN not in self._readings

    @property
    def settling(self) -> bool:
        """Return whether any file has changed so recently that the change may be incomplete."""
        return any(memory.settling for memory in self._memories.values())

    @property
    def emptied(self) -> bool:
        """Return whether Services are kept of a file that has lost all of them."""
        return bool(self._emptied)

    def why_not_served(self, namespace: str, name: str) -> str:
        """Return why a Service is not served, as `Inventory.why_not_served` does."""
        return self._inventory.why_not_served(namespace, name)

    def forget(self) -> None:
        """Let the next comparison read all files again, even unchanged files."""
        for memory in self._memories.values():
            memory.forget()

    def compare(self, answers: Mapping[str, Answer], *, whole: bool = False) -> Step:
        """Check all files, add the `answers` of URLs and standard input, and return the changes. With `whole`, return
        all objects, too."""
        faults = self._faults | {path: {} for path in answers}
        now = time.monotonic()
        looks = {path: self._look_at(memory, now) for path, memory in self._memories.items()}
        readings: dict[str, Reading | None] = {path: None for seen in looks.values() for path in seen.gone}
        readings |= self._read(looks, answers)
        for path, seen in looks.items():
            unread = {file: reason for file, reason in self._unread.items() if file in seen.files}
            faults[path] = unread | seen.faults
        for path, answer in answers.items():
            if isinstance(answer, ReadError):
                faults[path] = {path: str(answer)}
        for origin, reading in readings.items():
            if reading is None:
                self._readings.pop(origin, None)
            else:
                self._readings[origin] = reading
        self.directories, self.trees = self._watched()
        if not whole and not readings and faults == self._faults:
            return Step(Difference(), self._state)
        self._faults = faults
        difference = self._inventory.update(readings)
        services, slices = list(self._inventory.services()), list(self._inventory.slices())
        problems = {problem.key: problem for problem in [*self._path_troubles(), *self._inventory.problems()]}
        state = ManifestState(
            loaded=True,
            paths=tuple(self._path_state(path) for path in self.paths),
            services=len(services),
            slices=len(slices),
            problems=tuple(problems.values()),
            last_change=time.time() if len(difference) else self._state.last_change,
        )
        self._state = state
        return Step(difference, state, services, slices) if whole else Step(difference, state)

    def _look_at(self, memory: PathMemory, now: float) -> _Look:
        listing = look(memory.path, recursive=self._recursive)
        changed, gone, faults = memory.compare(listing, now)
        return _Look(listing.files, changed, gone, faults)

    def _read(self, looks: Mapping[str, _Look], answers: Mapping[str, Answer]) -> dict[str, Reading]:
        """Read the changed manifests, and note files that cannot be read."""
        states: dict[str, list[tuple[PathMemory, Signature]]] = {}
        readings = {}
        for origin, data in self._texts(looks, answers, states):
            try:
                reading = read(data, self._terms, self._readings.get(origin))
            except MemoryError:
                if origin not in states:
                    raise
                self._unread[origin] = NO_MEMORY
                continue
            if origin in states and self._keeps_services(origin, reading):
                self._unread[origin] = f"has lost all Services, which is believed if it is so for {EMPTIED_S:g} s"
            else:
                readings[origin] = reading
                for memory, signature in states.pop(origin, ()):
                    memory.loaded(origin, signature)
        return readings

    def _keeps_services(self, file: str, reading: Reading) -> bool:
        """Return whether the Services of a file are kept for now, although this reading of the file has none."""
        lost = self._inventory.services_of(file) and not any(
            entry.broken or (entry.name is not None and entry.name.kind is ObjectKind.SERVICE)
            for _, entry in reading.entries
        )
        if not lost:
            self._emptied.pop(file, None)
            return False
        return time.monotonic() < self._emptied.setdefault(file, time.monotonic() + EMPTIED_S)

    def _texts(
        self,
        looks: Mapping[str, _Look],
        answers: Mapping[str, Answer],
        states: dict[str, list[tuple[PathMemory, Signature]]],
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the texts of the changed manifests, in the order of the configured paths. Add the signature of each
        file to `states`. The caller passes it to the file's `PathMemory` after the file is parsed."""
        for path in self.paths:
            for file in looks[path].changed if path in looks else ():
                self._unread.pop(file, None)
                try:
                    data, signature = read_file(file)
                except FileChangingError:
                    continue
                except ReadError as error:
                    self._unread[file] = str(error)
                    continue
                except MemoryError:
                    self._unread[file] = NO_MEMORY
                    continue
                states.setdefault(file, []).append((self._memories[path], signature))
                yield file, data
            if isinstance(answer := answers.get(path), bytes):
                yield _origin(path), answer

    def _watched(self) -> tuple[Directories, Directories]:
        """Return the directories to be watched without their subdirectories, and those to be watched with everything
        below them."""
        own = [path for path, memory in self._memories.items() if memory.directory is not None]
        parents = [os.path.dirname(os.path.abspath(path)) for path in self._memories]
        if self._recursive:
            return directories(parents), directories(own)
        return directories(parents + own), frozenset()

    def _path_troubles(self) -> Iterator[ManifestProblem]:
        for path, faults in self._faults.items():
            origin = _origin(path)
            for place, reason in faults.items():
                # The message does not say which manifests of the path are kept, because that would take a search.
                kept = any(_holds(origin, other) for other in self._inventory.origins())
                message = f"{reason}; its last good version stays served" if kept else reason
                yield ManifestProblem(_origin(place), 0, "", message)

    def _path_state(self, path: str) -> PathState:
        origin = _origin(path)
        manifests = [other for other in self._inventory.origins() if _holds(origin, other)]
        objects = sum(self._inventory.objects_of(manifest) for manifest in manifests)
        return PathState(origin, len(manifests), objects, self._faults.get(path, {}).get(path, ""))


def _special(path: str) -> bool:
    return path == STDIN or is_url(path)


def _origin(path: str) -> str:
    return STDIN_ORIGIN if path == STDIN else path


def _holds(path: str, origin: str) -> bool:
    if origin == path or origin.startswith(path.rstrip("/") + "/"):
        return True
    return has_magic(path) and PurePath(origin).match(path)
