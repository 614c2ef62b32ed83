"""The manifest source. It reads and watches files, directories, URLs and standard input, and delivers their objects to
a `Sink`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import structlog

from kubeproxy.kubernetes.manifests.files import SETTLE_S, ReadError
from kubeproxy.kubernetes.manifests.http import Session, Version, fetch, is_url
from kubeproxy.model.manifests import ManifestProblem, ManifestState
from kubeproxy.runtime.threads import ThreadNotStartedError, in_thread
from kubeproxy.runtime.time_slice import TimeSlice
from kubeproxy.sources.manifests.objects import Terms
from kubeproxy.sources.manifests.reader import STDIN, Answer, ManifestReader, Step
from kubeproxy.sources.manifests.watch import Watcher
from kubeproxy.sources.sink import Sink, SourceName

log = structlog.get_logger(__name__)

NAME = SourceName("manifests")
POLL_S = 5.0
"""The interval in seconds at which files are checked without a notification. inotify does not report changes on NFS, or
of a link's target in another directory."""
UNWATCHED_POLL_S = 1.0
"""The interval in seconds at which files are checked if directories cannot be watched."""
URL_POLL_S = 10.0
"""The interval in seconds at which each URL is requested."""
SLICE_S = 0.001
"""After this time of delivering changes, in seconds, other tasks of the event loop get a turn."""
WHOLE = 200
"""The number of changes that are delivered without giving other tasks a turn."""
MAX_LINES = 20
"""The largest number of faults of one update that are logged individually. Further faults are only counted."""


@dataclass(frozen=True, slots=True)
class Report:
    """A new fault, or, if `resolved` is true, a fault that no longer exists."""

    problem: ManifestProblem
    resolved: bool = False


class ManifestSource:
    """Delivers the objects of manifests to a sink.

    Manifests are read in a thread, one step at a time, so that a large manifest does not block the event loop. The sink
    and `on_report` are called in the event loop.
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
        self._reader = ManifestReader(paths, recursive=recursive, terms=terms)
        self._sink = sink
        self._on_report = on_report
        self._versions = {path: Version() for path in self._reader.paths if is_url(path)}
        self._state = ManifestState()
        self._lock = asyncio.Lock()
        self._poke = asyncio.Event()
        self._flat = Watcher(self._poke.set, recursive=False)
        self._deep = Watcher(self._poke.set, recursive=True)

    def state(self) -> ManifestState:
        """Return the present state of the source."""
        return self._state

    def why_not_served(self, namespace: str, name: str) -> str:
        """See `Inventory.why_not_served`."""
        return self._reader.why_not_served(namespace, name)

    async def run(self) -> None:
        """Read all manifests, deliver their objects to the sink, and then follow changes until cancelled."""
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
        """Read all files and URLs again at once. Do nothing if the first reading is not complete."""
        if not self._state.loaded:
            return
        async with self._lock:
            self._reader.forget()
            await self._look()
        async with Session() as web, asyncio.TaskGroup() as group:
            for url in self._versions:
                self._versions[url] = Version()
                group.create_task(self._fetch(web, url))

    async def _start(self, web: Session) -> None:
        """Read all manifests, and deliver all objects. A missing path is reported, and counts as empty."""
        self._reader.forget()
        self._versions = {url: Version() for url in self._versions}
        async with asyncio.TaskGroup() as group:
            tasks = {url: group.create_task(self._download(web, url)) for url in self._versions}
            stdin = group.create_task(in_thread(sys.stdin.buffer.read)) if self._reader.awaits_stdin else None
        answers: dict[str, Answer] = {url: task.result() for url, task in tasks.items()}
        if stdin is not None:
            answers[STDIN] = stdin.result()
        step = await in_thread(lambda: self._reader.compare(answers, whole=True))
        self._sink.replace_slices(NAME, step.slices)
        self._sink.replace_services(NAME, step.services)
        self._publish(step)
        log.info("manifests loaded", services=step.state.services, endpointslices=step.state.slices)

    # Files

    async def _follow_files(self) -> None:
        while True:
            self._flat.watch(self._reader.directories)
            self._deep.watch(self._reader.trees)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    await self._poke.wait()
            self._poke.clear()
            try:
                async with self._lock:
                    await self._look()
            except ThreadNotStartedError as error:
                log.warning("manifests cannot be checked now", reason=str(error), retry_in_s=UNWATCHED_POLL_S)
                await asyncio.sleep(UNWATCHED_POLL_S)
                self._poke.set()

    def _patience_s(self) -> float:
        if self._reader.settling:
            return SETTLE_S
        return UNWATCHED_POLL_S if self._reader.emptied or self._flat.fault or self._deep.fault else POLL_S

    async def _look(self, answers: Mapping[str, Answer] = MappingProxyType({})) -> None:
        await self._deliver(await in_thread(lambda: self._reader.compare(answers)))

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

    # Delivery

    async def _deliver(self, step: Step) -> None:
        """Deliver changes to the sink: first endpoints, then Services, and removals last."""
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
            # Small changes are delivered without a pause, so that a Service and its renamed ports take effect together.
            if number % WHOLE == 0:
                await turns.offer()

    def _publish(self, step: Step) -> None:
        """Store the new state, and report new and resolved faults."""
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
