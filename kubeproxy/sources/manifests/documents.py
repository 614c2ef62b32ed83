"""The text of a manifest to what it says: YAML or JSON, several documents, lists flattened. Pure.

Documents are parsed one by one, so that a broken one leaves the others alone, and a text that was read before is not
parsed again: in a file of thousands of Services, a change of one costs the parsing of one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import yaml

from kubeproxy.model import EndpointSlice, Service
from kubeproxy.sources import translate, wire
from kubeproxy.sources.translate import Fault, show

T = TypeVar("T")

MAX_EXPANSION = 10
"""How many times larger than written a YAML document may become by its aliases, beyond `FREE_EXPANSION`."""
FREE_EXPANSION = 100_000
"""YAML nodes that aliases may always expand to."""
MAX_DEPTH = 100
"""How deep a YAML document may be nested; the composer recurses in C and would overrun its stack."""
MAX_LIST_DEPTH = 5
"""How deep lists may lie in lists."""


class ObjectKind(StrEnum):
    """The kinds of object that are taken from manifests."""

    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    ENDPOINTS = "Endpoints"


_API_VERSIONS = {
    ObjectKind.SERVICE: "v1",
    ObjectKind.ENDPOINT_SLICE: "discovery.k8s.io/v1",
    ObjectKind.ENDPOINTS: "v1",
}
_LISTS: dict[str, ObjectKind | None] = {"List": None} | {f"{kind}List": kind for kind in ObjectKind}
_NO_FAULTS: tuple[Fault, ...] = ()


class ObjectName(NamedTuple):
    """An object's identity."""

    kind: ObjectKind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Where objects belong that do not say so, and where all have to belong."""

    default: str = "default"
    enforced: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What one object in a manifest says."""

    name: ObjectName | None = None
    """None: it could not even be told which object this is, or it is of another kind."""
    service: Service | None = None
    slices: tuple[EndpointSlice, ...] = ()
    faults: tuple[Fault, ...] = ()
    skipped: str = ""
    """The kind, where it is one that is not taken: ``apps/v1 Deployment``."""

    @property
    def broken(self) -> bool:
        """Which object this was meant to be cannot be told."""
        return self.name is None and not self.skipped

    @property
    def good(self) -> bool:
        """An API server would have taken all of it."""
        return not self.broken and all(fault.unsupported for fault in self.faults)

    @property
    def useful(self) -> bool:
        """There is something in it that can be served."""
        return self.service is not None or bool(self.slices)


class Place(NamedTuple):
    """Where in a manifest an object stands."""

    document: int
    """Counted from 1; empty documents do not count. 0: the manifest as a whole."""
    item: str = ""
    """Its path within a list, like ``items[3]``."""

    def path(self, field_path: str) -> str:
        """A field's path from the document's root."""
        return ".".join(part for part in (self.item, field_path) if part)


@dataclass(frozen=True, slots=True)
class Reading:
    """A manifest, read."""

    entries: tuple[tuple[Place, Entry], ...] = ()
    documents: Mapping[bytes, tuple[tuple[str, Entry], ...]] = field(default_factory=dict)
    """By the digest of their text, the documents without syntax errors; what the next reading starts from."""


def read(data: bytes, namespaces: Namespaces, previous: Reading | None = None) -> Reading:
    """What a manifest says. Never raises: whatever is wrong with the text is among the entries' faults.

    Entries equal to those of the `previous` reading are the same objects, so that a comparison is cheap.
    """
    known = previous.documents if previous is not None else {}
    entries: list[tuple[Place, Entry]] = []
    documents: dict[bytes, tuple[tuple[str, Entry], ...]] = {}
    standing = {entry.name: entry for _, entry in previous.entries} if previous is not None else {}
    index = 0
    for line, text in _split(data):
        digest = hashlib.blake2b(text, digest_size=16).digest()
        items = known.get(digest)
        if items is None:
            items = tuple(
                (path, _same(entry, standing.get(entry.name))) for path, entry in _document(text, line, namespaces)
            )
        if items:
            index += 1
        if not any(entry.broken for _, entry in items):  # a broken one's faults tell line numbers, which may shift
            documents[digest] = items
        entries.extend((Place(index, path), entry) for path, entry in items)
    return Reading(entries=tuple(entries), documents=documents)


