"""Keeps the objects of one kind in a store, and calls handlers for every change.

Handlers must not block; usually they add a key to a queue. A handler is called after the store has the change. The
changes of one object are reported in their order, and several changes may be reported as one. If an object was deleted
and created again under the same name while no watch ran, handlers get a deletion and an addition.
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
from kubeproxy.kubernetes.informer.store import Store
from kubeproxy.kubernetes.invalid_field import Fault
from kubeproxy.kubernetes.metadata import Object, key_of

T = TypeVar("T", bound=Object)
T_contra = TypeVar("T_contra", contravariant=True)

RESYNC_S = 43_200.0
"""The shortest time between two resyncs, in seconds. Each informer chooses a random interval of up to twice as much
(--min-resync-period)."""

log = structlog.get_logger(__name__)


class Handler(Protocol[T_contra]):
    """The methods that are called for changes. Their arguments are shared objects, which must not be modified."""

    def added(self, item: T_contra, /) -> None:
        """Handle a new object."""

    def updated(self, old: T_contra, new: T_contra, /) -> None:
        """Handle a changed object. If both states have the same resourceVersion, the call is a resync."""

    def deleted(self, item: T_contra, /) -> None:
        """Handle the deletion of an object. `item` is its last known state, which may be stale."""


class Informer(Generic[T]):
    """The informer of one resource. `path` is the path of the collection, such as ``/api/v1/pods``.

    It keeps all objects, without a memory bound, because a controller that does not see a pod would create another one.
    """

    def __init__(
        self,
        *,
        name: str,
        kind: str,
        path: str,
        decode: Callable[[msgspec.Raw], T],
        query: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.path = path
        self.query: Mapping[str, str] = query or {}
        self.store: Store[T] = Store()
        self.synced = asyncio.Event()
        """Set when the first whole list is in the store and has been reported to the handlers."""
        self._decode = decode
        self._handlers: list[Handler[T]] = []
        self._list_handlers: list[Callable[[], None]] = []
        self._restore_handlers: list[Callable[[], None]] = []
        self._version = 0
        """The newest resourceVersion in the store as a number, or 0 if there was none, or it was not a number."""

    def add_handler(self, handler: Handler[T]) -> None:
        """Add a handler. It is first called for the addition of each object that the store already has."""
        self._handlers.append(handler)
        for item in self.store:
            self._call(handler.added, item)

    def add_list_handler(self, handler: Callable[[], None]) -> None:
        """Have `handler` called after every whole list. Objects that were created and deleted while no watch ran are
        never reported."""
        self._list_handlers.append(handler)

    def add_restore_handler(self, handler: Callable[[], None]) -> None:
        """Have `handler` called after a whole list whose version is older than before, because the server's storage was
        restored from a backup. Objects that were written after the backup are then lost, and if the store never had
        them, their deletion is not reported."""
        self._restore_handlers.append(handler)

    def includes(self, version: str) -> bool:
        """Return whether the store has reached this resourceVersion.

        Events arrive in the order of their versions, so a change up to this version that was not reported will never
        be.
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
        """List and watch until cancelled. `watch_state` is called with a function that returns the reflector's
        state."""
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
        """Report every object as updated, so that controllers check all objects again."""
        for item in self.store:
            self._updated(item, item)

    # Called by the reflector

    def decode(self, raw: msgspec.Raw) -> T:
        """Decode an object. Raise ``msgspec.ValidationError`` if a type is wrong."""
        return self._decode(raw)

    def replace(self, items: Iterable[T]) -> None:
        """Replace the store's contents by a whole list. Objects that are not in the list were deleted while no watch
        ran."""
        listed = {key_of(item): item for item in items}
        for key in sorted(self.store.keys() - listed.keys()):
            self.remove(key)
        for item in listed.values():
            self.put(item)
        self.synced.set()

    def listed(self, version: str) -> None:
        """Note that the store has reached the version of a list. It is lower than before if the server was restored
        from a backup."""
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
        """Remove an object that was deleted."""
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
        """Call a handler. If it raises, log that, so that the reflector and the other handlers continue."""
        try:
            handle(item)
        except Exception:
            log.exception("informer handler failed", resource=self.name, key=key_of(item))


class _InformerResource(Resource[Any]):
    """Adapts an informer to the interface of a reflector."""

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
    """Return a resourceVersion as a number, or 0 if it is not a number."""
    return int(version) if version.isdecimal() else 0
