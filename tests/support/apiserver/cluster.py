"""The objects of a cluster with their history, as in etcd and the watch cache. No network."""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from tests.support.apiserver.selector import Selector


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource of the API."""

    resource: str
    kind: str
    group_version: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core's."""
        return self.group_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version in the group."""
        return self.group_version.rpartition("/")[2]

    @property
    def path(self) -> str:
        """The path of its lists."""
        prefix = "/apis/" if "/" in self.group_version else "/api/"
        return f"{prefix}{self.group_version}/{self.resource}"


KINDS = {
    kind.resource: kind
    for kind in (
        Kind("services", "Service", "v1"),
        Kind("endpoints", "Endpoints", "v1"),
        Kind("endpointslices", "EndpointSlice", "discovery.k8s.io/v1"),
        Kind("nodes", "Node", "v1", namespaced=False),
        Kind("events", "Event", "v1"),
    )
}


class Stored(NamedTuple):
    """One state of one object."""

    object: Mapping[str, Any]
    version: int
    json: bytes
    """Without kind and apiVersion, as in lists."""


class Change(NamedTuple):
    """The change of one write."""

    version: int
    key: str
    before: Stored | None
    after: Stored | None


class Cluster:
    """All objects. Every write takes the next resourceVersion, as in etcd."""

    def __init__(self, *, version: int = 1, kinds: Iterable[Kind] = KINDS.values()) -> None:
        self.version = version
        self.kinds = list(kinds)
        """A resource may be there in several versions of its group."""
        self.established_s = 0.0
        """How long it takes until a defined kind is served."""
        self.compacted = 0
        """Lists at exactly this version or an older one are gone."""
        self.cached_from = version
        """A watch can begin at this version or a newer one."""
        self._now: defaultdict[str, dict[str, Stored]] = defaultdict(dict)
        self._history: defaultdict[str, list[Change]] = defaultdict(list)
        self._listeners: list[Callable[[], None]] = []

    def put(self, resource: str, item: Mapping[str, Any], *, version: int | None = None) -> int:
        """Create or change an object; returns its new resourceVersion. An identical one is not written. With `version`
        the object is stored unchanged at that version."""
        metadata = dict(item.get("metadata") or {})
        key = self._key(resource, metadata.get("namespace", ""), metadata["name"])
        before = self._now[resource].get(key)
        if version is None:
            kept = before.object["metadata"] if before else {}
            created = kept.get("creationTimestamp") or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            metadata["uid"] = kept.get("uid") or str(uuid4())
            metadata["creationTimestamp"] = created
            if before is not None:
                metadata["resourceVersion"] = str(before.version)
                if _bare({**item, "metadata": metadata}) == before.object:
                    return before.version
            version = self.version + 1
            metadata["resourceVersion"] = str(version)
        self.version = max(self.version, version)
        stored = _stored({**item, "metadata": metadata}, version)
        self._now[resource][key] = stored
        self._record(resource, Change(version, key, before, stored))
        return version

    def delete(self, resource: str, namespace: str, name: str) -> int:
        """Delete an object (KeyError: there is none); returns the resourceVersion of the deletion."""
        key = self._key(resource, namespace, name)
        before = self._now[resource].pop(key)
        self.version += 1
        self._record(resource, Change(self.version, key, before, None))
        return self.version

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The present version of an object."""
        stored = self.stored(resource, namespace, name)
        return stored.object if stored else None

    def stored(self, resource: str, namespace: str, name: str) -> Stored | None:
        """The present version of an object, with its JSON."""
        return self._now[resource].get(self._key(resource, namespace, name))

    def names(self, resource: str) -> list[str]:
        """The names of the objects of a resource, in the order of their creation."""
        return [stored.object["metadata"]["name"] for stored in self._now[resource].values()]

    def compact(self) -> None:
        """Drop the history, like etcd's compaction; the watch cache keeps its own."""
        self.compacted = self.version

    def restart(self) -> None:
        """Empty the server's watch cache."""
        self.cached_from = self.version

    def expire(self) -> None:
        """Expire all versions so far: a write, a compaction and a restart."""
        self.version += 1
        self.compact()
        self.restart()

    def restore(self, version: int) -> None:
        """Restore the state of a version, and drop all later ones: storage from a backup."""
        for resource, objects in self._now.items():
            objects_then = self.at(resource, version)
            objects.clear()
            objects.update(objects_then)
            history = self._history[resource]
            del history[bisect_right(history, version, key=lambda change: change.version) :]
        self.version = self.compacted = self.cached_from = version

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every write, until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def at(self, resource: str, version: int) -> dict[str, Stored]:
        """The objects as they were at a version, by key."""
        state = dict(self._now[resource])
        for change in reversed(self._history[resource]):
            if change.version <= version:
                break
            if change.before is None:
                state.pop(change.key, None)
            else:
                state[change.key] = change.before
        return state

    def events(self, resource: str, after: int, selected: Selector) -> Iterator[tuple[int, str, bytes]]:
        """The events of a watch after version `after`: version, type and the object's JSON."""
        history, kind = self._history[resource], self._kind(resource)
        for change in history[bisect_right(history, after, key=lambda change: change.version) :]:
            was = change.before is not None and selected(change.before.object)
            now = change.after is not None and selected(change.after.object)
            if now and change.after is not None:
                yield change.version, "MODIFIED" if was else "ADDED", event_json(kind, change.after)
            elif was and change.before is not None:
                last = dict(change.before.object)
                last["metadata"] = {**last["metadata"], "resourceVersion": str(change.version)}
                yield change.version, "DELETED", event_json(kind, _stored(last, change.version))

    def last_change(self, resource: str) -> int:
        """The version of the newest change of any object of a resource."""
        history = self._history[resource]
        return history[-1].version if history else 0

    def _kind(self, resource: str) -> Kind:
        return next(kind for kind in self.kinds if kind.resource == resource)

    def _key(self, resource: str, namespace: str, name: str) -> str:
        return f"{namespace}/{name}" if self._kind(resource).namespaced else name

    def _record(self, resource: str, change: Change) -> None:
        self._history[resource].append(change)
        for listener in list(self._listeners):
            listener()


class ContinueToken(NamedTuple):
    """The position of a list's next page. Version -1: the newest version."""

    version: int
    after: str

    def __str__(self) -> str:
        text = json.dumps(
            {"v": "meta.k8s.io/v1", "rv": self.version, "start": f"{self.after}\0"}, separators=(",", ":")
        )
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> ContinueToken:
        """Parse a token; ValueError if it is invalid."""
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return cls(int(found["rv"]), str(found["start"]).rstrip("\0"))


def event_json(kind: Kind, stored: Stored) -> bytes:
    """An object's JSON with kind and apiVersion, as in watches."""
    return b'{"kind":"%s","apiVersion":"%s",' % (kind.kind.encode(), kind.group_version.encode()) + stored.json[1:]


def _bare(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}


def _stored(item: Mapping[str, Any], version: int) -> Stored:
    bare = _bare(item)
    metadata = bare.pop("metadata")
    ordered = {"metadata": metadata, **bare}
    return Stored(ordered, version, msgspec.json.encode(ordered))