def _same(entry: Entry, standing: Entry | None) -> Entry:
    return standing if standing is not None and standing == entry else entry


# From text to documents


_SEPARATOR = b"---"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The documents with the number of their first line, without those that are empty. A separator stands at the
    beginning of a line, where neither YAML nor JSON can have it inside a string."""
    data = data.removeprefix(_BYTE_ORDER_MARK)
    line, start = 1, 0
    while start < len(data):
        end = start
        while (end := data.find(b"\n" + _SEPARATOR, end)) >= 0:
            end += 1
            if _separated(data, end):
                break
        text = data[start : end if end >= 0 else len(data)]
        if not _empty(text):
            yield line, text
        line += text.count(b"\n")
        start += len(text)


def _separated(data: bytes, start: int = 0) -> bool:
    """Whether a document separator stands here, not just a text that begins like one."""
    end = start + len(_SEPARATOR)
    return data[start:end] == _SEPARATOR and (end == len(data) or data[end : end + 1].isspace())


def _empty(text: bytes) -> bool:
    """Nothing but white space, comments, directives and end marks."""
    position = len(_SEPARATOR) if _separated(text) else 0
    while position < len(text):
        end = text.find(b"\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end].strip()
        if line and line != b"..." and not line.startswith((b"#", b"%")):
            return False
        position = end + 1
    return True


class _SyntaxFault(Exception):
    """The text is no YAML and no JSON; says where and why."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(f"line {line}", message)


def _document(text: bytes, line: int, namespaces: Namespaces) -> Iterator[tuple[str, Entry]]:
    """The objects of one document with their paths."""
    try:
        for node in _parse(text, line):
            yield from _objects(node, namespaces)
    except _SyntaxFault as error:
        yield "", Entry(faults=(error.fault,))


class _Node(Protocol):
    """A parsed value, whose parts are looked at as far as somebody asks."""

    @property
    def null(self) -> bool:
        """It says nothing."""

    def to(self, kind: type[T]) -> T:
        """Decode; msgspec.MsgspecError where the types do not fit."""

    def fields(self) -> dict[str, _Node]:
        """The parts of a mapping."""

    def elements(self) -> list[_Node]:
        """The parts of a list."""


@dataclass(frozen=True, slots=True)
class _JsonNode:
    raw: msgspec.Raw | bytes

    @property
    def null(self) -> bool:
        return bytes(memoryview(self.raw)[:4]) == b"null"

    def to(self, kind: type[T]) -> T:
        return msgspec.json.decode(self.raw, type=kind)

    def fields(self) -> dict[str, _Node]:
        return {key: _JsonNode(raw) for key, raw in self.to(dict[str, msgspec.Raw]).items()}

    def elements(self) -> list[_Node]:
        return [_JsonNode(raw) for raw in self.to(list[msgspec.Raw])]


@dataclass(frozen=True, slots=True)
class _YamlNode:
    value: object

    @property
    def null(self) -> bool:
        return self.value is None

    def to(self, kind: type[T]) -> T:
        return msgspec.convert(self.value, kind)

    def fields(self) -> dict[str, _Node]:
        return {key: _YamlNode(value) for key, value in self.to(dict[str, Any]).items()}

    def elements(self) -> list[_Node]:
        return [_YamlNode(value) for value in self.to(list[Any])]


