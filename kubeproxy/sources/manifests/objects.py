"""Turns parsed documents into objects: flattens lists, then checks and translates each object."""

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
"""The deepest nesting of lists in lists."""


class ObjectKind(StrEnum):
    """The kinds of object that manifests may define."""

    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    ENDPOINTS = "Endpoints"


LISTS: dict[str, ObjectKind | None] = {"List": None} | {f"{kind}List": kind for kind in ObjectKind}
"""The kinds of list that are flattened, each with the kind of items that do not state their own."""
_API_VERSIONS = {"List": "v1"} | {
    kind: "discovery.k8s.io/v1" if kind.startswith(ObjectKind.ENDPOINT_SLICE) else "v1"
    for kind in [*ObjectKind, *(f"{kind}List" for kind in ObjectKind)]
}


class ObjectName(NamedTuple):
    """An object's identity."""

    kind: ObjectKind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Terms:
    """The demands that objects have to meet."""

    default_namespace: str = "default"
    """The namespace of objects that do not name one."""
    enforced_namespace: str | None = None
    """The only namespace that is allowed, or None if all are."""
    strict: bool = False
    """Whether an object with any unknown field is refused, and not only one that seems to lose a restriction with
    it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a manifest, translated, with its faults."""

    name: ObjectName | None = None
    """The object's name, or None if the object cannot be identified, or is of another kind."""
    service: Service | None = None
    slices: tuple[EndpointSlice, ...] = ()
    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    """Probable mistakes that do not keep the object from being served."""
    not_for_this_proxy: str = ""
    """Why a Service without faults is not served, for example because it is headless."""
    skipped: str = ""
    """The version and kind of an object that is not one of `ObjectKind`, like ``apps/v1 Deployment``."""

    @property
    def broken(self) -> bool:
        """Return whether the object cannot be identified."""
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
    """Raised, with the reason, if an object or a list as a whole is refused."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(path, message)


def objects(
    value: Value, terms: Terms, path: str = "", of_list: ObjectKind | None = None, depth: int = 0
) -> Iterator[tuple[str, Entry]]:
    """Yield the object in a document, or the items if it is a list. Items of a typed list need not name their kind."""
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
    """Return the apiVersion and kind that an object names, or that follow from its list."""
    api_version = _text(fields, "apiVersion") or (_API_VERSIONS[of_list] if of_list is not None else "")
    return api_version, _text(fields, "kind") or of_list or ""


def list_kind(fields: Mapping[str, Value]) -> str:
    """Return the kind if it is one of `LISTS`, else an empty text."""
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
    """Check and translate one object that is not a list."""
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
    # The name is replaced, too: the wire object has decoded a copy of its own, and one of the two need not stay in
    # memory.
    return msgspec.structs.replace(meta or api_types.ObjectMeta(), name=name.name, namespace=name.namespace)


# Faults of types are worded like faults of values.


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
    """Return the text of the value at a path, or only its kind if it is a list or mapping."""
    try:
        plain: Any = value.to(object)
        for step in steps(path):
            plain = plain[step]
    except (LookupError, TypeError, msgspec.MsgspecError, RecursionError):
        return _WORDS.get(kind, kind)
    return _WORDS["array" if isinstance(plain, list) else "object"] if isinstance(plain, list | dict) else show(plain)
