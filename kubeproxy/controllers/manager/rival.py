"""Notices another manager that controls the same objects: two of them create twice the pods, and undo each other's
work.

Users may forget to take the three controllers away from kube-controller-manager, and an upgrade of the control plane
may bring them back. The Lease of kube-controller-manager proves nothing, because it leads for its other controllers,
too. The objects that it has created do: the API server records who created an object (``managedFields``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final
from urllib.parse import quote

import msgspec
import structlog

from kubeproxy.controllers.api_types import Pod, ReplicaSet
from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.api_types import Wire
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.leader_election import Lease
from kubeproxy.kubernetes.metadata import controller_of
from kubeproxy.kubernetes.object_client import Requests
from kubeproxy.model.errors import KubeproxyError

log = structlog.get_logger(__name__)

OTHER: Final = "kube-controller-manager"
"""The name with which kube-controller-manager identifies itself to the server, and the name of its Lease."""
EVERY_S: Final = 60.0
MOST: Final = 20
"""How many new objects are checked each time. One that another manager has created is enough."""
REMEDY: Final = (
    "run kube-controller-manager with --controllers=*,-deployment-controller,-replicaset-controller,"
    "-replicationcontroller-controller, or stop this one"
)


class RivalError(KubeproxyError):
    """Raised if another manager controls the same objects, although this one is to be the only one."""


class _Change(Wire, frozen=True):
    """One entry of an object's ``managedFields``."""

    manager: str = ""
    subresource: str = ""
    fields_v1: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict, name="fieldsV1")


class _Meta(Wire, frozen=True):
    managed_fields: list[_Change] = msgspec.field(default_factory=list)


class _Item(Wire, frozen=True):
    metadata: _Meta = _Meta()


class _Items(Wire, frozen=True):
    items: list[_Item] = msgspec.field(default_factory=list)


class Rival:
    """Looks for another manager. Call `run` while this process leads."""

    def __init__(
        self,
        requests: Requests,
        *,
        pods: Iterable[Pod],
        replica_sets: Sequence[tuple[str, Iterable[ReplicaSet]]],
        exclusive: bool,
        clock: Callable[[], float],
    ) -> None:
        """`replica_sets` are the caches of kinds whose objects a controller makes, by their path. With `exclusive`,
        `run` raises `RivalError` once another manager is at work. `clock` gives Unix seconds."""
        self._requests = requests
        self._caches: list[tuple[str, Iterable[Pod | ReplicaSet]]] = [("/api/v1", pods), *replica_sets]
        self._exclusive = exclusive
        self._clock = clock
        self._since = clock()
        self._seen: set[str] = set()
        self.holder = ""
        """The holder of kube-controller-manager's Lease, as long as the Lease is renewed. It is empty if there is none,
        or the Lease cannot be read."""
        self.made = ""
        """An object of ours that kube-controller-manager has created. It is empty if none was seen."""

    @property
    def text(self) -> str:
        """Return in one line what was seen, or an empty text if nothing was."""
        if self.made:
            return f"{OTHER} makes objects of the same owners ({self.made}): {REMEDY}"
        if self.holder:
            return f"{OTHER} leads, too (holder {self.holder}): its controllers of these kinds must be off"
        return ""

    async def run(self) -> None:
        """Check every minute until cancelled."""
        while True:
            try:
                await self._look()
            except ApiError as error:
                log.debug("cannot look for another manager", reason=str(error))
            if self.made and self._exclusive:
                raise RivalError(self.text)
            await asyncio.sleep(EVERY_S)

    async def _look(self) -> None:
        before, self.holder = self.holder, await self._leader()
        if self.holder and self.holder != before:
            log.warning("kube-controller-manager leads, too", holder=self.holder, remedy=REMEDY)
        for path, item in self._new_objects():
            namespace, name = item.metadata.namespace, item.metadata.name
            if await self._made_by_other(path, namespace, name):
                name = f"{namespace}/{name}"
                if not self.made:
                    log.error("another manager keeps the same objects", made=name, by=OTHER, remedy=REMEDY)
                self.made = name
                return

    async def _leader(self) -> str:
        """Return the holder of kube-controller-manager's Lease, if it has been renewed within its duration."""
        try:
            body = await self._requests.get_json(f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{OTHER}")
        except ApiError as error:
            if error.status in (403, 404):
                return ""
            raise
        record = msgspec.json.decode(body, type=Lease).record
        return record.holder if self._clock() - record.renewed < record.duration_s + EVERY_S else ""

    def _new_objects(self) -> list[tuple[str, Pod | ReplicaSet]]:
        """Return some objects with an owner that were created since this process leads, and were not looked at
        before."""
        found = (
            (path, item)
            for path, cache in self._caches
            for item in cache
            if item.metadata.uid not in self._seen
            and controller_of(item) is not None
            and (timestamps.parse(item.metadata.creation_timestamp) or 0.0) >= self._since
        )
        some = list(islice(found, MOST))
        self._seen.update(item.metadata.uid for _, item in some)
        return some

    async def _made_by_other(self, path: str, namespace: str, name: str) -> bool:
        kind = "pods" if path == "/api/v1" else "replicasets"
        # This reads a list, because the controllers need the right to get a single pod for nothing else.
        body = await self._requests.get_json(
            f"{path}/namespaces/{quote(namespace)}/{kind}", {"fieldSelector": f"metadata.name={name}"}
        )
        changes = (
            change for item in msgspec.json.decode(body, type=_Items).items for change in item.metadata.managed_fields
        )
        return any(
            change.manager.startswith(OTHER) and not change.subresource and "f:spec" in change.fields_v1
            for change in changes
        )
