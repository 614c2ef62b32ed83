"""Merges the objects of all manifests, and computes the changes to be delivered after each update.

For each manifest, the last good version of each object is kept. An object that several manifests define is served from
the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kubeproxy.model import EndpointSlice, Service, ServiceName, SliceName
from kubeproxy.model.manifests import ManifestProblem
from kubeproxy.sources.manifests.documents import Place, Reading
from kubeproxy.sources.manifests.objects import Entry, ObjectKind, ObjectName


@dataclass(slots=True)
class Difference:
    """The changes to be delivered to a sink."""

    services: list[Service] = field(default_factory=list)
    slices: list[EndpointSlice] = field(default_factory=list)
    removed_services: list[ServiceName] = field(default_factory=list)
    removed_slices: list[SliceName] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.services) + len(self.slices) + len(self.removed_services) + len(self.removed_slices)


@dataclass(frozen=True, slots=True)
class _Held:
    """The version of an object that a manifest defines."""

    place: Place
    entry: Entry


@dataclass(frozen=True, slots=True)
class _Manifest:
    held: Mapping[ObjectName, _Held]
    problems: tuple[ManifestProblem, ...]


class Inventory:
    """The objects of all manifests."""

    def __init__(self) -> None:
        self._manifests: dict[str, _Manifest] = {}
        self._definers: dict[ObjectName, list[str]] = {}
        """The manifests that define each object. The first one is served."""
        self._contested: dict[ObjectName, None] = {}

    def update(self, readings: Mapping[str, Reading | None]) -> Difference:
        """Apply new readings of manifests, or None for a manifest that was deleted, and return the changes. All
        readings are applied at once, so that an object that moves from one manifest to another is not removed in
        between."""
        touched: dict[ObjectName, Entry | None] = {}
        for origin, reading in readings.items():
            before = self._manifests.pop(origin, _Manifest(held={}, problems=()))
            after = _hold(origin, reading, before.held) if reading is not None else None
            held = after.held if after is not None else {}
            for name in [*before.held, *(name for name in held if name not in before.held)]:
                if name not in touched:
                    touched[name] = self._effective(name, origin, before)
            for name in before.held:
                if name not in held:
                    self._definers[name].remove(origin)
            for name in held:
                if name not in before.held:
                    self._definers.setdefault(name, []).append(origin)
            if after is not None:
                self._manifests[origin] = after
        difference = Difference()
        for name, old in touched.items():
            definers = self._definers[name]
            if len(definers) > 1:
                self._contested[name] = None
            else:
                self._contested.pop(name, None)
                if not definers:
                    del self._definers[name]
            new = self._manifests[definers[0]].held[name].entry if definers else None
            if old is not new:
                _compare(old or _NOTHING, new or _NOTHING, difference)
        return difference

    def _effective(self, name: ObjectName, origin: str, manifest: _Manifest) -> Entry | None:
        """Return the served version of an object, or None. `manifest` replaces the contents of the manifest
        `origin`."""
        definers = self._definers.get(name)
        if not definers:
            return None
        held = manifest.held if definers[0] == origin else self._manifests[definers[0]].held
        return held[name].entry

    def services(self) -> Iterator[Service]:
        """Yield all served Services."""
        return (entry.service for entry in self._entries() if entry.service is not None)

    def slices(self) -> Iterator[EndpointSlice]:
        """Yield all served EndpointSlices."""
        return (endpoint_slice for entry in self._entries() for endpoint_slice in entry.slices)

    def _entries(self) -> Iterator[Entry]:
        return (self._manifests[definers[0]].held[name].entry for name, definers in self._definers.items())

    def why_not_served(self, namespace: str, name: str) -> str:
        """Return why a Service of a manifest is not served, or an empty text if it is served or unknown. If `namespace`
        is empty, search all namespaces."""
        for defined, origins in self._definers.items():
            if defined.kind is not ObjectKind.SERVICE or defined.name != name:
                continue
            if namespace not in ("", defined.namespace):
                continue
            held = self._manifests[origins[0]].held[defined]
            entry = held.entry
            if entry.service is None:
                where = f"{origins[0]} document {held.place.document}"
                return entry.not_for_this_proxy or f"it is faulty, see {where}: {'; '.join(map(str, entry.faults))}"
        return ""

    def problems(self) -> Iterator[ManifestProblem]:
        """Yield the present problems: faults, probable mistakes, and skipped objects."""
        for manifest in self._manifests.values():
            yield from manifest.problems
        for name in self._contested:
            first, *others = self._definers[name]
            place = self._manifests[first].held[name].place
            for origin in others:
                mine = self._manifests[origin].held[name].place
                message = f"{name} is already defined in {first} document {place.document}, which is served"
                yield ManifestProblem(origin, mine.document, mine.path("metadata.name"), message, name=str(name))

    def origins(self) -> Iterator[str]:
        """Yield the names of all manifests."""
        return iter(self._manifests)

    def services_of(self, origin: str) -> int:
        """Return the number of Services in a manifest."""
        manifest = self._manifests.get(origin)
        return sum(held.entry.service is not None for held in manifest.held.values()) if manifest is not None else 0

    def objects_of(self, origin: str) -> int:
        """Return the number of objects in a manifest."""
        manifest = self._manifests.get(origin)
        return len(manifest.held) if manifest is not None else 0


_NOTHING = Entry()


def _hold(origin: str, reading: Reading, before: Mapping[ObjectName, _Held]) -> _Manifest:
    """Return a manifest's new contents. An object that is faulty now keeps its last good version.

    While the object of a document cannot be identified, objects that are missing are kept, because that document may
    define them.
    """
    held: dict[ObjectName, _Held] = {}
    problems: list[ManifestProblem] = []
    broken = False
    for place, entry in reading.entries:
        if entry.skipped:
            message = f"{entry.skipped} is not supported; supported are Service, EndpointSlice and Endpoints"
            problems.append(ManifestProblem(origin, place.document, place.path("kind"), message, skipped=True))
            continue
        served = ""
        if entry.name is None:
            broken = True
        elif entry.name in held:
            first = held[entry.name].place
            message = f"{entry.name} is already defined in document {first.document}, which is served"
            problems.append(
                ManifestProblem(origin, place.document, place.path("metadata.name"), message, name=str(entry.name))
            )
            continue
        else:
            version = _choose(entry, before.get(entry.name))
            held[entry.name] = _Held(place, version)
            if version is not entry:
                served = "; the last good version stays served"
        problems.extend(
            ManifestProblem(
                origin, place.document, place.path(fault.path), fault.message + served, name=str(entry.name or "")
            )
            for fault in entry.faults
        )
        problems.extend(
            ManifestProblem(
                origin,
                place.document,
                place.path(warning.path),
                warning.message,
                name=str(entry.name or ""),
                warning=True,
            )
            for warning in entry.warnings
        )
    if broken:
        for name, old in before.items():
            held.setdefault(name, old)
    return _Manifest(held=held, problems=tuple(problems))


def _choose(new: Entry, before: _Held | None) -> Entry:
    if before is None or new.good or not before.entry.useful:
        return new
    return new if new.useful and not before.entry.good else before.entry


def _compare(old: Entry, new: Entry, difference: Difference) -> None:
    """Add the changes between two versions of an object to `difference`."""
    if new.service is not None:
        if new.service != old.service:
            difference.services.append(new.service)
    elif old.service is not None:
        difference.removed_services.append(old.service.name)
    standing = {endpoint_slice.name: endpoint_slice for endpoint_slice in old.slices}
    for endpoint_slice in new.slices:
        if standing.pop(endpoint_slice.name, None) != endpoint_slice:
            difference.slices.append(endpoint_slice)
    difference.removed_slices.extend(standing)