def _parse(text: bytes, line: int) -> list[_Node]:
    """One document's value; several where YAML's end mark divides it further."""
    body = text[len(_SEPARATOR) :] if _separated(text) else text
    if body.lstrip().startswith(b"{"):
        try:
            msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            return [_JsonNode(body)]
        except (msgspec.MsgspecError, RecursionError):
            pass  # YAML has mappings in braces too, and tells the line of what is wrong
    try:
        return [_YamlNode(value) for value in _load_yaml(text.decode())]
    except UnicodeDecodeError as error:
        at = line + text.count(b"\n", 0, error.start)
        raise _SyntaxFault(at, f"byte {text[error.start]:#04x} is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "not YAML"
        raise _SyntaxFault(line + (mark.line if mark else 0), what) from None
    except (yaml.YAMLError, ValueError) as error:
        raise _SyntaxFault(line, (str(error) or "not YAML").splitlines()[0]) from None
    except RecursionError:
        raise _SyntaxFault(line, "nested too deeply") from None


class _Loader(yaml.CSafeLoader):
    """Plain data with YAML 1.2's reading of plain scalars: null, true, false and decimal numbers. The rest is text, so
    that ``no``, ``22:22`` and dates stay what was written."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - the base class's own way


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), [*"tTfF"]
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]{0,18})$"), [*"-+0123456789"])
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])


def _load_yaml(text: str) -> list[object]:
    _refuse_depth(text)
    loader = _Loader(text)
    try:
        values = []
        while loader.check_node():
            node = loader.get_node()
            if node is not None and "&" in text:  # without anchors there are no aliases
                _refuse_bomb(node)
            values.append(loader.construct_document(node))
        return values
    finally:
        loader.dispose()


def _refuse_depth(text: str) -> None:
    """Raise where a document is nested deeper than `MAX_DEPTH`.

    A level costs a bracket, or in block style a column at least: most texts are seen to be shallow by counting those.
    """
    brackets = text.count("[") + text.count("{")
    if brackets + max(map(len, text.splitlines()), default=0) <= _SURELY_SHALLOW:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


_SURELY_SHALLOW = 500
"""Levels that the composer's stack has room for many times over; Python's own recursion limit guards what follows."""


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _refuse_bomb(root: yaml.Node) -> None:
    """Raise where aliases make a document endless, or out of proportion to its text. Counts without expanding."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            open_nodes.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in _children(node))
        elif id(node) in open_nodes:
            raise yaml.YAMLError("an alias contains itself")
        elif id(node) not in sizes:
            open_nodes.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in _children(node) if id(child) not in sizes)
    if sizes[id(root)] > FREE_EXPANSION + MAX_EXPANSION * len(sizes):
        raise yaml.YAMLError(f"aliases expand {len(sizes)} nodes to {sizes[id(root)]}")


# From documents to objects


class _Identity(wire.Wire, frozen=True):
    name: str | None = None
    namespace: str | None = None


class _Headed(wire.Wire, frozen=True):
    metadata: _Identity | None = None


class _Refused(Exception):
    """An object cannot be taken."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(path, message)


def _objects(
    node: _Node, namespaces: Namespaces, path: str = "", of_list: ObjectKind | None = None, depth: int = 0
) -> Iterator[tuple[str, Entry]]:
    """The objects in a document: itself, or a list's items. Items of a typed list need not repeat its kind."""
    if node.null:
        return
    try:
        fields = node.fields()
        api_version = _text(fields, "apiVersion") or (_API_VERSIONS[of_list] if of_list is not None else "")
        kind = _text(fields, "kind") or of_list or ""
        if kind not in _LISTS:
            yield path, _entry(node, api_version, kind, namespaces)
            return
        item_kind = _LISTS[kind]
        _demand_version(api_version, "v1" if item_kind is None else _API_VERSIONS[item_kind], kind)
        if depth == MAX_LIST_DEPTH:
            raise _Refused("kind", f"lists in lists in lists; allowed: {MAX_LIST_DEPTH} deep")
        elements = _elements(fields.get("items"))
    except (_Refused, msgspec.MsgspecError, RecursionError) as error:
        yield path, Entry(faults=(_fault(error, node),))
        return
    for index, element in enumerate(elements):
        here = f"items[{index}]"
        yield from _objects(element, namespaces, f"{path}.{here}" if path else here, item_kind, depth + 1)


def _text(fields: Mapping[str, _Node], key: str) -> str:
    if key not in fields or fields[key].null:
        return ""
    try:
        return fields[key].to(str)
    except msgspec.MsgspecError as error:
        raise _Refused(key, _fault(error, fields[key]).message) from None


def _elements(items: _Node | None) -> list[_Node]:
    if items is None or items.null:
        return []
    try:
        return items.elements()
    except msgspec.MsgspecError as error:
        raise _Refused("items", _fault(error, items).message) from None


