"""Keeps one kind of object in a store by a reflector, with handlers that are called for every change.

Handlers are plain functions that put keys into queues. They are called in the order of the changes of each object,
after the store has the change. Several changes may be merged into one. If an object was deleted and created again under
the same name unseen, handlers get a deletion and an addition.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from kubeproxy.kubernetes import api_types as wire
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.informer.connectivity import Connectivity
from kubeproxy.kubernetes.informer.list_watch_policy import Pace
from kubeproxy.kubernetes.informer.reflector import Reflector
from kubeproxy.kubernetes.informer.reflector_state import ReflectorState
from kubeproxy.kubernetes.informer.resource import Resource
from kubeproxy.kubernetes.informer.store import Indexer, Store
from kubeproxy.kubernetes.invalid_field import Fault
from kubeproxy.kubernetes.metadata import Object, key_of

T = TypeVar("T", bound=Object)
T_contra = TypeVar("T_contra", contravariant=True)

RESYNC_S = 43_200.0
"""The shortest time between two resyncs. Each informer draws up to twice as much (--min-resync-period, 12 h)."""

log = structlog.get_logger(__name__)


class Handler(Protocol[T_contra]):
    """Called for every change. The objects are shared and must not be changed."""

    def added(self, item: T_contra, /) -> None:
        """Handle an object that is new in the store."""

    def updated(self, old: T_contra, new: T_contra, /) -> None:
        """Handle a changed object. If the resourceVersion is the same, it is a resync."""

    def deleted(self, item: T_contra, /) -> None:
        """Handle the end of an object. `item` is its last known state, which may be stale."""


class Informer(Generic[T]):
    """The objects of one resource. `path` is the collection's, such as ``/api/v1/pods``.

    All of them are kept, whatever their number, because a controller that does not see a pod creates another one.
    """

    def __init__(
        self,
        *,
        name: str,
        kind: str,
        path: str,
        decode: Callable[[msgspec.Raw], T],
        indexers: Mapping[str, Indexer[T]] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.path = path
        self.query: Mapping[str, str] = query or {}
        self.store: Store[T] = Store(indexers)
        self.synced = asyncio.Event()
        """Set once the first whole list is in the store and was reported."""
        self._decode = decode
        self._handlers: list[Handler[T]] = []
        self._list_handlers: list[Callable[[], None]] = []
        self._restore_handlers: list[Callable[[], None]] = []
        self._version = 0
        """The newest resourceVersion that was reported here. It is 0 if there was none that is a number."""

    def add_handler(self, handler: Handler[T]) -> None:
        """Report every change from now on, beginning with the addition of each object that is there already."""
        self._handlers.append(handler)
        for item in self.store:
            self._call(handler.added, item)

    def add_list_handler(self, handler: Callable[[], None]) -> None:
        """Call `handler` after every whole list. An object that came and went before the list is never reported."""
        self._list_handlers.append(handler)

    def add_restore_handler(self, handler: Callable[[], None]) -> None:
        """Call `handler` after a whole list that is older than what was reported before, because the server's storage
        came from a backup. Objects that were written since the backup may exist no more, and no deletion is reported
        of those that were not reported before."""
        self._restore_handlers.append(handler)

    def includes(self, version: str) -> bool:
        """Return whether the store has a write that got this resourceVersion, or what came after it.

        Events come in the order of their versions, so what was not reported by then is never reported.
        """
        return version.isdecimal() and 0 < int(version) <= self._version

    async def run(
        self,
        client: Client,
        *,
        outages: Connectivity,
        pace: Pace | None = None,
        random: Random | None = None,
        resync_s: float = RESYNC_S,
        watch_state: Callable[[Callable[[], ReflectorState]], None] | None = None,
    ) -> None:
        """Keep the store in step with the server until cancelled. `watch_state` is called with a function that returns
        the reflector's state."""
        random = random or Random()
        resource = _InformerResource(self)

        async def choose() -> Resource[Any]:
            return resource

        reflector = Reflector(
            client=client,
            name=self.name,
            choose=choose,
            outages=outages,
            pace=pace or Pace(),
            random=random,
            max_kept_bytes=sys.maxsize,
        )
        if watch_state is not None:
            watch_state(reflector.state)
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run(), name=f"reflector of {self.name}")
            group.create_task(self._resync(resync_s * random.uniform(1, 2)), name=f"resync of {self.name}")

    async def _resync(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self.resync()

    def resync(self) -> None:
        """Report every object as updated, so that controllers check each of them again."""
        for item in self.store:
            self._updated(item, item)

    # What the reflector reports.

    def decode(self, raw: msgspec.Raw) -> T:
        """Return an object from its JSON. Raise ``msgspec.ValidationError`` if a type is wrong."""
        return self._decode(raw)

    def replace(self, items: Iterable[T]) -> None:
        """Replace all objects by a complete list. Objects that are not in it were deleted unseen."""
        listed = {key_of(item): item for item in items}
        for key in sorted(self.store.keys() - listed.keys()):
            self.remove(key)
        for item in listed.values():
            self.put(item)
        self.synced.set()

    def listed(self, version: str) -> None:
        """Note that the store has the state of this version. The version is lower than before if storage came from a
        backup."""
        is_older, self._version = _number(version) < self._version, _number(version)
        for handler in (*(self._restore_handlers if is_older else ()), *self._list_handlers):
            handler()

    def put(self, item: T) -> None:
        """Store a new or changed object."""
        self._version = max(self._version, _number(item.metadata.resource_version))
        before = self.store.get(key_of(item))
        if before is not None and before.metadata.uid != item.metadata.uid:
            self.remove(key_of(item))
            before = None
        self.store.put(item)
        if before is None:
            for handler in self._handlers:
                self._call(handler.added, item)
        elif before.metadata.resource_version != item.metadata.resource_version:
            self._updated(before, item)

    def remove(self, key: str) -> None:
        """Remove an object that is gone."""
        item = self.store.remove(key)
        if item is not None:
            for handler in self._handlers:
                self._call(handler.deleted, item)

    def _updated(self, old: T, new: T) -> None:
        for handler in self._handlers:
            try:
                handler.updated(old, new)
            except Exception:
                log.exception("informer handler failed", resource=self.name, key=key_of(new))

    def _call(self, handle: Callable[[T], None], item: T) -> None:
        """Call a handler. If it fails, the reflector and the other handlers still get the change."""
        try:
            handle(item)
        except Exception:
            log.exception("informer handler failed", resource=self.name, key=key_of(item))


class _InformerResource(Resource[Any]):
    """The informer as the reflector sees it."""

    def __init__(self, informer: Informer[Any]) -> None:
        self._informer = informer
        self.name = informer.name
        self.kind = informer.kind
        self.path = informer.path
        self.query = informer.query

    def translate(self, raw: msgspec.Raw) -> tuple[list[Any], list[Fault]]:
        return [self._informer.decode(raw)], []

    def replace(self, found: Iterable[Any]) -> None:
        self._informer.replace(found)

    def put(self, metadata: wire.ObjectMeta, found: list[Any]) -> None:
        for item in found:
            self._informer.put(item)

    def listed(self, version: str) -> None:
        self._informer.listed(version)

    def remove(self, metadata: wire.ObjectMeta) -> None:
        self._informer.remove(f"{metadata.namespace or ''}/{metadata.name or ''}")


def _number(version: str) -> int:
    """Return a resourceVersion as a number that can be compared, or 0 if it is no number."""
    return int(version) if version.isdecimal() else 0
