"""The source ``manifests``: files, directories, web addresses and standard input, read, watched and kept."""

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
from kubeproxy.runtime.threads import NotBegun, in_thread
from kubeproxy.sources.manifests.documents import Namespaces, Reading
from kubeproxy.sources.manifests.inventory import Difference, Inventory, ManifestProblem
from kubeproxy.sources.manifests.reader import Reader
from kubeproxy.sources.manifests.watch import Directories, Watcher, directories
from kubeproxy.sources.sink import Sink, SourceName

log = structlog.get_logger(__name__)

NAME = SourceName("manifests")
STDIN = "-"
STDIN_ORIGIN = "standard input"
POLL_S = 5.0
"""How often files are looked at even though nothing seems to have changed: inotify sees no change on NFS, nor behind a
link into another directory."""
UNWATCHED_POLL_S = 1.0
"""The same where directories cannot be watched."""
URL_POLL_S = 10.0
CHUNK = 200
"""Changes handed to the sink before other tasks get their turn."""
MAX_LINES = 20
"""Faults logged one by one per change; the rest is counted."""
NO_MEMORY = "there is not enough memory to read it"


@dataclass(frozen=True, slots=True)
class Report:
    """A fault has come up, or (`resolved`) is no more."""

    problem: ManifestProblem
    resolved: bool = False


@dataclass(frozen=True, slots=True)
class PathState:
    """One named path: how many manifests and objects it holds, and what is wrong with the path itself."""

    path: str
    manifests: int
    objects: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ManifestState:
    """What the source holds. `last_change` is Unix time, 0 before the first."""

    loaded: bool = False
    paths: tuple[PathState, ...] = ()
    services: int = 0
    slices: int = 0
    problems: tuple[ManifestProblem, ...] = ()
    last_change: float = 0.0


Answer = bytes | ReadError | None
"""What came from elsewhere than a file; None: nothing new."""
_NO_ANSWERS: Mapping[str, Answer] = {}


@dataclass(frozen=True, slots=True)
class _Step:
    """What a look at the manifests brought; with all objects if that was asked for."""

    difference: Difference
    state: ManifestState
    services: Sequence[Service] = ()
    slices: Sequence[EndpointSlice] = ()


class _Look(NamedTuple):
    """What a named path holds, and how that differs from what was read."""

    files: Mapping[str, Signature]
    changed: list[str]
    gone: list[str]
    faults: dict[str, str]


