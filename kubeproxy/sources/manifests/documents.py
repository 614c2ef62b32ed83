"""Reads a manifest's text into objects: YAML or JSON, several documents, flattened lists. Pure.

Each document is parsed separately, so a broken one does not affect the others. A text that was read before is not
parsed again: in a file of thousands of Services, a change of one costs the parsing of one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import MOST_FAULTS, Fault, show, type_error
from kubeproxy.kubernetes.manifests.json_text import as_utf8, json_values
from kubeproxy.kubernetes.manifests.lines import steps
from kubeproxy.kubernetes.manifests.parse import JsonValue, SyntaxFault, Value, is_json, parse
from kubeproxy.kubernetes.manifests.split import body, split, split_list
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


_LISTS: dict[str, ObjectKind | None] = {"List": None} | {f"{kind}List": kind for kind in ObjectKind}
"""The kinds of list that are flattened, and the kind of items that do not state one."""
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
    """What is demanded of objects."""

    default_namespace: str = "default"
    """Of objects that state none."""
    enforced_namespace: str | None = None
    """The only one allowed; None: all are."""
    strict: bool = False
    """Whether an object with any unknown field is refused, and not only one that seems to lose a restriction by it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a manifest, translated, with its faults."""

    name: ObjectName | None = None
    """None: the object cannot be identified, or is of another kind."""
    service: Service | None = None
    slices: tuple[EndpointSlice, ...] = ()
    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    """Probable mistakes, in spite of which it is served."""
    not_for_this_proxy: str = ""
    """Why a Service without faults is not served: headless, for example."""
    skipped: str = ""
    """The kind, if it is not one of `ObjectKind`: ``apps/v1 Deployment``."""

    @property
    def broken(self) -> bool:
        """Whether the object cannot be identified."""
        return self.name is None and not self.skipped

    @property
    def good(self) -> bool:
        """Whether an API server would accept all of it."""
        return not self.broken and all(fault.unsupported for fault in self.faults)

    @property
    def useful(self) -> bool:
        """Whether any part of it can be served."""
        return self.service is not None or bool(self.slices)


Items = tuple[tuple[str, Entry], ...]
"""The objects of a document, each with its path in the document."""


class Place(NamedTuple):
    """The position of an object in a manifest."""

    document: int
    """Counted from 1; empty documents do not count. 0: the manifest as a whole."""
    item: str = ""
    """Its path within a list, like ``items[3]``."""

    def path(self, field_path: str) -> str:
        """Return a field's path from the document's root."""
        return _join(self.item, field_path)


@dataclass(frozen=True, slots=True)
class Reading:
    """The objects of one manifest."""

    entries: tuple[tuple[Place, Entry], ...] = ()
    texts: Mapping[bytes, Items] = field(default_factory=dict)
    """Documents and items of lists by the digest of their text; the next reading reuses them."""


class Piece(NamedTuple):
    """An object with its place and its text."""

    place: Place
    entry: Entry
    text: bytes
    """The document, or the item of a list, that contains it."""
    line: int
    """The number of the text's first line in the manifest."""
    path: str
    """The text's own path in the document; empty: it is the document."""

    @property
    def inner_path(self) -> str:
        """The object's path in the text."""
        return self.place.item.removeprefix(self.path).lstrip(".")

    def value(self) -> object:
        """Return the object as plain data; None if the text cannot be parsed."""
        try:
            (found, *_) = [value.to(object) for value in parse(self.text, self.line)]
        except (SyntaxFault, ValueError, msgspec.MsgspecError, RecursionError):
            return None
        try:
            for step in steps(self.inner_path):
                found = found[step]  # type: ignore[index]  # as it was read
        except (LookupError, TypeError):
            return None
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    """A text that is parsed separately: a document, or an item of a list."""

    text: bytes
    line: int
    """The number of its first line."""
    digest: bytes
    """Digest of the text and of the kind of its list."""
    of_list: ObjectKind | None = None
    path: str = ""
    """Within its document, like ``items[3]``."""
    refused: Fault | None = None
    """The fault for which the whole document is refused before it is parsed."""


def read(data: bytes, terms: Terms, previous: Reading | None = None) -> Reading:
    """Return the objects of a manifest. Never raises: faults of the text are among the entries' faults.

    Only texts that the `previous` reading does not contain are parsed. Entries equal to those of the `previous` reading
    are the same Python objects, so that a comparison is cheap.
    """
    reader = _Reader(terms, previous or Reading())
    entries = tuple((piece.place, piece.entry) for piece in _pieces(data, reader))
    return Reading(entries=entries, texts=reader.texts)


