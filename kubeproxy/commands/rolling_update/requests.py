"""Reads and writes ReplicationControllers and pods. Every write is idempotent.

If the answer to a write is lost, the write is sent again. A PUT has the resourceVersion of the changed object, a DELETE
has the UID, and a POST has a fixed name. So if the first request was carried out, the repetition changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from kubeproxy.commands.rolling_update.controller import Controller, Data, DeletedError
from kubeproxy.controllers.api_types import Pod
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import GarbageError, StatusError
from kubeproxy.kubernetes.invalid_field import type_error
from kubeproxy.kubernetes.object_client import MERGE

MOST_CONFLICTS: Final = 10
"""How often a change is tried again after a conflict; kubectl tries 4 times. While a controller is scaled, its status
is written often, and each of these writes may cause a conflict."""
_CONFLICT_S: Final = 0.01
_CONFLICT_LIMIT_S: Final = 1.0


class _Pods(msgspec.Struct):
    items: list[Pod] = []


_pods = msgspec.json.Decoder(_Pods)


class ControllerRequests:
    """Makes requests about the ReplicationControllers and pods of one namespace."""

    def __init__(self, client: Client, namespace: str, *, random: Random | None = None) -> None:
        self._client = client
        self.namespace = namespace
        self._random = random or Random()

    def now(self) -> float:
        """Return the server's time in Unix seconds, accurate to a second."""
        return self._client.now()

    # Reads

    async def get(self, name: str) -> Controller | None:
        """Return a controller, or None if it does not exist or is being deleted."""
        found = await self.standing(name)
        return None if found is None or found.deleting else found

    async def standing(self, name: str) -> Controller | None:
        """Return a controller even if it is being deleted, or None if it does not exist."""
        try:
            return checked((await self._client.request("GET", self._path(name))).decoded())
        except StatusError as error:
            if error.status == 404 and not _about_namespace(error):
                return None
            raise

    async def all(self) -> list[Controller]:
        """Return all controllers of the namespace."""
        answer = await self._client.request("GET", self._path())
        found: Any = answer.decoded()
        items = found.get("items") or [] if isinstance(found, dict) else None
        if not isinstance(items, list):
            raise GarbageError("the server answered what is no list of ReplicationControllers", cause="garbage")
        return [checked(item) for item in items]

    async def pods(self, selector: Mapping[str, str]) -> list[Pod]:
        """Return the pods that a selector matches, including finished and terminating pods."""
        text = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        answer = await self._client.request("GET", self._pod_path(), {"labelSelector": text})
        try:
            return _pods.decode(answer.body).items
        except msgspec.MsgspecError as error:
            raise GarbageError(f"a list of pods that cannot be read: {error}", cause="garbage") from None

    # Writes

    async def update(self, controller: Controller, change: Callable[[Controller], None]) -> Controller:
        """Change a controller by PUT, and return it. After a conflict, apply the change to the newest state.

        `change` modifies the controller in place, and may raise. If it changes nothing, send nothing. Raise
        `DeletedError` if the controller was deleted, perhaps with a successor of the same name.
        """
        current = controller
        delay_s = _CONFLICT_S
        for attempt in range(1, MOST_CONFLICTS + 1):
            wanted = current.copy()
            change(wanted)
            if wanted.data == current.data:
                return current
            try:
                body = _encoded(wanted.data)
                return checked((await self._client.request("PUT", self._path(controller.name), body=body)).decoded())
            except StatusError as error:
                if error.status == 404 and not _about_namespace(error):
                    raise DeletedError(controller.name) from None
                if error.status != 409 or attempt == MOST_CONFLICTS:
                    raise
            await asyncio.sleep(delay_s * self._random.uniform(1.0, 1.1))
            delay_s = min(2 * delay_s, _CONFLICT_LIMIT_S)
            newest = await self.get(controller.name)
            if newest is None or newest.uid != controller.uid:
                raise DeletedError(controller.name)
            current = newest
        raise AssertionError("the last attempt returns or raises")

    async def try_create(self, controller: Controller) -> None:
        """Have the server check a new controller without creating it (a dry run). Raise StatusError if the server
        refuses it."""
        await self._client.request("POST", self._path(), {"dryRun": "All"}, body=_encoded(controller.data))

    async def create(self, controller: Controller) -> Controller | None:
        """Create a controller, and return it, or return None if the name exists already."""
        for attempt in range(1, MOST_CONFLICTS + 1):
            try:
                body = _encoded(controller.data)
                return checked((await self._client.request("POST", self._path(), body=body)).decoded())
            except StatusError as error:
                if error.status == 409 and error.reason == "AlreadyExists":
                    return None
                # A concurrent write of a ResourceQuota causes a conflict, too.
                if error.status != 409 or attempt == MOST_CONFLICTS:
                    raise
            await asyncio.sleep(_CONFLICT_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def delete(
        self, controller: Controller, *, orphan: bool, check: Callable[[Controller], None] = lambda _found: None
    ) -> None:
        """Delete exactly this controller. Before each attempt, call `check` with the controller's state, which must not
        change until the deletion. After a conflict, read the state again. `check` raises if the controller must not be
        deleted.

        With `orphan`, the controller's pods are kept. Otherwise the garbage collector deletes them.
        """
        current: Controller | None = controller
        for attempt in range(1, MOST_CONFLICTS + 1):
            if current is None or current.uid != controller.uid or current.deleting:
                return
            check(current)
            options = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Orphan" if orphan else "Background",
                "preconditions": {"uid": current.uid, "resourceVersion": current.metadata.get("resourceVersion")},
            }
            try:
                await self._client.request("DELETE", self._path(controller.name), body=_encoded(options))
                return
            except StatusError as error:
                if error.status == 404:
                    return
                if error.status != 409 or attempt == MOST_CONFLICTS:
                    raise
            await asyncio.sleep(_CONFLICT_S * 2**attempt)
            current = await self.standing(controller.name)

    async def change_pod(self, pod: Pod, metadata: Data) -> bool:
        """Merge `metadata` into the metadata of exactly this pod. Return False if the pod no longer exists."""
        body = {"metadata": metadata | {"uid": pod.metadata.uid}}
        for attempt in range(1, MOST_CONFLICTS + 1):
            try:
                await self._client.request(
                    "PATCH", self._pod_path(pod.metadata.name), body=_encoded(body), content_type=MERGE
                )
                return True
            except StatusError as error:
                if error.status == 404:
                    return False
                if error.status != 409 or attempt == MOST_CONFLICTS:
                    raise
                if all(each.metadata.uid != pod.metadata.uid for each in await self.pods(pod.metadata.labels)):
                    return False
            await asyncio.sleep(_CONFLICT_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def delete_pod(self, pod: Pod) -> None:
        """Delete exactly this pod, with its grace period."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.metadata.uid}}
        try:
            await self._client.request("DELETE", self._pod_path(pod.metadata.name), body=_encoded(options))
        except StatusError as error:
            if error.status not in (404, 409):
                raise

    def _path(self, name: str = "") -> str:
        path = f"/api/v1/namespaces/{quote(self.namespace)}/replicationcontrollers"
        return f"{path}/{quote(name, safe='')}" if name else path

    def _pod_path(self, name: str = "") -> str:
        path = f"/api/v1/namespaces/{quote(self.namespace)}/pods"
        return f"{path}/{quote(name, safe='')}" if name else path


def _encoded(data: Data) -> bytes:
    return msgspec.json.encode(data)


def _about_namespace(error: StatusError) -> bool:
    return error.details.kind == "namespaces"


Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Texts = dict[str, str] | None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    deletion_timestamp: str | None = None
    labels: Texts = None
    annotations: Texts = None
    finalizers: list[str] | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str | None = None
    image: str | None = None
    image_pull_policy: str | None = None


class _PodSpec(msgspec.Struct):
    containers: list[_Container] | None = None


class _Template(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


class _Spec(msgspec.Struct, rename="camel"):
    replicas: Count | None = None
    min_ready_seconds: Count | None = None
    selector: Texts = None
    template: _Template | None = None


class _Condition(msgspec.Struct):
    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None


class _ControllerStatus(msgspec.Struct, rename="camel"):
    replicas: Count | None = None
    ready_replicas: Count | None = None
    observed_generation: int | None = None
    conditions: list[_Condition] | None = None


class _Shape(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _ControllerStatus | None = None


def checked(answer: Any) -> Controller:
    """Return the controller in a server's answer. Raise GarbageError if the answer is not a controller.

    The types of the fields that an update reads are checked here, so that later code need not check them.
    """
    try:
        msgspec.convert(answer, _Shape)
    except msgspec.ValidationError as error:
        problem, path = type_error(error)
        where = f"{path}: " if path else ""
        raise GarbageError(
            f"the server answered what is no ReplicationController: {where}{problem}", cause="garbage"
        ) from None
    return Controller({"apiVersion": "v1", "kind": "ReplicationController"} | _without_nulls(answer))


def _without_nulls(value: Any) -> Any:
    """Remove null fields, which mean the same as absent fields."""
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(each) for key, each in value.items() if each is not None}
