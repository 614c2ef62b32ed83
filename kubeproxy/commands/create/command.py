"""Runs ``kubeproxy create``: reads, checks, sends and reports objects, one after another or several at once.

An error that concerns one object is printed at the end, as kubectl does, and the other objects are still created. If
the server becomes unreachable, or the command is interrupted, no further objects are sent, and a summary names the
objects that were not created.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubeproxy.commands.create.established import Definitions
from kubeproxy.commands.create.field_check import FieldCheck
from kubeproxy.commands.create.options import CreateOptions, DryRun, NothingToDo, Validation
from kubeproxy.commands.create.order import Independence, rank
from kubeproxy.commands.create.report import Report
from kubeproxy.commands.create.send import AlreadyExistsError, Sender, ServerLostError
from kubeproxy.commands.interruption import SIGNALLED, Interruption
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import Access
from kubeproxy.kubernetes.client.errors import ApiError, GarbageError, StatusError, UnreachableError
from kubeproxy.kubernetes.client.kubeconfig import load
from kubeproxy.kubernetes.client.policy import Policy
from kubeproxy.kubernetes.printing.error_text import lines
from kubeproxy.kubernetes.printing.go_encoding import compact_json
from kubeproxy.kubernetes.printing.printer import Printer
from kubeproxy.kubernetes.resource_builder.builder import Builder, Query
from kubeproxy.kubernetes.resource_builder.discovery import DiscoveryCache, cache_directory
from kubeproxy.kubernetes.resource_builder.errors import Position, quoted
from kubeproxy.kubernetes.resource_builder.manifest_object import Data, ResourceObject
from kubeproxy.kubernetes.resource_builder.mapper import Mapper
from kubeproxy.kubernetes.resource_builder.openapi import SchemaSource
from kubeproxy.model.errors import ClusterError, ConfigError, KubeproxyError
from kubeproxy.runtime.tasks import TaskSet

FAILED: Final = 1
FINISH_S: Final = 3.0
"""How long requests in progress may take to end after an interrupt."""
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
CHANGE_CAUSE: Final = "kubernetes.io/change-cause"
_AHEAD: Final = 4
"""The largest number of finished objects for each object in progress. Finished objects wait because lines are printed
in the order of the input."""
_SHOWN: Final = 10


def run(options: CreateOptions) -> int:
    """Run the command in a new event loop, and return its exit status."""
    report = Report(progress=True)
    try:
        return asyncio.run(create(options, report))
    except KeyboardInterrupt:
        report.error("interrupted")
        return SIGNALLED + signal.SIGINT


async def create(options: CreateOptions, report: Report) -> int:
    """Run the command, and return its exit status. The running event loop must be the main thread's, because signals
    are handled."""
    try:
        access = Access(lambda: load(options.client))
        printer = Printer(options.output, show_managed_fields=options.show_managed_fields)
    except ConfigError as error:
        return _failed(report, [error], "")
    policy = Policy.for_command(answer_s=options.request_timeout_s, on_warning=report.warning, on_wait=report.waits)
    async with Client(access, policy) as client:
        try:
            if options.raw:
                from kubeproxy.commands.create.raw import post_raw

                return await post_raw(options, client, report)
            return await Create(options, client, printer, report).run()
        except (KubeproxyError, ApiError) as error:
            return _failed(report, [error], client.host)


def _failed(report: Report, errors: list[Exception], host: str) -> int:
    report.end()
    for line in lines(errors, host):
        report.error(line)
    return FAILED


@dataclass(slots=True)
class _Outcome:
    """The result for one object. It has no text and no error while the object is in progress."""

    found: ResourceObject | None = None
    text: str = ""
    error: Exception | None = None
    created: bool = False
    skipped: bool = False


class Create:
    """One run against one server."""

    def __init__(self, options: CreateOptions, client: Client, printer: Printer, report: Report) -> None:
        self._options = options
        self._client = client
        self._printer = printer
        self._report = report
        directory = cache_directory(options.cache_directory)
        self._mapper = Mapper(client, DiscoveryCache(directory, client.config.host))
        self._definitions = Definitions(client, self._mapper)
        self._check = FieldCheck(
            options.validation, options.dry_run, self._mapper, SchemaSource(client, directory), report.warning
        )
        self._sender = Sender(client, self._query(), dry_run=options.dry_run is DryRun.SERVER, on_wait=report.waits)
        self._tasks = TaskSet(on_crash=lambda _name, _error: None)
        self._outcomes: deque[tuple[asyncio.Task[_Outcome] | None, _Outcome]] = deque()
        self._under_way: dict[asyncio.Task[_Outcome], ResourceObject] = {}
        self._independence = Independence()
        self._errors: list[Exception] = []
        self._lost: Exception | None = None
        self._not_created: list[str] = []
        self._last_read: Position | None = None
        self._interruption = Interruption()

    def _query(self) -> dict[str, str]:
        options = self._options
        query = {"fieldManager": options.field_manager}
        level = {Validation.STRICT: "Strict", Validation.WARN: "Warn", Validation.IGNORE: "Ignore"}
        query["fieldValidation"] = level[options.validation]
        if options.dry_run is DryRun.SERVER:
            query["dryRun"] = "All"
        return query

    async def run(self) -> int:
        """Create all objects. Return the exit status."""
        with self._interruption:
            return await self._create_all(self._objects())

    async def _create_all(self, objects: AsyncIterator[ResourceObject | Exception]) -> int:
        ticking = self._tasks.start(self._tick(), name="progress")
        work = self._tasks.start(self._all(objects), name="create")
        stopped = self._tasks.start(self._interruption.wait(), name="interrupt")
        try:
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._tasks.end(work)
                return await self._interrupted()
            try:
                work.result()
            except NothingToDo:
                return 0
            # An error that ends the run is printed together with the earlier errors of single objects.
            except KubeproxyError as error:
                self._errors.append(error)
                self._lost = error
        finally:
            await self._tasks.end(ticking, stopped)
            await self._tasks.close()
        return self._finished()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self._report.tick()

    # Reading the objects

    def _objects(self) -> AsyncIterator[ResourceObject | Exception]:
        options, config = self._options, self._client.config
        query = Query(
            filenames=options.filenames,
            recursive=options.recursive,
            selector=options.selector,
            namespace=config.namespace,
            namespace_enforced=config.namespace_enforced,
        )
        builder = Builder(query, self._mapper, validate=self._check, await_kind=self._await_kind)
        if options.edit:
            from kubeproxy.commands.create.edit import edited

            return edited(builder, options, self._report)
        if options.sort:
            return self._sorted(builder)
        return builder.stream()

    async def _sorted(self, builder: Builder) -> AsyncIterator[ResourceObject | Exception]:
        """Read all objects and sort them by kind. Then check, map and yield one after the other."""
        objects: list[tuple[ResourceObject, Sequence[str]]] = []
        async for found in builder.unprepared():
            if isinstance(found, tuple):
                found[0].text = b""
                objects.append(found)
            else:
                yield found
        for each, duplicates in sorted(objects, key=lambda pair: rank(pair[0])):
            yield await builder.prepare(each, duplicates)

    async def _await_kind(self, group: str, kind: str) -> bool:
        """If this run creates the definition of a kind that the server does not serve yet, wait for the kind. Return
        whether the run defines it."""
        if self._options.dry_run is not DryRun.NONE:
            return False
        await self._drain()
        return await self._definitions.wait(group, kind)

    async def _all(self, objects: AsyncIterator[ResourceObject | Exception]) -> None:
        limit = max(1, self._options.parallel)
        async for found in objects:
            if not isinstance(found, ResourceObject):
                self._outcomes.append((None, _Outcome(error=found)))
                self._flush()
                continue
            self._last_read = found.position
            if self._independence.conflicts(found):
                await self._drain()
            while len(self._under_way) >= limit or len(self._outcomes) >= _AHEAD * limit:
                await self._any()
            if self._lost is not None:
                self._not_created.append(found.label)
                break
            await self._begin(found)
        await self._drain()

    async def _begin(self, found: ResourceObject) -> None:
        self._independence.begin(found)
        task = self._tasks.start(self._one(found), name=found.label)
        self._under_way[task] = found
        self._outcomes.append((task, _Outcome(found)))
        # Let the task send its request now, so that the next document is read while the request is in progress.
        await asyncio.sleep(0)

    async def _any(self) -> None:
        """Wait until one of the objects in progress is finished, and print the lines that are next in order."""
        head = self._outcomes[0][0] if self._outcomes else None
        waiting = set(self._under_way)
        if len(self._outcomes) >= _AHEAD * max(1, self._options.parallel) and head in waiting:
            waiting = {head}
        if waiting:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        self._flush()

    async def _drain(self) -> None:
        while self._under_way:
            await self._any()
        self._flush()

    def _flush(self) -> None:
        """Record the finished objects that are next in the order of the input, and print their lines."""
        for done in [task for task in self._under_way if task.done()]:
            self._independence.end(self._under_way.pop(done))
        while self._outcomes and (self._outcomes[0][0] is None or self._outcomes[0][0].done()):
            task, outcome = self._outcomes.popleft()
            if task is not None and not task.cancelled():
                outcome = task.result()
            self._note(outcome)

    def _note(self, outcome: _Outcome) -> None:
        if outcome.error is not None:
            self._report.failed += 1
            if isinstance(outcome.error, ServerLostError | UnreachableError) or _is_unauthorized(outcome.error):
                self._lost = self._lost or outcome.error
                if outcome.found is not None:
                    self._not_created.append(outcome.found.label)
                if self._lost is not outcome.error:
                    return
            self._errors.append(outcome.error)
            return
        self._report.created += outcome.created
        self._report.skipped += outcome.skipped
        if outcome.text and self._printer.prints_objects:
            self._report.data(outcome.text)
        elif outcome.text:
            self._report.line(outcome.text)

    # Creating one object

    async def _one(self, found: ResourceObject) -> _Outcome:
        try:
            self._annotate(found)
            if self._options.dry_run is DryRun.CLIENT:
                return _Outcome(found, self._text(found, found.data), created=True)
            try:
                data = await self._sender.create(found)
            except AlreadyExistsError as there:
                if not self._options.skip_existing:
                    raise there.error from None
                return await self._skip(found)
            self._definitions.created(data)
            return _Outcome(found, self._text(found, data), created=True)
        except StatusError as error:
            message = f"error when creating {quoted(found.position.source)}: {error}"
            error.args = (message,)
            return _Outcome(found, error=error)
        except UnreachableError as error:
            return _Outcome(found, error=error)
        except (ConfigError, ClusterError, GarbageError) as error:
            return _Outcome(found, error=error)

    async def _skip(self, found: ResourceObject) -> _Outcome:
        data = found.data
        if self._printer.prints_objects:
            data = (await self._client.get(found.resource.path(found.namespace, found.name))).decoded()
        return _Outcome(found, self._text(found, data, "already exists, skipped"), skipped=True)

    def _annotate(self, found: ResourceObject) -> None:
        options, metadata = self._options, found.metadata
        metadata.pop("resourceVersion", None)
        if options.record:
            found.data["metadata"]["annotations"] = (metadata.get("annotations") or {}) | {CHANGE_CAUSE: options.record}
        if options.save_config or LAST_APPLIED in (metadata.get("annotations") or {}):
            self._save_config(found.data)

    def _save_config(self, data: Data) -> None:
        annotations: dict[str, Any] = {
            key: value for key, value in (data["metadata"].get("annotations") or {}).items() if key != LAST_APPLIED
        }
        data["metadata"]["annotations"] = annotations
        annotations[LAST_APPLIED] = compact_json(data) + "\n"

    def _text(self, found: ResourceObject, data: Data, what: str = "created") -> str:
        name = str((data.get("metadata") or {}).get("name") or "") or "<unknown>"
        label = f"{found.label.partition('/')[0]}/{name}"
        if self._printer.prints_objects:
            return self._printer.text(data)
        if self._printer.output == "name":
            return label
        suffix = {DryRun.NONE: "", DryRun.CLIENT: " (dry run)", DryRun.SERVER: " (server dry run)"}
        return f"{label} {what}{suffix[self._options.dry_run]}"

    # Ending the run

    def _finished(self) -> int:
        report = self._report
        report.end()
        if self._errors:
            _failed(report, self._errors, self._client.host)
            if self._lost is not None and self._last_read is not None:
                report.error(f"{report.created} created; not created: {self._rest()}")
            return FAILED
        if not report.created and not report.skipped:
            return _failed(report, [ConfigError("no objects passed to create")], self._client.host)
        if self._options.warnings_as_errors and report.warnings:
            plural = "" if report.warnings == 1 else "s"
            return _failed(report, [ConfigError(f"{report.warnings} warning{plural} received")], self._client.host)
        return 0

    async def _interrupted(self) -> int:
        """Wait at most `FINISH_S` for the requests in progress, and report which objects were created and which were
        not."""
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=FINISH_S)
        unknown = [found.label for task, found in self._under_way.items() if not task.done()]
        for task, outcome in list(self._outcomes):
            if task is None:
                self._note(outcome)
            elif task.done() and not task.cancelled():
                self._note(task.result())
        report = self._report
        report.end()
        if self._errors:
            _failed(report, self._errors, self._client.host)
        counts = f"{report.created} created"
        if self._options.dry_run is not DryRun.NONE:
            counts += " (dry run)"
        if unknown:
            counts += f"; not known whether created: {_some(unknown)}"
        report.error(f"interrupted: {counts}; not created: {self._rest()}")
        return self._interruption.status

    def _rest(self) -> str:
        """Return a text that names the objects that were not created, and the position at which reading stopped."""
        where = self._last_read
        after = f"what follows {where} of {where.source}" if where is not None else "everything"
        return ", ".join([*([_some(self._not_created)] if self._not_created else []), after])


def _is_unauthorized(error: Exception) -> bool:
    """Return whether the server rejects the credentials. It would then reject every object."""
    return isinstance(error, StatusError) and error.status == 401


def _some(labels: list[str]) -> str:
    more = len(labels) - _SHOWN
    return ", ".join(labels[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