def pieces(data: bytes, terms: Terms) -> Iterator[Piece]:
    """Yield the objects of a manifest, each with its text. Never raises, as `read`."""
    return _pieces(data, _Reader(terms, Reading()))


def _pieces(data: bytes, reader: _Reader) -> Iterator[Piece]:
    index = 0
    for parts in _outline(data):
        items = [(part, *item) for part in parts for item in reader.items(part)]
        index += bool(items)
        for part, path, entry in items:
            yield Piece(Place(index, path), entry, part.text, part.line, part.path)


def _outline(data: bytes) -> Iterator[tuple[_Part, ...]]:
    """Yield the parts of each document, cut as the commands cut them."""
    for line, text in split(as_utf8(data)):
        inside = body(text)
        for row, value in json_values(inside, line) or ((line, inside),):
            yield _parts(value, row) or (_Part(value, row, _digest(value)),)


def _parts(text: bytes, line: int) -> tuple[_Part, ...]:
    """Return the items of a list; empty if the text is not a list or must be parsed as a whole."""
    try:
        if is_json(text):
            fields = JsonValue(text).fields()
            kind = _list_kind(fields)
            items = [(0, bytes(item.raw)) for item in _elements(fields.get("items")) if isinstance(item, JsonValue)]
        else:
            parts = split_list(text)
            if parts is None or b"&" in text:  # an alias in one item may refer to an anchor in another
                return ()
            head, items = parts
            (value,) = parse(head, line)
            kind = _list_kind(value.fields())
    except _Refused as refused:
        return (_Part(text, line, b"", refused=refused.fault),)
    except (SyntaxFault, ValueError, msgspec.MsgspecError, RecursionError):
        return ()
    if kind not in _LISTS:
        return ()
    return tuple(
        _Part(item, line + lines, _digest(item, kind), _LISTS[kind], f"items[{index}]")
        for index, (lines, item) in enumerate(items)
    )


def _digest(text: bytes, kind: str = "") -> bytes:
    return hashlib.blake2b(text, digest_size=16, key=kind.encode()).digest()


class _Reader:
    """Reads parts; a part of the previous reading is not parsed again."""

    def __init__(self, terms: Terms, previous: Reading) -> None:
        self._terms = terms
        self._known = previous.texts
        self._standing = {entry.name: entry for _, entry in previous.entries}
        self.texts: dict[bytes, Items] = {}

    def items(self, part: _Part) -> Items:
        """Return the objects of one part, each with its path in the document."""
        if part.refused is not None:
            return (("", Entry(faults=(part.refused,))),)
        items = self._known.get(part.digest)
        if items is None:
            items = self._parsed(part)
        if not any(entry.broken for _, entry in items):  # faults of a broken entry have line numbers, which may shift
            self.texts[part.digest] = items
        return tuple((_join(part.path, path), entry) for path, entry in items) if part.path else items

    def _parsed(self, part: _Part) -> Items:
        try:
            values = parse(part.text, part.line)
        except SyntaxFault as error:
            return (("", Entry(faults=(error.fault,))),)
        found = (item for value in values for item in _objects(value, self._terms, of_list=part.of_list))
        return tuple((path, self._same(entry)) for path, entry in found)

    def _same(self, entry: Entry) -> Entry:
        standing = self._standing.get(entry.name)
        return standing if standing is not None and standing == entry else entry


# From documents to objects


class _Identity(api_types.Wire, frozen=True):
    name: str | None = None
    namespace: str | None = None


class _Headed(api_types.Wire, frozen=True):
    metadata: _Identity | None = None


class _Refused(Exception):
    """An object is refused."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(path, message)


def _objects(
    value: Value, terms: Terms, path: str = "", of_list: ObjectKind | None = None, depth: int = 0
) -> Iterator[tuple[str, Entry]]:
    """Yield the objects in a document: itself, or a list's items. Items of a typed list need not state their kind."""
    if value.null:
        return
    try:
        fields = value.fields()
        api_version, kind = _header(fields, of_list)
        if kind not in _LISTS:
            yield path, _entry(value, api_version, kind, terms)
            return
        _demand_version(api_version, kind)
        if depth == MAX_LIST_DEPTH:
            raise _Refused("kind", f"lists in lists in lists; allowed: {MAX_LIST_DEPTH} deep")
        elements = _elements(fields.get("items"))
    except (_Refused, msgspec.MsgspecError, RecursionError) as error:
        yield path, Entry(faults=(_fault(error, value),))
        return
    for index, element in enumerate(elements):
        yield from _objects(element, terms, _join(path, f"items[{index}]"), _LISTS[kind], depth + 1)


