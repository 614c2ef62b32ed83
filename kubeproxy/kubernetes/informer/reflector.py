"""Keeps one resource in step with the API server: lists, then watches, for ever.

A list replaces everything at once, so nothing is withdrawn before the newer list is complete, and missed deletions are
found. A watch continues from the last resourceVersion seen; a new list follows only if the server no longer knows that
version (410) or sends garbage.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from time import monotonic, time
from typing import Any

import msgspec
import structlog

from kubeproxy.kubernetes import objects
from kubeproxy.kubernetes.client.client import MAX_ANSWER_BYTES, Client
from kubeproxy.kubernetes.client.decode import MAX_LINE_BYTES, Event, EventType, identity, parse_event, parse_page
from kubeproxy.kubernetes.client.errors import ApiError, Garbage, Unreachable
from kubeproxy.kubernetes.fault import Fault
from kubeproxy.kubernetes.informer.connectivity import Connectivity
from kubeproxy.kubernetes.informer.decode_cache import DecodeCache
from kubeproxy.kubernetes.informer.list_watch import ListWatchPolicy, Pace
from kubeproxy.kubernetes.informer.object_faults import Faults
from kubeproxy.kubernetes.informer.resource import Resource
from kubeproxy.kubernetes.objects import SOURCE
from kubeproxy.runtime.yielding import TimeSlice

log = structlog.get_logger(__name__)

MAX_LIST_BYTES = 4 * MAX_ANSWER_BYTES
"""All pages of one list together."""
MAX_OBJECTS = 200_000
"""All objects of one list: ten times what Kubernetes is tested with (10,000 Services with 10 pods each)."""


class Phase(StrEnum):
    """The activity of a reflector."""

    LISTING = "listing"
    WATCHING = "watching"
    WAITING = "waiting"
    """A request failed; the next try follows after a delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorState:
    """A reflector at one moment. Times are Unix seconds; None: never."""

    resource: str
    phase: Phase
    resource_version: str
    """The last version seen; empty before the first list."""
    last_list: float | None
    last_event: float | None
    lists: int
    watches: int
    events: int
    failures: Mapping[str, int]
    """By cause."""
    last_error: str
    faulty: int
    """Objects with a part that cannot be served."""
    behind_s: float
    """Time for which changes may have been missed; 0 while a watch works."""


@dataclass(slots=True)
class _ReflectorCounters:
    last_list: float | None = None
    last_event: float | None = None
    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    last_error: str = ""


