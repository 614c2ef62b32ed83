"""Detects another controller manager that controls the same objects. Two managers would create twice the pods, and undo
each other's work.

Users may forget to disable the three controllers in kube-controller-manager, and an upgrade of the control plane may
enable them again. The Lease of kube-controller-manager proves nothing, because its other controllers need it, too. But
the API server records which client has created an object (``managedFields``).
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
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.leader_election import Lease
from kubeproxy.kubernetes.metadata import controller_of
from kubeproxy.model.errors import KubeproxyError

log = structlog.get_logger(__name__)

OTHER: Final = "kube-controller-manager"
"""The name of kube-controller-manager in ``managedFields``, and the name of its Lease."""
EVERY_S: Final = 60.0
MOST: Final = 20
"""The largest number of new objects that are examined in one check."""
REMEDY: Final = (
    "run kube-controller-manager with --controllers=*,-deployment-controller,-replicaset-controller,"
    "-replicationcontroller-controller, or stop this one"
)


class RivalError(KubeproxyError):
    """Raised if another controller manager controls the same objects, and the settings require that there is none."""


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
    """Looks for another controller manager. Call `run` while this process leads."""

    def __init__(
        self,
        requests: Client,
        *,
        pods: Iterable[Pod],
        replica_sets: Sequence[tuple[str, Iterable[ReplicaSet]]],
        exclusive: bool,
        clock: Callable[[], float],
    ) -> None:
        """`replica_sets` are further caches of objects that controllers create, each with the path of its API group.
        With `exclusive`, `run` raises `RivalError` when it detects another manager. `clock` returns Unix seconds."""
        self._requests = requests
        self._caches: list[tuple[str, Iterable[Pod | ReplicaSet]]] = [("/api/v1", pods), *replica_sets]
        self._exclusive = exclusive
        self._clock = clock
        self._since = clock()
        self._seen: set[str] = set()
        self.holder = ""
        """The holder of kube-controller-manager's Lease. It is empty if the Lease does not exist, has expired or cannot
        be read."""
        self.made = ""
        """An object that kube-controller-manager has created for one of the owners that this process controls. It is
        empty if none was found."""

    @property
    def text(self) -> str:
        """Return one line about what was detected, or an empty text."""
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
        """Return the holder of kube-controller-manager's Lease, or an empty text if the Lease has expired."""
        try:
            body = await self._requests.get_json(f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{OTHER}")
        except ApiError as error:
            if error.status in (403, 404):
                return ""
            raise
        record = msgspec.json.decode(body, type=Lease).record
        return record.holder if self._clock() - record.renewed < record.duration_s + EVERY_S else ""

    def _new_objects(self) -> list[tuple[str, Pod | ReplicaSet]]:
        """Return at most `MOST` owned objects that were created since this process leads and have not been checked
        yet."""
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
        # Read a list with one object instead of the object, because the controllers have no right to get a single pod.
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