def _join(*paths: str) -> str:
    return ".".join(path for path in paths if path)


def _header(fields: Mapping[str, Value], of_list: ObjectKind | None) -> tuple[str, str]:
    """Return the apiVersion and kind that an object states, or that follow from its list."""
    api_version = _text(fields, "apiVersion") or (_API_VERSIONS[of_list] if of_list is not None else "")
    return api_version, _text(fields, "kind") or of_list or ""


def _list_kind(fields: Mapping[str, Value]) -> str:
    """Return the kind if it is one of `_LISTS`, else empty."""
    api_version, kind = _header(fields, None)
    if kind not in _LISTS:
        return ""
    _demand_version(api_version, kind)
    return kind


def _text(fields: Mapping[str, Value], key: str) -> str:
    if key not in fields or fields[key].null:
        return ""
    try:
        return fields[key].to(str)
    except msgspec.MsgspecError as error:
        raise _Refused(key, _fault(error, fields[key]).message) from None


def _elements(items: Value | None) -> list[Value]:
    if items is None or items.null:
        return []
    try:
        return items.elements()
    except msgspec.MsgspecError as error:
        raise _Refused("items", _fault(error, items).message) from None


def _demand_version(found: str, kind: str) -> None:
    wanted = _API_VERSIONS[kind]
    if found != wanted:
        raise _Refused("apiVersion", f"{show(found or None)} for {kind}; allowed: {wanted}")


def _entry(value: Value, api_version: str, kind: str, terms: Terms) -> Entry:
    """One object that is not a list."""
    name: ObjectName | None = None
    try:
        if not kind or not api_version:
            raise _Refused("apiVersion" if kind else "kind", f"missing; allowed: {', '.join(ObjectKind)} or List")
        try:
            object_kind = ObjectKind(kind)
        except ValueError:
            return Entry(skipped=f"{api_version} {kind}")
        _demand_version(api_version, kind)
        identity = value.to(_Headed).metadata or _Identity()
        if not identity.name:
            raise _Refused("metadata.name", "missing; required")
        enforced = terms.enforced_namespace
        namespace = identity.namespace or enforced or terms.default_namespace
        if enforced is not None and namespace != enforced:
            raise _Refused("metadata.namespace", f"{show(namespace)}; allowed: only {enforced!r} here")
        name = ObjectName(object_kind, namespace, identity.name)
        unknown = list(islice(unknown_fields(value.to(object), kind), MOST_FAULTS))
        refused = [it for it in unknown if it.restricts or terms.strict]
        ignored = [it for it in unknown if it not in refused]
        warnings = tuple(Fault(it.path, f"unknown field, ignored{it.hint}") for it in ignored)
        if refused:
            faults = tuple(Fault(it.path, f"unknown field, refused{it.hint}") for it in refused)
            return Entry(name=name, faults=faults, warnings=warnings)
        return replace(_translated(value, name), warnings=warnings)
    except (_Refused, msgspec.MsgspecError, RecursionError) as error:
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
    found, faults = translate.endpoints(
        msgspec.structs.replace(raw_endpoints, metadata=_placed(raw_endpoints.metadata, name))
    )
    return Entry(name=name, slices=tuple(found), faults=tuple(faults))


def _placed(meta: api_types.ObjectMeta | None, name: ObjectName) -> api_types.ObjectMeta:
    # The name, too: decoded a second time, it would be in memory twice.
    return msgspec.structs.replace(meta or api_types.ObjectMeta(), name=name.name, namespace=name.namespace)


# Faults in types, worded like those in values


_MISMATCH = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")
_WORDS = {"int": "a number", "str": "a text", "array": "a list", "object": "a mapping", "bool": "true or false"}


def _fault(error: Exception, value: Value) -> Fault:
    if isinstance(error, _Refused):
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
    """Return the value at a path; only its kind if it is a list or mapping."""
    try:
        found: Any = value.to(object)
        for step in steps(path):
            found = found[step]
    except (LookupError, TypeError, msgspec.MsgspecError, RecursionError):
        return _WORDS.get(kind, kind)
    return _WORDS["array" if isinstance(found, list) else "object"] if isinstance(found, list | dict) else show(found)
