"""Makes objects from parsed documents: flattens lists, and checks and translates each object."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import MOST_FAULTS, Fault, show, type_error
from kubeproxy.kubernetes.manifests.lines import steps
from kubeproxy.kubernetes.manifests.parse import Value
from kubeproxy.model import EndpointSlice, Service
from kubeproxy.sources import translate
from kubeproxy.sources.manifests.known_fields import unknown_fields

MAX_LIST_DEPTH = 5
"""The maximum depth of lists in lists."""


class ObjectKind(StrEnum):
    """The kinds of object that manifests may define."""

    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    ENDPOINTS = "Endpoints"


LISTS: dict[str, ObjectKind | None] = {"List": None} | {f"{kind}List": kind for kind in ObjectKind}
"""The kinds of lists that are flattened, each with the kind of its items, which need not state it."""
_API_VERSIONS = {"List": "v1"} | {
    kind: "discovery.k8s.io/v1" if kind.startswith(ObjectKind.ENDPOINT_SLICE) else "v1"
    for kind in [*ObjectKind, *(f"{kind}List" for kind in ObjectKind)]
}


class ObjectName(NamedTuple):
    """The identity of an object."""

    kind: ObjectKind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Terms:
    """The rules for objects of a manifest."""

    default_namespace: str = "default"
    """The namespace for objects without a namespace."""
    enforced_namespace: str | None = None
    """The only allowed namespace, or None if all are allowed."""
    strict: bool = False
    """Whether an object with any unknown field is refused. Otherwise only unknown fields that look like restrictions
    are refused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a manifest, translated, with its faults."""

    name: ObjectName | None = None
    """The object's identity, or None if it cannot be identified, or is not one of `ObjectKind`."""
    service: Service | None = None
    slices: tuple[EndpointSlice, ...] = ()
    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    """Probable mistakes. The object is served nevertheless."""
    not_for_this_proxy: str = ""
    """Why a Service without faults is not served, such as because it is headless, or empty."""
    skipped: str = ""
    """The version and kind of an object that is not one of `ObjectKind`, such as ``apps/v1 Deployment``, or empty."""

    @property
    def broken(self) -> bool:
        """Return whether the object is so invalid that it cannot be identified."""
        return self.name is None and not self.skipped

    @property
    def good(self) -> bool:
        """Return whether an API server would accept the whole object."""
        return not self.broken and all(fault.unsupported for fault in self.faults)

    @property
    def useful(self) -> bool:
        """Return whether any part of the object can be served."""
        return self.service is not None or bool(self.slices)


class _Identity(api_types.Wire, frozen=True):
    name: str | None = None
    namespace: str | None = None


class _Headed(api_types.Wire, frozen=True):
    metadata: _Identity | None = None


class RefusedObjectError(Exception):
    """Raised if a whole object or list is refused. It has the path of the field, and the reason."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(path, message)


def objects(
    value: Value, terms: Terms, path: str = "", of_list: ObjectKind | None = None, depth: int = 0
) -> Iterator[tuple[str, Entry]]:
    """Yield the object of a document, or the items if it is a list, each with its path. Items of a typed list need not
    state their kind."""
    if value.null:
        return
    try:
        fields = value.fields()
        api_version, kind = _header(fields, of_list)
        if kind not in LISTS:
            yield path, _entry(value, api_version, kind, terms)
            return
        _demand_version(api_version, kind)
        if depth == MAX_LIST_DEPTH:
            raise RefusedObjectError("kind", f"lists in lists in lists; allowed: {MAX_LIST_DEPTH} deep")
        elements = list_items(fields.get("items"))
    except (RefusedObjectError, msgspec.MsgspecError, RecursionError) as error:
        yield path, Entry(faults=(_fault(error, value),))
        return
    for index, element in enumerate(elements):
        yield from objects(element, terms, join_paths(path, f"items[{index}]"), LISTS[kind], depth + 1)


def join_paths(*paths: str) -> str:
    return ".".join(path for path in paths if path)


def _header(fields: Mapping[str, Value], of_list: ObjectKind | None) -> tuple[str, str]:
    """Return an object's apiVersion and kind. If they are absent, they follow from the typed list."""
    api_version = _text(fields, "apiVersion") or (_API_VERSIONS[of_list] if of_list is not None else "")
    return api_version, _text(fields, "kind") or of_list or ""


def list_kind(fields: Mapping[str, Value]) -> str:
    """Return the kind if it is in `LISTS`, and otherwise an empty text."""
    api_version, kind = _header(fields, None)
    if kind not in LISTS:
        return ""
    _demand_version(api_version, kind)
    return kind


def _text(fields: Mapping[str, Value], key: str) -> str:
    if key not in fields or fields[key].null:
        return ""
    try:
        return fields[key].to(str)
    except msgspec.MsgspecError as error:
        raise RefusedObjectError(key, _fault(error, fields[key]).message) from None


