"""The source ``manifests``: reads and watches files, directories, URLs and standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from glob import has_magic
from pathlib import PurePath
from typing import NamedTuple

import structlog

from kubeproxy.kubernetes.manifests.files import SETTLE_S, Changing, PathMemory, ReadError, Signature, look, read_file
from kubeproxy.kubernetes.manifests.http import Session, Version, fetch, is_url
from kubeproxy.model import EndpointSlice, Service
from kubeproxy.model.manifests import ManifestProblem, ManifestState, PathState
from kubeproxy.runtime.threads import NotBegun, in_thread
from kubeproxy.runtime.time_slice import TimeSlice
from kubeproxy.sources.manifests.documents import ObjectKind, Reading, Terms, read
from kubeproxy.sources.manifests.inventory import Difference, Inventory
from kubeproxy.sources.manifests.watch import Directories, Watcher, directories
from kubeproxy.sources.sink import Sink, SourceName

log = structlog.get_logger(__name__)

NAME = SourceName("manifests")
STDIN = "-"
STDIN_ORIGIN = "standard input"
POLL_S = 5.0
"""Interval of looks at files without a notification: inotify reports no change on NFS, nor behind a link into another
directory."""
UNWATCHED_POLL_S = 1.0
"""The same if directories cannot be watched."""
URL_POLL_S = 10.0
"""Interval of requests for each URL."""
SLICE_S = 0.001
"""Time for which changes go to the sink before other tasks run."""
WHOLE = 200
"""Changes that reach the sink without a pause between them."""
MAX_LINES = 20
"""Faults that are logged individually per change; the rest is counted."""
NO_MEMORY = "not enough memory to read it"
EMPTIED_S = 10.0
"""How long a file that has lost all of its Services keeps them: editors and copies may truncate it first."""


@dataclass(frozen=True, slots=True)
class Report:
    """A new fault, or (`resolved`) the end of one."""

    problem: ManifestProblem
    resolved: bool = False


Answer = bytes | ReadError | None
"""The content of a URL or standard input; None: unchanged."""
_NO_ANSWERS: Mapping[str, Answer] = {}


@dataclass(frozen=True, slots=True)
class _Step:
    """The result of one look at the manifests; with all objects on request."""

    difference: Difference
    state: ManifestState
    services: Sequence[Service] = ()
    slices: Sequence[EndpointSlice] = ()


class _Look(NamedTuple):
    """The files of a named path, and their difference from the last reading."""

    files: Mapping[str, Signature]
    changed: list[str]
    gone: list[str]
    faults: dict[str, str]


class ManifestSource:
    """Delivers the objects of manifests to a sink.

    Reading happens in a thread, so that a large manifest does not block the event loop; a lock admits one step at a
    time. Calls of the sink and of `on_report` are made from the event loop.
    """

    def __init__(
        self,
        *,
        paths: Sequence[str],
        recursive: bool,
        terms: Terms,
        sink: Sink,
        on_report: Callable[[Report], None],
    ) -> None:
        self._paths = tuple(dict.fromkeys(path if _special(path) else os.path.normpath(path) for path in paths))
        self._recursive = recursive
        self._terms = terms
        self._sink = sink
        self._on_report = on_report
        self._memories = {path: PathMemory(path) for path in self._paths if not _special(path)}
        self._inventory = Inventory()
        self._readings: dict[str, Reading] = {}
        self._versions = {path: Version() for path in self._paths if is_url(path)}
        self._faults: dict[str, dict[str, str]] = {}
        """By named path: its faults, and those of files and directories in it."""
        self._unread: dict[str, str] = {}
        """By file: the reason why its newest version could not be read."""
        self._emptied: dict[str, float] = {}
        """Files that have lost all of their Services, and until when they keep them."""
        self._directories: Directories = frozenset()
        self._trees: Directories = frozenset()
        self._state = ManifestState()
        self._lock = asyncio.Lock()
        self._poke = asyncio.Event()
        self._flat = Watcher(self._poke.set, recursive=False)
        self._deep = Watcher(self._poke.set, recursive=True)

    def state(self) -> ManifestState:
        """Return the source's contents now."""
        return self._state

    def why_not_served(self, namespace: str, name: str) -> str:
        """See `Inventory.why_not_served`."""
        return self._inventory.why_not_served(namespace, name)

    async def run(self) -> None:
        """Read everything, deliver it to the sink, then follow changes until cancelled."""
        async with Session() as web:
            async with self._lock:
                await self._start(web)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._flat.run(), name="manifests: watch")
                group.create_task(self._deep.run(), name="manifests: watch recursively")
                group.create_task(self._follow_files(), name="manifests: files")
                for url in self._versions:
                    group.create_task(self._follow_url(web, url), name=f"manifests: {url}")

    async def reload(self) -> None:
        """Read all files and URLs again now. Does nothing before the first reading."""
        if not self._state.loaded:
            return
        async with self._lock:
            for memory in self._memories.values():
                memory.forget()
            await self._look()
        async with Session() as web, asyncio.TaskGroup() as group:
            for url in self._versions:
                self._versions[url] = Version()
                group.create_task(self._fetch(web, url))

    async def _start(self, web: Session) -> None:
        """One reading of everything; not the first if an earlier run failed. A missing path that was never there counts
        as empty and is reported."""
        for memory in self._memories.values():
            memory.forget()
        self._versions = {url: Version() for url in self._versions}
        async with asyncio.TaskGroup() as group:
            tasks = {url: group.create_task(self._download(web, url)) for url in self._versions}
            unread = STDIN in self._paths and STDIN_ORIGIN not in self._readings
            stdin = group.create_task(in_thread(sys.stdin.buffer.read)) if unread else None
        answers = {url: task.result() for url, task in tasks.items()}
        if stdin is not None:
            answers[STDIN] = stdin.result()
        step = await in_thread(lambda: self._step(answers, whole=True))
        self._sink.replace_slices(NAME, step.slices)
        self._sink.replace_services(NAME, step.services)
        self._publish(step)
        log.info("manifests loaded", services=step.state.services, endpointslices=step.state.slices)

    # Files

    async def _follow_files(self) -> None:
        while True:
            self._flat.watch(self._directories)
            self._deep.watch(self._trees)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    await self._poke.wait()
            self._poke.clear()
            try:
                async with self._lock:
                    await self._look()
            except NotBegun as error:
                log.warning("manifests cannot be checked now", reason=str(error), retry_in_s=UNWATCHED_POLL_S)
                await asyncio.sleep(UNWATCHED_POLL_S)
                self._poke.set()

    def _patience_s(self) -> float:
        if any(memory.settling for memory in self._memories.values()):
            return SETTLE_S
        if self._emptied:
            return UNWATCHED_POLL_S
        return UNWATCHED_POLL_S if self._flat.fault or self._deep.fault else POLL_S

    async def _look(self, answers: Mapping[str, Answer] = _NO_ANSWERS) -> None:
        await self._deliver(await in_thread(lambda: self._step(answers)))

    # URLs

    async def _follow_url(self, web: Session, url: str) -> None:
        while True:
            await asyncio.sleep(URL_POLL_S)
            await self._fetch(web, url)

    async def _fetch(self, web: Session, url: str) -> None:
        answer = await self._download(web, url)
        async with self._lock:
            await self._look({url: answer})

    async def _download(self, web: Session, url: str) -> Answer:
        try:
            fetched = await fetch(web, url, self._versions[url])
        except ReadError as error:
            return error
        if fetched is None:
            return None
        self._versions[url] = fetched.version
        return fetched.data

    # One step: compares the present files with the last reading. Runs in a thread, under the lock

    def _step(self, answers: Mapping[str, Answer], *, whole: bool = False) -> _Step:
        """Look at all files, and add `answers`. `whole`: return all objects."""
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
        self._directories, self._trees = self._watched()
        if not whole and not readings and faults == self._faults:
            return _Step(Difference(), self._state)
        self._faults = faults
        difference = self._inventory.update(readings)
        services, slices = list(self._inventory.services()), list(self._inventory.slices())
        problems = {problem.key: problem for problem in [*self._path_troubles(), *self._inventory.problems()]}
        state = ManifestState(
            loaded=True,
            paths=tuple(self._path_state(path) for path in self._paths),
            services=len(services),
            slices=len(slices),
            problems=tuple(problems.values()),
            last_change=time.time() if len(difference) else self._state.last_change,
        )
        return _Step(difference, state, services, slices) if whole else _Step(difference, state)

    def _look_at(self, memory: PathMemory, now: float) -> _Look:
        listing = look(memory.path, recursive=self._recursive)
        changed, gone, faults = memory.compare(listing, now)
        return _Look(listing.files, changed, gone, faults)

    def _read(self, looks: Mapping[str, _Look], answers: Mapping[str, Answer]) -> dict[str, Reading]:
        """Return the readings of changed manifests. Notes the files that cannot be read."""
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
        """Return whether a file keeps the Services that this reading of it does not have any more."""
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
        """Yield the changed manifests, in the order of the named paths. Adds the state of each file that was read to
        `states`."""
        for path in self._paths:
            for file in looks[path].changed if path in looks else ():
                self._unread.pop(file, None)
                try:
                    data, signature = read_file(file)
                except Changing:
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
        """The directories to watch alone, and those to watch recursively. The parents of the named paths are among the
        first, because the paths themselves may be replaced."""
        own = [path for path, memory in self._memories.items() if memory.directory is not None]
        parents = [os.path.dirname(os.path.abspath(path)) for path in self._memories]
        if self._recursive:
            return directories(parents), directories(own)
        return directories(parents + own), frozenset()

    def _path_troubles(self) -> Iterator[ManifestProblem]:
        for path, faults in self._faults.items():
            origin = _origin(path)
            for place, reason in faults.items():
                # Some manifests of the path may be kept; to name the exact file would take a search.
                kept = any(_holds(origin, other) for other in self._inventory.origins())
                message = f"{reason}; its last good version stays served" if kept else reason
                yield ManifestProblem(_origin(place), 0, "", message)

    def _path_state(self, path: str) -> PathState:
        origin = _origin(path)
        manifests = [other for other in self._inventory.origins() if _holds(origin, other)]
        objects = sum(self._inventory.objects_of(manifest) for manifest in manifests)
        return PathState(origin, len(manifests), objects, self._faults.get(path, {}).get(path, ""))

    # Delivery

    async def _deliver(self, step: _Step) -> None:
        """Pass the changes to the sink: endpoints before their new Services, removals last."""
        self._publish(step)
        calls: list[Callable[[], None]] = []
        difference = step.difference
        calls += [partial(self._sink.put_slice, NAME, endpoint_slice) for endpoint_slice in difference.slices]
        calls += [partial(self._sink.put_service, NAME, service) for service in difference.services]
        calls += [partial(self._sink.remove_service, NAME, service) for service in difference.removed_services]
        calls += [
            partial(self._sink.remove_slice, NAME, endpoint_slice) for endpoint_slice in difference.removed_slices
        ]
        turns = TimeSlice(SLICE_S)
        for number, call in enumerate(calls, 1):
            call()
            # A change of a few objects, such as a Service and its renamed ports, takes effect as a whole.
            if number % WHOLE == 0:
                await turns.offer()

    def _publish(self, step: _Step) -> None:
        """Make the new state the current one, and report new and resolved faults."""
        if step.state is self._state:
            return
        previous, self._state = self._state, step.state
        before = {problem.key: problem for problem in previous.problems}
        now = {problem.key: problem for problem in step.state.problems}
        reports = [Report(problem) for key, problem in now.items() if key not in before]
        reports += [Report(problem, resolved=True) for key, problem in before.items() if key not in now]
        for report in reports[:MAX_LINES]:
            _log(report)
        if len(reports) > MAX_LINES:
            log.warning("more manifest faults", count=len(reports) - MAX_LINES)
        for report in reports:
            self._on_report(report)
        if len(step.difference) and previous.loaded:
            log.info("manifests changed", changes=len(step.difference), services=step.state.services)


def _special(path: str) -> bool:
    return path == STDIN or is_url(path)


def _origin(path: str) -> str:
    return STDIN_ORIGIN if path == STDIN else path


def _holds(path: str, origin: str) -> bool:
    if origin == path or origin.startswith(path.rstrip("/") + "/"):
        return True
    return has_magic(path) and PurePath(origin).match(path)


def _log(report: Report) -> None:
    problem = report.problem
    where = {"file": problem.origin, "document": problem.document, "path": problem.path, "object": problem.name}
    where = {key: value for key, value in where.items() if value}
    if report.resolved:
        what = "manifest warning resolved" if problem.warning else "manifest fault resolved"
        log.info(what, **where, was=problem.message)
    elif problem.warning:
        log.warning("manifest warning", **where, reason=problem.message)
    elif problem.skipped:
        log.info("manifest object skipped", **where, reason=problem.message)
    else:
        log.warning("manifest fault", **where, reason=problem.message)