def _demand_version(found: str, wanted: str, kind: str) -> None:
    if found != wanted:
        raise _Refused("apiVersion", f"{show(found or None)} for {kind}; allowed: {wanted}")


def _entry(node: _Node, api_version: str, kind: str, namespaces: Namespaces) -> Entry:
    """One object that is no list."""
    name: ObjectName | None = None
    try:
        if not kind or not api_version:
            raise _Refused("apiVersion" if kind else "kind", f"missing; allowed: {', '.join(ObjectKind)} or List")
        try:
            object_kind = ObjectKind(kind)
        except ValueError:
            return Entry(skipped=f"{api_version} {kind}")
        _demand_version(api_version, _API_VERSIONS[object_kind], kind)
        identity = node.to(_Headed).metadata or _Identity()
        if not identity.name:
            raise _Refused("metadata.name", "missing; required")
        namespace = identity.namespace or namespaces.enforced or namespaces.default
        if namespaces.enforced is not None and namespace != namespaces.enforced:
            raise _Refused("metadata.namespace", f"{show(namespace)}; allowed: only {namespaces.enforced!r} here")
        name = ObjectName(object_kind, namespace, identity.name)
        return _translated(node, name)
    except (_Refused, msgspec.MsgspecError, RecursionError) as error:
        return Entry(name=name, faults=(_fault(error, node),))


def _translated(node: _Node, name: ObjectName) -> Entry:
    if name.kind is ObjectKind.SERVICE:
        raw_service = node.to(wire.Service)
        placed = msgspec.structs.replace(raw_service, metadata=_placed(raw_service.metadata, name))
        service, faults = translate.service(placed)
        return Entry(name=name, service=service, faults=tuple(faults) or _NO_FAULTS)
    if name.kind is ObjectKind.ENDPOINT_SLICE:
        raw_slice = node.to(wire.EndpointSlice)
        endpoint_slice, faults = translate.endpoint_slice(
            msgspec.structs.replace(raw_slice, metadata=_placed(raw_slice.metadata, name))
        )
        slices = (endpoint_slice,) if endpoint_slice is not None else ()
        return Entry(name=name, slices=slices, faults=tuple(faults) or _NO_FAULTS)
    raw_endpoints = node.to(wire.Endpoints)
    found, faults = translate.endpoints(
        msgspec.structs.replace(raw_endpoints, metadata=_placed(raw_endpoints.metadata, name))
    )
    return Entry(name=name, slices=tuple(found), faults=tuple(faults) or _NO_FAULTS)


def _placed(meta: wire.ObjectMeta | None, name: ObjectName) -> wire.ObjectMeta:
    return msgspec.structs.replace(meta or wire.ObjectMeta(), namespace=name.namespace)


# Faults in types, told as those in values are


_TYPE_ERROR = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$?(?P<path>.*)`)?", re.DOTALL)
_MISMATCH = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_WORDS = {"int": "a number", "str": "a text", "array": "a list", "object": "a mapping", "bool": "true or false"}


def _fault(error: Exception, node: _Node) -> Fault:
    if isinstance(error, _Refused):
        return error.fault
    if isinstance(error, RecursionError):
        return Fault("kind", "nested too deeply")
    parts = _TYPE_ERROR.fullmatch(str(error))
    assert parts is not None  # it matches any text
    path = parts["path"] or ""
    mismatch = _MISMATCH.fullmatch(parts["what"])
    if mismatch is None:
        return Fault(path.lstrip(".") or "document", parts["what"])
    allowed = " or ".join(_WORDS.get(word, word) for word in mismatch["expected"].split(" | ") if word != "null")
    return Fault(path.lstrip(".") or "document", f"{_found(node, path, mismatch['got'])}; allowed: {allowed}")


def _found(node: _Node, path: str, kind: str) -> str:
    """What stands at a path; only its kind where it is no single value."""
    try:
        value: Any = node.to(object)
        for key, index in _STEP.findall(path):
            value = value[key] if key else value[int(index)]
    except (LookupError, TypeError, msgspec.MsgspecError, RecursionError):
        return _WORDS.get(kind, kind)
    return _WORDS["array" if isinstance(value, list) else "object"] if isinstance(value, list | dict) else show(value)