def list_items(items: Value | None) -> list[Value]:
    if items is None or items.null:
        return []
    try:
        return items.elements()
    except msgspec.MsgspecError as error:
        raise RefusedObjectError("items", _fault(error, items).message) from None


def _demand_version(api_version: str, kind: str) -> None:
    wanted = _API_VERSIONS[kind]
    if api_version != wanted:
        raise RefusedObjectError("apiVersion", f"{show(api_version or None)} for {kind}; allowed: {wanted}")


def _entry(value: Value, api_version: str, kind: str, terms: Terms) -> Entry:
    """Check and translate an object that is not a list."""
    name: ObjectName | None = None
    try:
        if not kind or not api_version:
            raise RefusedObjectError(
                "apiVersion" if kind else "kind", f"missing; allowed: {', '.join(ObjectKind)} or List"
            )
        try:
            object_kind = ObjectKind(kind)
        except ValueError:
            return Entry(skipped=f"{api_version} {kind}")
        _demand_version(api_version, kind)
        identity = value.to(_Headed).metadata or _Identity()
        if not identity.name:
            raise RefusedObjectError("metadata.name", "missing; required")
        enforced = terms.enforced_namespace
        namespace = identity.namespace or enforced or terms.default_namespace
        if enforced is not None and namespace != enforced:
            raise RefusedObjectError("metadata.namespace", f"{show(namespace)}; allowed: only {enforced!r} here")
        name = ObjectName(object_kind, namespace, identity.name)
        unknown = list(islice(unknown_fields(value.to(object), kind), MOST_FAULTS))
        refused = [field for field in unknown if field.restricts or terms.strict]
        ignored = [field for field in unknown if field not in refused]
        warnings = tuple(Fault(field.path, f"unknown field, ignored{field.hint}") for field in ignored)
        if refused:
            faults = tuple(Fault(field.path, f"unknown field, refused{field.hint}") for field in refused)
            return Entry(name=name, faults=faults, warnings=warnings)
        return replace(_translated(value, name), warnings=warnings)
    except (RefusedObjectError, msgspec.MsgspecError, RecursionError) as error:
        return Entry(name=name, faults=(_fault(error, value),))


def _translated(value: Value, name: ObjectName) -> Entry:
    if name.kind is ObjectKind.SERVICE:
        raw_service = value.to(api_types.Service)
        placed = msgspec.structs.replace(raw_service, metadata=_placed(raw_service.metadata, name))
        service, faults = translate.service(placed)
        reason = "" if service is not None else translate.not_for_this_proxy(placed)
        return Entry(name=name, service=service, faults=tuple(faults), not_for_this_proxy=reason)
    if name.kind is ObjectKind.ENDPOINT_SLICE:
        raw_slice = value.to(api_types.EndpointSlice)
        endpoint_slice, faults = translate.endpoint_slice(
            msgspec.structs.replace(raw_slice, metadata=_placed(raw_slice.metadata, name))
        )
        slices = (endpoint_slice,) if endpoint_slice is not None else ()
        return Entry(name=name, slices=slices, faults=tuple(faults))
    raw_endpoints = value.to(api_types.Endpoints)
    slices_found, faults = translate.endpoints(
        msgspec.structs.replace(raw_endpoints, metadata=_placed(raw_endpoints.metadata, name))
    )
    return Entry(name=name, slices=tuple(slices_found), faults=tuple(faults))


def _placed(meta: api_types.ObjectMeta | None, name: ObjectName) -> api_types.ObjectMeta:
    # Replace the name, too, so that only one of two equal strings stays in memory.
    return msgspec.structs.replace(meta or api_types.ObjectMeta(), name=name.name, namespace=name.namespace)


# Type errors get the same form as other faults.


_MISMATCH = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")
_WORDS = {"int": "a number", "str": "a text", "array": "a list", "object": "a mapping", "bool": "true or false"}


def _fault(error: Exception, value: Value) -> Fault:
    if isinstance(error, RefusedObjectError):
        return error.fault
    if isinstance(error, RecursionError):
        return Fault("kind", "nested too deeply")
    assert isinstance(error, msgspec.MsgspecError)
    what, path = type_error(error)
    mismatch = _MISMATCH.fullmatch(what)
    if mismatch is None:
        return Fault(path or "document", what)
    allowed = " or ".join(_WORDS.get(word, word) for word in mismatch["expected"].split(" | ") if word != "null")
    return Fault(path or "document", f"{_found(value, path, mismatch['got'])}; allowed: {allowed}")


def _found(value: Value, path: str, kind: str) -> str:
    """Return a text for the value at a path. For a list or mapping it is only the kind."""
    try:
        plain: Any = value.to(object)
        for step in steps(path):
            plain = plain[step]
    except (LookupError, TypeError, msgspec.MsgspecError, RecursionError):
        return _WORDS.get(kind, kind)
    return _WORDS["array" if isinstance(plain, list) else "object"] if isinstance(plain, list | dict) else show(plain)