class ManifestSource:
    """Delivers what manifests say. Everything but the sink's and the report's calls happens in a thread, so that a
    large manifest holds up nothing; one step at a time, under a lock."""

    def __init__(
        self,
        *,
        paths: Sequence[str],
        recursive: bool,
        default_namespace: str,
        enforced_namespace: str | None,
        sink: Sink,
        on_report: Callable[[Report], None],
        cpus: int = 1,
    ) -> None:
        """`cpus`: how many may be busy with a large reading."""
        self._paths = tuple(dict.fromkeys(path if _special(path) else os.path.normpath(path) for path in paths))
        self._recursive = recursive
        self._reader = Reader(Namespaces(default=default_namespace, enforced=enforced_namespace), cpus)
        self._sink = sink
        self._on_report = on_report
        self._memories = {path: PathMemory(path) for path in self._paths if not _special(path)}
        self._inventory = Inventory()
        self._readings: dict[str, Reading] = {}
        self._versions = {path: Version() for path in self._paths if is_url(path)}
        self._faults: dict[str, dict[str, str]] = {}
        """By named path: what is wrong with it, or with files and directories in it."""
        self._unread: dict[str, str] = {}
        """By file: why its newest version could not be read."""
        self._directories: Directories = frozenset()
        self._trees: Directories = frozenset()
        self._state = ManifestState()
        self._lock = asyncio.Lock()
        self._poke = asyncio.Event()
        self._flat = Watcher(self._poke.set, recursive=False)
        self._deep = Watcher(self._poke.set, recursive=True)

    def state(self) -> ManifestState:
        """What the source holds now."""
        return self._state

    async def run(self) -> None:
        """Read everything, tell the sink, then follow the changes until cancelled."""
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
        """Read all files and web addresses again, now. Nothing to do before the first reading."""
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
        """One reading of everything; not the first where an earlier run has failed. What is missing, and has never been
        there, counts as empty, and is told."""
        for memory in self._memories.values():
            memory.forget()
        self._versions = {url: Version() for url in self._versions}
        async with asyncio.TaskGroup() as group:
            tasks = {url: group.create_task(self._download(web, url)) for url in self._versions}
            unheard = STDIN in self._paths and STDIN_ORIGIN not in self._readings
            stdin = group.create_task(in_thread(sys.stdin.buffer.read)) if unheard else None
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
                log.warning("cannot look at manifests now", reason=str(error), retry_in_s=UNWATCHED_POLL_S)
                await asyncio.sleep(UNWATCHED_POLL_S)
                self._poke.set()

    def _patience_s(self) -> float:
        if any(memory.settling for memory in self._memories.values()):
            return SETTLE_S
        return UNWATCHED_POLL_S if self._flat.fault or self._deep.fault else POLL_S

    async def _look(self, answers: Mapping[str, Answer] = _NO_ANSWERS) -> None:
        await self._deliver(await in_thread(lambda: self._step(answers)))

    # Web addresses

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

    # One step: what is there now, against what was held. All of it in a thread, under the lock

    def _step(self, answers: Mapping[str, Answer], *, whole: bool = False) -> _Step:
        """Look at all files, and take in what was answered elsewhere. `whole`: all objects are wanted."""
        faults = self._faults | {path: {} for path in answers}
        now = time.monotonic()
        looks = {path: self._look_at(memory, now) for path, memory in self._memories.items()}
        readings: dict[str, Reading | None] = {path: None for seen in looks.values() for path in seen.gone}
        readings |= self._read(looks, answers, urgent=whole)
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

    def _read(self, looks: Mapping[str, _Look], answers: Mapping[str, Answer], *, urgent: bool) -> dict[str, Reading]:
        """What has changed says, by manifest. Files that cannot be read are put down as such."""
        states: dict[str, list[tuple[PathMemory, Signature]]] = {}
        readings = {}
        size = sum(seen.files[path].size for seen in looks.values() for path in seen.changed)
        size += sum(len(answer) for answer in answers.values() if isinstance(answer, bytes))
        texts = self._texts(looks, answers, states)
        for origin, reading in self._reader.read_all(texts, size=size, previous=self._readings, urgent=urgent):
            if isinstance(reading, Reading):
                readings[origin] = reading
                for memory, signature in states.pop(origin, ()):
                    memory.loaded(origin, signature)
            elif origin in states:
                self._unread[origin] = NO_MEMORY
            else:
                raise reading
        return readings

    def _texts(
        self,
        looks: Mapping[str, _Look],
        answers: Mapping[str, Answer],
        states: dict[str, list[tuple[PathMemory, Signature]]],
    ) -> Iterator[tuple[str, bytes]]:
        """The manifests that have changed, in the order in which they were named; what state each file's text is of is
        added to `states`."""
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
        """Directories to watch as such, among them those in which the named paths themselves may be replaced; and those
        with all that lies below."""
        own = [path for path, memory in self._memories.items() if memory.directory is not None]
        parents = [os.path.dirname(os.path.abspath(path)) for path in self._memories]
        if self._recursive:
            return directories(parents), directories(own)
        return directories(parents + own), frozenset()

    def _path_troubles(self) -> Iterator[ManifestProblem]:
        for path, faults in self._faults.items():
            origin = _origin(path)
            for place, reason in faults.items():
                # Some of what the path held may be kept; to say of which file exactly would take a search.
                kept = any(_holds(origin, other) for other in self._inventory.origins())
                message = f"{reason}; what it said last goes on being served" if kept else reason
                yield ManifestProblem(_origin(place), 0, "", message)

    def _path_state(self, path: str) -> PathState:
        origin = _origin(path)
        manifests = [other for other in self._inventory.origins() if _holds(origin, other)]
        objects = sum(self._inventory.objects_of(manifest) for manifest in manifests)
        return PathState(origin, len(manifests), objects, self._faults.get(path, {}).get(path, ""))

    # What came of it

    async def _deliver(self, step: _Step) -> None:
        """Tell the sink. Endpoints first, so that a new Service has them when it comes; removals last."""
        self._publish(step)
        calls: list[Callable[[], None]] = []
        difference = step.difference
        calls += [partial(self._sink.put_slice, NAME, endpoint_slice) for endpoint_slice in difference.slices]
        calls += [partial(self._sink.put_service, NAME, service) for service in difference.services]
        calls += [partial(self._sink.remove_service, NAME, service) for service in difference.removed_services]
        calls += [
            partial(self._sink.remove_slice, NAME, endpoint_slice) for endpoint_slice in difference.removed_slices
        ]
        for start in range(0, len(calls), CHUNK):
            for call in calls[start : start + CHUNK]:
                call()
            await asyncio.sleep(0)

    def _publish(self, step: _Step) -> None:
        """Make the new state the current one, and tell which troubles are new and which are over."""
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
            log.warning("more faults in manifests", count=len(reports) - MAX_LINES)
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
        log.info("fault in a manifest resolved", **where, was=problem.message)
    elif problem.skipped:
        log.info("object in a manifest skipped", **where, reason=problem.message)
    else:
        log.warning("fault in a manifest", **where, reason=problem.message)
