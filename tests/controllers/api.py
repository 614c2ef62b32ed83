"""An API server for controllers, in memory: as much of its writes as ReplicaSets, Deployments, pods and Leases need.

It speaks as `kubeproxy.kubernetes.client.client.Client` does, with paths and JSON, but without a network, so that a
test decides about every delay and failure. Its rules are those of kube-apiserver: generations, the subresource status,
resourceVersions as preconditions, merge, strategic and JSON patches, graceful deletion of pods.

It is not a mode of `tests.support.apiserver`, which listens at a socket: these tests run on `VirtualLoop`, whose clock
jumps to the next timer whenever no task is ready. While bytes are on their way through a socket no task is ready, so
every time limit would be over before the answer arrived.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import msgspec

from kubeproxy.kubernetes import api_types as wire
from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.client.errors import UnreachableError
from kubeproxy.kubernetes.client.status import status_error

Json = dict[str, Any]
T = TypeVar("T")
_PATH = re.compile(
    r"(/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?(?:/(status|scale|binding))?"
)
_KINDS = {
    "deployments": ("Deployment", "apps/v1"),
    "replicasets": ("ReplicaSet", "apps/v1"),
    "replicationcontrollers": ("ReplicationController", "v1"),
    "pods": ("Pod", "v1"),
    "nodes": ("Node", "v1"),
    "leases": ("Lease", "coordination.k8s.io/v1"),
    "events": ("Event", "v1"),
    "services": ("Service", "v1"),
    "endpointslices": ("EndpointSlice", "discovery.k8s.io/v1"),
}
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True)
class Write:
    """One write that took effect. `old` is None for a creation, `new` for a removal."""

    resource: str
    old: Json | None
    new: Json | None
    by: str
    """Its origin: ``controller`` by requests, ``world`` by the test."""


@dataclass(slots=True)
class _Log:
    events: list[tuple[int, bytes]] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Api:
    """The server. Change the attributes to make it fail, delay or forget."""

    server = "https://api.test"

    def __init__(self, clock: Callable[[], float], *, seed: int = 0) -> None:
        self.clock = clock
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.version = 100
        self.requests: Counter[str] = Counter()
        """By verb and resource."""
        self.writes = 0
        self.watch_delay_s: Callable[[], float] = lambda: 0.0
        """How late an event reaches a watch."""
        self.repeat: Callable[[], bool] = lambda: False
        """Whether an event is sent twice."""
        self.latency_s: Callable[[], float] = lambda: 0.001
        self.refuse: Callable[[str, str, Json], Exception | None] = lambda verb, resource, body: None
        """An error in place of a write."""
        self.lose: Callable[[str, str], Exception | None] = lambda verb, resource: None
        """An error in place of the answer to a write that took effect."""
        self.observers: list[Callable[[Write], None]] = []
        self.serves_terminating = True
        self.terminating_namespaces: set[str] = set()
        self.expired_before = 0
        self._random = Random(seed)
        self._logs: dict[str, _Log] = {}
        self._cut: Counter[str] = Counter()

    # As a client

    async def get_json(self, path: str, query: Mapping[str, str] | None = None, **_: Any) -> bytearray:
        await asyncio.sleep(self.latency_s())
        resource, namespace, name, _subresource = _parse(path)
        if name:
            self.requests[f"get {resource}"] += 1
            return _encoded(self._demand(resource, namespace, name))
        self.requests[f"list {resource}"] += 1
        kind, group_version = _KINDS[resource]
        wanted = _selector((query or {}).get("labelSelector", ""))
        items = [
            item
            for (of, where, _name), item in sorted(self.objects.items())
            if of == resource and namespace in ("", where) and _fits(wanted, _labels(item))
        ]
        return _encoded(
            {
                "kind": f"{kind}List",
                "apiVersion": group_version,
                "metadata": {"resourceVersion": str(self.version)},
                "items": items,
            }
        )

    @asynccontextmanager
    async def pieces(
        self, path: str, query: Mapping[str, str], *, head_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        body = bytes(await self.get_json(path, query))

        async def halves() -> AsyncIterator[bytes]:
            yield body[: len(body) // 2]
            yield body[len(body) // 2 :]

        yield halves()

    async def send_json(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json"
    ) -> bytearray:
        await asyncio.sleep(self.latency_s())
        resource, namespace, name, subresource = _parse(path)
        sent = msgspec.json.decode(body) if body else {}
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}[method]
        self.requests[f"{verb} {resource}{'/' + subresource if subresource else ''}"] += 1
        if (refused := self.refuse(verb, resource, sent if isinstance(sent, dict) else {})) is not None:
            raise refused
        match verb:
            case "create":
                answer = self.create(resource, namespace, sent, by="controller")
            case "patch":
                answer = self.patch(resource, namespace, name, sent, content_type, subresource, by="controller")
            case "delete":
                answer = self.delete(resource, namespace, name, uid=_uid(sent), by="controller")
            case _:
                raise _error(405, "MethodNotAllowed", f"{verb} is not served here")
        if (lost := self.lose(verb, resource)) is not None:
            raise lost
        await asyncio.sleep(self.latency_s())
        return _encoded(answer)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float, head_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        resource, _namespace, _name, _subresource = _parse(path)
        self.requests[f"watch {resource}"] += 1
        after = int(query["resourceVersion"])
        if after < self.expired_before:
            raise _error(410, "Expired", "too old resource version")
        yield self._lines(resource, after, float(query["timeoutSeconds"]))

    async def _lines(self, resource: str, after: int, timeout_s: float) -> AsyncIterator[bytes]:
        log = self._log(resource)
        cut = self._cut[resource]
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        position = 0
        while loop.time() < end:
            while position < len(log.events):
                version, line = log.events[position]
                position += 1
                if version <= after:
                    continue
                await asyncio.sleep(self.watch_delay_s())
                if self._cut[resource] != cut:
                    raise UnreachableError("the watch was cut off", cause="cut")
                yield line
                if self.repeat():
                    yield line
            log.wake.clear()
            try:
                async with asyncio.timeout_at(end):
                    await log.wake.wait()
            except TimeoutError:
                return
            if self._cut[resource] != cut:
                raise UnreachableError("the watch was cut off", cause="cut")

    # What the test does to it

    def cut_watches(self, *, expire: bool = False) -> None:
        """End every watch; with `expire` the next ones are refused, and everything is listed anew."""
        if expire:
            self.version += 1
            self.expired_before = self.version
        for resource in list(self._logs):
            self._cut[resource] += 1
            self._log(resource).wake.set()

    def get(self, resource: str, name: str, namespace: str = "default") -> Json:
        """A copy of an object; KeyError without one."""
        return copied(self.objects[resource, namespace, name])

    def all(self, resource: str, namespace: str = "default") -> list[Json]:
        """Copies of all objects of a resource, oldest first."""
        found = [item for (of, where, _), item in self.objects.items() if (of, where) == (resource, namespace)]
        return copied(sorted(found, key=lambda item: int(item["metadata"]["uid"].split("-")[1])))

    def create(self, resource: str, namespace: str, item: Json, *, by: str = "world") -> Json:
        """Create an object."""
        item = copied(item)
        kind, group_version = _KINDS[resource]
        metadata = item.setdefault("metadata", {})
        if namespace in self.terminating_namespaces:
            raise _error(403, "Forbidden", f"{namespace} is being terminated", cause="NamespaceTerminating")
        if not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + "".join(self._random.choices(_SUFFIX, k=5))
        if (resource, namespace, metadata["name"]) in self.objects:
            raise _error(409, "AlreadyExists", f'{resource} "{metadata["name"]}" already exists')
        self.version += 1
        metadata |= {
            "namespace": namespace,
            "uid": f"uid-{self.version:06}",
            "creationTimestamp": timestamps.seconds(self.clock()),
            "generation": 1,
        }
        item |= {"kind": kind, "apiVersion": group_version}
        if resource != "leases":
            item["status"] = {"phase": "Pending"} if resource == "pods" else {}
        self._store(resource, None, item, by)
        return item

    def patch(
        self,
        resource: str,
        namespace: str,
        name: str,
        patch: Any,
        content_type: str = "application/merge-patch+json",
        subresource: str = "",
        *,
        by: str = "world",
    ) -> Json:
        """Change an object, or its status."""
        old = self._demand(resource, namespace, name)
        new = copied(old)
        if content_type == "application/json-patch+json":
            for operation in patch:
                _apply(new, operation)
        else:
            strategic = content_type == "application/strategic-merge-patch+json"
            new = _merged(new, patch, strategic=strategic)
        given, kept = new["metadata"], old["metadata"]
        if given.get("resourceVersion") != kept["resourceVersion"]:
            raise _error(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        if given.get("uid") != kept["uid"]:
            raise _error(409, "Conflict", f"Precondition failed: UID in precondition: {given.get('uid')}")
        if subresource == "status":
            new["spec"] = old.get("spec", {})
            given["labels"] = kept.get("labels", {})
            if not self.serves_terminating:
                new["status"].pop("terminatingReplicas", None)
        elif resource != "pods":
            if "status" in old:
                new["status"] = old["status"]
            annotated = resource == "deployments" and given.get("annotations") != kept.get("annotations")
            if new.get("spec") != old.get("spec") or annotated:
                given["generation"] = kept["generation"] + 1
        if sum(bool(owner.get("controller")) for owner in given.get("ownerReferences", [])) > 1:
            raise _error(422, "Invalid", "Only one reference can have Controller set to true")
        if _without_version(new) == _without_version(old):
            return old
        self._store(resource, old, new, by)
        return new

    def delete(self, resource: str, namespace: str, name: str, *, uid: str = "", by: str = "world") -> Json:
        """Delete an object. A pod on a node only begins to end; `remove` ends it."""
        old = self._demand(resource, namespace, name)
        if uid and uid != old["metadata"]["uid"]:
            raise _error(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        running = resource == "pods" and (old.get("spec") or {}).get("nodeName")
        if running and old["status"].get("phase") not in ("Succeeded", "Failed"):
            if "deletionTimestamp" in old["metadata"]:
                return old
            new = copied(old)
            new["metadata"]["deletionTimestamp"] = timestamps.seconds(self.clock() + 30)
            self._store(resource, old, new, by)
            return new
        self.remove(resource, namespace, name, by=by)
        return old

    def remove(self, resource: str, namespace: str, name: str, *, by: str = "world") -> None:
        """An object is gone at once."""
        old = self.objects.pop((resource, namespace, name))
        self.version += 1
        gone = copied(old)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell(resource, "DELETED", gone)
        self._observe(Write(resource, old, None, by))

    def _store(self, resource: str, old: Json | None, new: Json, by: str) -> None:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        self.objects[resource, new["metadata"]["namespace"], new["metadata"]["name"]] = new
        self._tell(resource, "ADDED" if old is None else "MODIFIED", new)
        self._observe(Write(resource, old, new, by))

    def _observe(self, write: Write) -> None:
        if write.by == "controller":
            self.writes += 1
        for observer in self.observers:
            observer(write)

    def _tell(self, resource: str, type: str, item: Json) -> None:
        log = self._log(resource)
        log.events.append((self.version, msgspec.json.encode({"type": type, "object": item})))
        log.wake.set()

    def _log(self, resource: str) -> _Log:
        return self._logs.setdefault(resource, _Log())

    def _demand(self, resource: str, namespace: str, name: str) -> Json:
        try:
            return self.objects[resource, namespace, name]
        except KeyError:
            raise _error(404, "NotFound", f'{resource} "{name}" not found') from None


def copied(item: T) -> T:
    """Copy a value of JSON: ten times as fast as copy.deepcopy, which would be half the time of these tests."""
    copy: T = msgspec.json.decode(msgspec.json.encode(item))
    return copy


def _parse(path: str) -> tuple[str, str, str, str]:
    match = _PATH.fullmatch(path)
    if match is None:
        raise _error(404, "NotFound", f"the server could not find the requested resource: {path}")
    return match[3], match[2] or "", match[4] or "", match[5] or ""


def _error(code: int, reason: str, message: str, *, cause: str = "") -> Exception:
    details = wire.StatusDetails(causes=[wire.StatusCause(reason=cause)]) if cause else None
    return status_error(
        wire.Status(reason=reason, message=message, details=details), code=code, seen="the server answered"
    )


def _encoded(item: Json) -> bytearray:
    return bytearray(msgspec.json.encode(item))


def _uid(options: Json) -> str:
    return str((options.get("preconditions") or {}).get("uid", ""))


def _labels(item: Json) -> dict[str, str]:
    return item["metadata"].get("labels") or {}


def _selector(text: str) -> dict[str, str | None]:
    """Labels that must have a value; None: any."""
    parts = (part.partition("=") for part in text.split(",") if part)
    return {name: value if given else None for name, given, value in parts}


def _fits(wanted: Mapping[str, str | None], labels: Mapping[str, str]) -> bool:
    return all(name in labels and value in (None, labels[name]) for name, value in wanted.items())


def _without_version(item: Json) -> Json:
    metadata = {key: value for key, value in item["metadata"].items() if key != "resourceVersion" and value != {}}
    return {**item, "metadata": metadata}


def _merged(target: Any, patch: Any, *, strategic: bool) -> Any:
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif strategic and key == "ownerReferences":
            result[key] = _merged_owners(result.get(key, []), value)
        elif strategic and key == "conditions":
            by_type = {each["type"]: each for each in (*result.get(key, []), *value)}
            result[key] = list(by_type.values())
        else:
            result[key] = _merged(result.get(key), value, strategic=strategic)
    return result


def _merged_owners(owners: list[Json], patch: list[Json]) -> list[Json]:
    by_uid = {owner["uid"]: owner for owner in owners}
    for entry in patch:
        if entry.get("$patch") == "delete":
            by_uid.pop(entry["uid"], None)
        else:
            by_uid[entry["uid"]] = {**by_uid.get(entry["uid"], {}), **entry}
    return list(by_uid.values())


def _apply(target: Json, operation: Json) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    place: Any = target
    for part in parents:
        place = place[part]
    if operation["op"] == "remove":
        del place[last]
    elif operation["op"] == "test":
        if place.get(last) != operation["value"]:
            raise _error(422, "Invalid", "testing value failed")
    else:
        place[last] = copied(operation["value"])
