"""A typed client: reads and writes objects of one resource, decoded to the fields in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError, GarbageError

T = TypeVar("T")

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NAMESPACE_TERMINATING = "NamespaceTerminating"


class ObjectClient(Generic[T]):
    """Reads and writes the objects of one resource. `group` is the path of its group version, such as
    ``/apis/apps/v1``.

    `written` is called with every object that a write returns, for a cache of own writes (see `mutation_cache`).
    """

    def __init__(
        self,
        requests: Client,
        *,
        group: str,
        resource: str,
        decode: Callable[[bytearray], T],
        written: Callable[[T], None] | None = None,
    ) -> None:
        self._requests = requests
        self._group = group
        self._resource = resource
        self._decode = decode
        self._written = written

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of the collection if `name` is empty."""
        parts = (self._group, "namespaces", quote(namespace), self._resource, quote(name), subresource)
        return "/".join(part for part in parts if part)

    async def get(self, namespace: str, name: str) -> T:
        """Read an object from the server."""
        path = self.path(namespace, name)
        body = await self._requests.get_json(path)
        with understood(path):
            return self._decode(body)

    async def list_namespace(self, namespace: str, *, selector: str = "") -> list[T]:
        """List the objects of a namespace that match a label selector. The selector is given as text."""
        query = {"labelSelector": selector} if selector else {}
        path = self.path(namespace)
        body = await self._requests.get_json(path, query)
        with understood(path):
            return [self._decode(bytearray(item)) for item in msgspec.json.decode(body, type=_Items).items]

    async def create(self, namespace: str, body: Mapping[str, Any] | bytes) -> T:
        """Create an object, and return it. `body` is the object as JSON values or as encoded JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self._noted(await self._requests.send_json("POST", self.path(namespace), data))

    async def patch(
        self,
        namespace: str,
        name: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        content_type: str = MERGE,
        subresource: str = "",
    ) -> T:
        """Patch an object, and return it. If the patch has a resourceVersion and the object has changed since, the
        server answers with a Conflict."""
        path = self.path(namespace, name, subresource)
        data = msgspec.json.encode(body)
        return self._noted(await self._requests.send_json("PATCH", path, data, content_type=content_type))

    async def delete(self, namespace: str, name: str, *, uid: str = "") -> None:
        """Delete an object. If `uid` is given and the object has another UID, the server answers with a Conflict and
        deletes nothing."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid:
            options["preconditions"] = {"uid": uid}
        await self._requests.send_json("DELETE", self.path(namespace, name), msgspec.json.encode(options))

    def _noted(self, body: bytearray) -> T:
        with understood(self._resource):
            item = self._decode(body)
        if self._written is not None:
            self._written(item)
        return item


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] = []


def is_not_found(error: BaseException) -> bool:
    """Return whether a request failed because the object does not exist."""
    return isinstance(error, ApiError) and error.status == 404


def is_conflict(error: BaseException) -> bool:
    """Return whether a request failed because the object has changed since it was read."""
    return isinstance(error, ApiError) and error.status == 409 and error.reason != "AlreadyExists"


def already_exists(error: BaseException) -> bool:
    """Return whether a request failed because an object of this name exists already."""
    return isinstance(error, ApiError) and error.status == 409 and error.reason == "AlreadyExists"


def is_invalid(error: BaseException) -> bool:
    """Return whether a request failed because the server found the content invalid."""
    return isinstance(error, ApiError) and error.status == 422


def namespace_terminating(error: BaseException) -> bool:
    """Return whether a request failed because the namespace is being deleted."""
    return isinstance(error, ApiError) and NAMESPACE_TERMINATING in error.causes


def server_text(error: BaseException) -> str:
    """Return the server's message, without URL and HTTP status."""
    return (isinstance(error, ApiError) and error.server_text) or str(error)


@contextmanager
def understood(path: str) -> Iterator[None]:
    """Turn decoding errors inside the context into `GarbageError`. `path` is the path of the request."""
    try:
        yield
    except msgspec.MsgspecError as error:
        raise GarbageError(
            f"{path}: the server answered with an object of another shape: {error}", cause="garbage"
        ) from error