class Reflector:
    """Lists and watches one resource. `choose` names it before every list, because servers change."""

    def __init__(
        self,
        *,
        client: Client,
        name: str,
        choose: Callable[[], Awaitable[Resource[Any]]],
        contact: Connectivity,
        pace: Pace,
        random: Random,
    ) -> None:
        self._client = client
        self._name = name
        self._choose = choose
        self._contact = contact
        self._pace = pace
        self._course = ListWatchPolicy(pace=pace, random=random)
        self._faults = Faults(name)
        self._recall: DecodeCache[Any] = DecodeCache()
        self._turns = TimeSlice(pace.slice_s)
        self._tally = _ReflectorCounters()
        self._resource: Resource[Any] | None = None
        self._phase = Phase.LISTING
        self._behind_since: float | None = monotonic()

    def state(self) -> ReflectorState:
        """The reflector's state now."""
        tally = self._tally
        return ReflectorState(
            resource=self._called,
            phase=self._phase,
            resource_version=self._course.version,
            last_list=tally.last_list,
            last_event=tally.last_event,
            lists=tally.lists,
            watches=tally.watches,
            events=tally.events,
            failures=dict(tally.failures),
            last_error=tally.last_error,
            faulty=len(self._faults),
            behind_s=0.0 if self._behind_since is None else monotonic() - self._behind_since,
        )

    @property
    def _called(self) -> str:
        """The resource's name in logs: ``endpoints`` if the server has no slices."""
        return self._resource.name if self._resource else self._name

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if self._resource is None or self._course.must_list:
                    self._phase = Phase.LISTING
                    await self._list()
                else:
                    self._phase = Phase.WATCHING
                    await self._watch(self._resource)
                continue
            except ApiError as error:
                delay_s = self._failed(error)
            except Exception as error:  # a bug here or in the sink: logged in full, then everything is listed again
                log.exception("reflector failed, listing again", source=SOURCE, resource=self._name)
                self._course.must_list = True
                delay_s = self._failed(ApiError(f"internal error: {error!r}", cause="internal"))
            self._phase = Phase.WAITING
            await asyncio.sleep(delay_s)

    def _failed(self, error: ApiError) -> float:
        """Note the failure; the delay before the next try, in seconds."""
        self._tally.failures[error.cause] += 1
        self._tally.last_error = str(error)
        listing = self._phase is Phase.LISTING
        delay_s = self._course.list_failed(error) if listing else self._course.watch_failed(error)
        if self._behind_since is None:
            # A broken watch is no outage yet: usually the next one works.
            self._behind_since = monotonic()
            self._contact.broke(self._name)
            write = log.warning if isinstance(error, Garbage) else log.info
            step = "list" if self._course.must_list else "watch"
            write("watch broke", source=SOURCE, resource=self._called, seen=str(error), next=step)
        else:
            self._contact.failed(self._name, error, called=self._called, since=time() - self.state().behind_s)
        return delay_s

    def _in_step(self) -> None:
        """Note that the watch works, and that no change was missed."""
        self._behind_since = None
        self._contact.found(self._name)

    def _settled(self) -> None:
        """Note that the watch has worked for a while: the next failure starts a new outage."""
        self._course.settled()
        self._in_step()

    # Listing

    async def _list(self) -> None:
        resource = await self._choose()
        self._resource = resource
        try:
            async with asyncio.timeout(self._pace.list_s):
                found, version = await self._pages(resource)
        except TimeoutError as error:
            raise Garbage(
                f"the list of {resource.name} did not end in {self._pace.list_s} s", cause="timeout"
            ) from error
        resource.replace(found)
        self._course.listed(version)
        self._contact.listed()
        self._tally.lists += 1
        self._tally.last_list = time()
        log.info("listed", source=SOURCE, resource=resource.name, served=len(found), resource_version=version)

    async def _pages(self, resource: Resource[Any]) -> tuple[list[Any], str]:
        """All objects of the list, and its version. An expired page ends the list: the token that a 410 offers would
        continue it, but miss changes of the objects already read."""
        found: list[Any] = []
        names: set[str] = set()
        tokens: set[str] = set()
        query = self._course.list_query()
        size = count = 0
        while True:
            body = await self._client.get_json(
                resource.path,
                {**resource.query, **query},
                max_bytes=resource.max_bytes,
                head_s=self._course.patience_s(),
            )
            size += len(body)
            page = parse_page(body)
            del body
            if page.kind != f"{resource.kind}List":
                raise Garbage(f"{page.kind} where a list of {resource.name} was asked for", cause="wrong kind")
            count += len(page.items)
            if count > MAX_OBJECTS:
                raise Garbage(f"a list of more than {MAX_OBJECTS} {resource.name}", cause="endless list")
            for raw in page.items:
                found.extend(self._translate(resource, identity(raw), raw, names) or ())
                await self._turns.offer()
            if not page.token:
                self._faults.keep(names)
                self._recall.keep(names)
                return found, page.resource_version
            if page.token in tokens or size > MAX_LIST_BYTES:
                raise Garbage(f"a list of {resource.name} without an end ({size} bytes)", cause="endless list")
            tokens.add(page.token)
            query = self._course.next_page_query(page.token)

    # Watching

    async def _watch(self, resource: Resource[Any]) -> None:
        if self._course.doubtful:
            probe = {**resource.query, **self._course.probe_query()}
            patience_s = self._course.patience_s()
            await self._client.get_json(resource.path, probe, max_bytes=MAX_LINE_BYTES, head_s=patience_s)
            self._course.known()
        query, silence_s = self._course.watch_query()
        self._tally.watches += 1
        loop = asyncio.get_running_loop()
        begun = loop.time()
        seen = 0
        stream = self._client.stream(
            resource.path, {**resource.query, **query}, silence_s=silence_s, head_s=self._course.patience_s()
        )
        async with stream as lines:
            settling = loop.call_later(self._pace.settle_s, self._settled)
            try:
                async for line in lines:
                    self._apply(resource, parse_event(line))
                    seen += 1
                    if seen == 1:
                        self._in_step()
                    await self._turns.offer()
            finally:
                settling.cancel()
        if loop.time() - begun < self._pace.settle_s:
            where = f"{self._client.server}{resource.path}"
            raise Unreachable(f"{where}: the watch ended at once, after {seen} events", cause="short watch")

    def _apply(self, resource: Resource[Any], event: Event) -> None:
        if event.kind != resource.kind:
            raise Garbage(f"a {event.kind or 'nameless kind'} among the {resource.name}", cause="wrong kind")
        self._course.seen(event.resource_version)
        if event.type is not EventType.BOOKMARK:
            self._recall.forget(_name(event.metadata))
        if event.type is EventType.DELETED:
            self._faults.note(_name(event.metadata), ())
            resource.remove(event.metadata)
        elif event.type is not EventType.BOOKMARK:
            found = self._translate(resource, event.metadata, event.object)
            if found is not None:
                resource.put(event.metadata, found)
        if event.type is not EventType.BOOKMARK:
            self._tally.events += 1
            self._tally.last_event = time()
        self._course.version = event.resource_version

    def _translate(
        self, resource: Resource[Any], metadata: objects.ObjectMeta, raw: msgspec.Raw, names: set[str] | None = None
    ) -> list[Any] | None:
        """An object's translation; None if its types are wrong: a watch then keeps the earlier translation. `names`
        marks an object of a list: its translation comes from the cache if its text is unchanged."""
        name = _name(metadata)
        if names is not None:
            names.add(name)
            known = self._recall.meaning(name, raw)
            if known is not None:
                return known
        try:
            found, faults = resource.translate(raw)
        except objects.UNDECODABLE as error:
            self._faults.note(name, [Fault("object", f"not of the shape that the API gives it: {error}")])
            return None
        self._faults.note(name, faults)
        if names is not None:
            self._recall.note(name, raw, found)
        return found


def _name(metadata: objects.ObjectMeta) -> str:
    """The name in logs; cluster-scoped objects have no namespace."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else str(metadata.name)
