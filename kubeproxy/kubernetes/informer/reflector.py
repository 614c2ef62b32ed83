"""Keeps a local copy of one resource of the API server: lists it once, and then watches its changes.

A list replaces all objects at once when it is complete, so missed deletions are found. A watch continues from the last
resourceVersion that was seen. The resource is listed again only if the server no longer knows that version (410) or
sends invalid data.

The generated client and the watch of kubernetes_asyncio are not used. They decode all fields of each object, in 24
times the processor time of msgspec with the fields in use (2,000 Services: 107 ms, here 4.5 ms), and importing them
costs 35 MiB in each process. The package has no informer either.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from time import monotonic, time
from typing import Any

import msgspec
import structlog

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.api_types import SOURCE
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.decode import MAX_OBJECT_BYTES, Event, EventType, Page, identity, parse_event
from kubeproxy.kubernetes.client.errors import ApiError, GarbageError, UnreachableError
from kubeproxy.kubernetes.client.list_stream import ListSplitter
from kubeproxy.kubernetes.informer.connectivity import Connectivity
from kubeproxy.kubernetes.informer.decode_cache import DecodeCache
from kubeproxy.kubernetes.informer.list_watch_policy import ListWatchPolicy, Pace
from kubeproxy.kubernetes.informer.memory_bound import MemoryBound
from kubeproxy.kubernetes.informer.object_faults import ObjectFaults
from kubeproxy.kubernetes.informer.reflector_state import Phase, ReflectorState
from kubeproxy.kubernetes.informer.resource import Resource
from kubeproxy.kubernetes.invalid_field import Fault
from kubeproxy.runtime.time_slice import TimeSlice

log = structlog.get_logger(__name__)

MAX_NAMELESS = 1000
"""The largest number of objects without a readable name in one list. No API server sends any, and such a list might
never end."""

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Counters:
    last_list: float | None = None
    last_event: float | None = None
    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    last_error: str = ""


class Reflector:
    """Lists and watches one resource. `choose` returns the resource, and is called before each list, because an
    upgraded server may offer another version."""

    def __init__(
        self,
        *,
        client: Client,
        name: str,
        choose: Callable[[], Awaitable[Resource[Any]]],
        outages: Connectivity,
        pace: Pace,
        random: Random,
        max_kept_bytes: int | None = None,
    ) -> None:
        """Objects that exceed `max_kept_bytes` are left out (see `memory_bound`, which also has the default)."""
        self._client = client
        self._name = name
        self._choose = choose
        self._outages = outages
        self._pace = pace
        self._policy = ListWatchPolicy(pace=pace, random=random)
        self._faults = ObjectFaults(name)
        self._decode_cache: DecodeCache[Any] = DecodeCache()
        self._memory_bound = MemoryBound(max_kept_bytes)
        self._logged_left_out = False
        self._listed_at = float("-inf")
        self._nameless = 0
        self._time_slice = TimeSlice(pace.slice_s)
        self._counters = _Counters()
        self._resource: Resource[Any] | None = None
        self._phase = Phase.LISTING
        self._retry_now = asyncio.Event()
        self._behind_since: float | None = monotonic()

    def state(self) -> ReflectorState:
        """Return the reflector's present state."""
        counters = self._counters
        return ReflectorState(
            resource=self._called,
            phase=self._phase,
            resource_version=self._policy.version,
            last_list=counters.last_list,
            last_event=counters.last_event,
            lists=counters.lists,
            watches=counters.watches,
            events=counters.events,
            failures=dict(counters.failures),
            last_error=counters.last_error,
            faulty=len(self._faults),
            left_out=self._memory_bound.left_out,
            kept_bytes=self._memory_bound.kept,
            behind_s=0.0 if self._behind_since is None else monotonic() - self._behind_since,
        )

    @property
    def _called(self) -> str:
        """Return the resource's name for logs. It is ``endpoints`` instead of ``endpointslices`` if the server has no
        EndpointSlices."""
        return self._resource.name if self._resource else self._name

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if self._resource is None or self._policy.must_list or self._refill_due():
                    self._phase = Phase.LISTING
                    await self._list()
                else:
                    self._phase = Phase.WATCHING
                    await self._watch(self._resource)
                continue
            except ApiError as error:
                delay_s = self._failed(error)
            # A bug in this program: log the traceback, and list everything again.
            except Exception as error:
                log.exception("reflector failed, listing again", source=SOURCE, resource=self._name)
                self._policy.must_list = True
                delay_s = self._failed(ApiError(f"internal error: {error!r}", cause="internal"))
            self._phase = Phase.WAITING
            self._retry_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._retry_now.wait()

    def retry(self) -> None:
        """If the reflector waits after a failure, let it try again at once."""
        self._retry_now.set()

    def _failed(self, error: ApiError) -> float:
        """Note a failure, and return the delay before the next attempt, in seconds."""
        self._counters.failures[error.cause] += 1
        self._counters.last_error = str(error)
        listing = self._phase is Phase.LISTING
        delay_s = self._policy.list_failed(error) if listing else self._policy.watch_failed(error)
        if self._behind_since is None:
            # A broken watch is no outage yet, because the next watch usually works.
            self._behind_since = monotonic()
            self._outages.broke(self._name)
            write = log.warning if isinstance(error, GarbageError) else log.info
            step = "list" if self._policy.must_list else "watch"
            write("watch broke", source=SOURCE, resource=self._called, seen=str(error), next=step)
        else:
            self._outages.failed(self._name, error, called=self._called, since=time() - self.state().behind_s)
        return delay_s

    def _in_step(self) -> None:
        """Note that the watch works and no change was missed."""
        self._behind_since = None
        self._outages.found(self._name)

    def _settled(self) -> None:
        """Note that the watch has worked for a while, so that the next failure begins a new outage."""
        self._policy.settled()
        self._in_step()

    # The list.

    async def _list(self) -> None:
        resource = await self._choose()
        self._resource = resource
        try:
            async with asyncio.timeout(self._pace.list_s):
                objects, version = await self._pages(resource)
        except TimeoutError as error:
            raise GarbageError(
                f"the list of {resource.name} did not end in {self._pace.list_s} s", cause="timeout"
            ) from error
        resource.replace(objects)
        resource.listed(version)
        self._policy.listed(version)
        self._outages.listed(self._name)
        self._counters.lists += 1
        self._counters.last_list = time()
        self._listed_at = monotonic()
        self._log_left_out()
        log.info("listed", source=SOURCE, resource=resource.name, served=len(objects), resource_version=version)

    def _refill_due(self) -> bool:
        """Return whether to list again now, because there is memory again for objects that were left out."""
        return self._memory_bound.worth_a_list and monotonic() - self._listed_at >= self._pace.refill_s

    def _plan_refill(self, watch: asyncio.Timeout) -> None:
        """If there is memory again for objects that were left out, limit the watch's time, so that a list follows."""
        if watch.when() is None and self._memory_bound.worth_a_list:
            wait_s = max(0.0, self._listed_at + self._pace.refill_s - monotonic())
            watch.reschedule(asyncio.get_running_loop().time() + wait_s)

    def _log_left_out(self) -> None:
        """Log once that objects are left out, and once that all objects are kept again."""
        left_out = self._memory_bound.left_out
        if bool(left_out) == self._logged_left_out:
            return
        self._logged_left_out = bool(left_out)
        if not left_out:
            log.info("all objects are kept again", source=SOURCE, resource=self._called)
            return
        log.error(
            "objects left out; too many to keep",
            source=SOURCE,
            resource=self._called,
            left_out=left_out,
            kept_bytes=self._memory_bound.kept,
            limit_bytes=self._memory_bound.limit,
            largest_namespace=self._memory_bound.largest,
            remedy="delete objects of that namespace, or limit them by a ResourceQuota",
        )

    async def _pages(self, resource: Resource[Any]) -> tuple[list[Any], str]:
        """Read the whole list, and return its kept objects and its version. If the continue token expires, fail: the
        new token that the server offers would miss changes of objects that were already read."""
        objects: list[Any] = []
        names: set[str] = set()
        tokens: set[str] = set()
        query = self._policy.list_query()
        self._memory_bound.begin()
        self._nameless = 0
        while True:
            page = await self._page(resource, query, objects, names)
            if not page.token:
                self._faults.keep(names)
                self._decode_cache.keep(names)
                self._memory_bound.keep(names)
                return objects, page.resource_version
            if page.token in tokens:
                raise GarbageError(f"a list of {resource.name} that goes in circles", cause="endless list")
            tokens.add(page.token)
            query = self._policy.next_page_query(page.token)

    async def _page(
        self, resource: Resource[Any], query: Mapping[str, str], objects: list[Any], names: set[str]
    ) -> Page:
        """Read one page, and translate its objects while the page arrives."""
        splitter = ListSplitter()
        answer = self._client.pieces(resource.path, {**resource.query, **query}, head_s=self._policy.patience_s())
        async with answer as pieces:
            try:
                async for data in pieces:
                    if (part := splitter.feed(data)) is not None:
                        await self._take(resource, part, objects, names)
                    await self._time_slice.offer()
            except UnreachableError:
                self._policy.list_broke()
                raise
        page = splitter.end()
        await self._take(resource, page, objects, names)
        return page

    async def _take(self, resource: Resource[Any], page: Page, objects: list[Any], names: set[str]) -> None:
        if page.kind and page.kind != f"{resource.kind}List":
            raise GarbageError(f"{page.kind} where a list of {resource.name} was asked for", cause="wrong kind")
        for raw in page.items:
            metadata = identity(raw)
            if not metadata.name:
                self._nameless += 1
                if self._nameless > MAX_NAMELESS:
                    raise GarbageError(f"a list of {resource.name} without names", cause="endless list")
            name = _name(metadata)
            translated = self._translate(resource, name, raw, listed=True)
            if name in self._memory_bound:
                names.add(name)
                objects.extend(translated or ())
            await self._time_slice.offer()

    # The watch.

    async def _watch(self, resource: Resource[Any]) -> None:
        if self._policy.doubtful:
            probe = {**resource.query, **self._policy.probe_query()}
            patience_s = self._policy.patience_s()
            await self._client.get_json(resource.path, probe, max_bytes=MAX_OBJECT_BYTES, head_s=patience_s)
            self._policy.known()
        query, silence_s = self._policy.watch_query()
        self._counters.watches += 1
        loop = asyncio.get_running_loop()
        begun = loop.time()
        seen = 0
        stream = self._client.stream(
            resource.path, {**resource.query, **query}, silence_s=silence_s, head_s=self._policy.patience_s()
        )
        async with stream as lines:
            settling = loop.call_later(self._pace.settle_s, self._settled)
            try:
                async with asyncio.timeout(None) as refill:
                    self._plan_refill(refill)
                    async for line in lines:
                        self._apply(resource, parse_event(line))
                        seen += 1
                        if seen == 1:
                            self._in_step()
                        self._log_left_out()
                        self._plan_refill(refill)
                        await self._time_slice.offer()
            except TimeoutError:
                return
            finally:
                settling.cancel()
        if loop.time() - begun < self._pace.settle_s:
            where = f"{self._client.server}{resource.path}"
            raise UnreachableError(f"{where}: the watch ended at once, after {seen} events", cause="short watch")

    def _apply(self, resource: Resource[Any], event: Event) -> None:
        if event.kind != resource.kind:
            raise GarbageError(f"a {event.kind or 'nameless kind'} among the {resource.name}", cause="wrong kind")
        self._policy.seen(event.resource_version)
        if event.type is not EventType.BOOKMARK:
            name = _name(event.metadata)
            self._decode_cache.forget(name)
            if event.type is EventType.DELETED:
                self._faults.note(name, ())
                self._memory_bound.release(name)
                resource.remove(event.metadata)
            else:
                translated = self._translate(resource, name, event.object, listed=False)
                if name not in self._memory_bound:
                    resource.remove(event.metadata)
                elif translated is not None:
                    resource.put(event.metadata, translated)
            self._counters.events += 1
            self._counters.last_event = time()
        self._policy.version = event.resource_version

    def _translate(self, resource: Resource[Any], name: str, raw: msgspec.Raw, *, listed: bool) -> list[Any] | None:
        """Translate an object, and count it in the memory bound. For an object of a list, use the cached translation if
        its text is unchanged. Return None if its types are wrong: an object of a watch then keeps its earlier
        translation. An object that exceeds the memory bound is not served."""
        if listed and (cached := self._decode_cache.meaning(name, raw)) is not None:
            return cached
        try:
            translated, faults = resource.translate(raw)
        except api_types.UNDECODABLE as error:
            translated, faults = None, [Fault("object", f"not of the shape that the API gives it: {error}")]
        if translated is None and name in self._memory_bound:
            self._faults.note(name, faults)
            return None
        if not self._memory_bound.admit(name, len(_encode(translated)) + sum(len(str(fault)) for fault in faults)):
            self._faults.note(name, ())
            self._decode_cache.forget(name)
            return None
        self._faults.note(name, faults)
        if listed and translated is not None:
            self._decode_cache.note(name, raw, translated)
        return translated


def _name(metadata: api_types.ObjectMeta) -> str:
    """Return the object's name for logs, with the namespace unless the object is cluster-scoped."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else str(metadata.name)
