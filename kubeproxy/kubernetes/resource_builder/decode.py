"""Decodes a document to objects: parses it, flattens lists, and checks apiVersion, kind and metadata.

A list may contain a whole cluster. If it is JSON, or YAML in block style, its items are parsed one after the other, so
that only the text and one parsed item are in memory.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kubeproxy.kubernetes.manifests.go_yaml import GoComposer, normalized
from kubeproxy.kubernetes.manifests.lines import rows_without_content
from kubeproxy.kubernetes.manifests.parse import MAX_DEPTH, ManifestSyntaxError, compose_yaml, text_of
from kubeproxy.kubernetes.manifests.split import split_list
from kubeproxy.kubernetes.resource_builder.errors import (
    ObjectError,
    Position,
    UndecodableError,
    UnreadableError,
    quoted,
)
from kubeproxy.kubernetes.resource_builder.manifest_object import Data, ResourceObject
from kubeproxy.kubernetes.resource_builder.stream import Document

MAX_LIST_DEPTH: Final = 5
"""The maximum depth of lists in lists."""
LARGE: Final = 64 << 10
"""The size in bytes from which on a list is parsed item by item. A smaller list is parsed as a whole."""
_SHOWN: Final = 160
_LONGEST_NUMBER: Final = 400

Found = ResourceObject | ObjectError


class Duplicates(list[str]):
    """A text for each key that occurs twice in a mapping of a document."""


def objects(document: Document, source: str) -> Iterator[tuple[Found, Duplicates]]:
    """Yield the objects of a document, each with the repeated keys. Errors of single objects are yielded, not
    raised."""
    lists: deque[tuple[Data, Position, int, Duplicates]] = deque()
    for value, position, text, duplicates, of_list in _values(document, source):
        if isinstance(value, ObjectError):
            yield value, duplicates
            continue
        if value is None:
            continue
        yield from _object(value, position, text, duplicates, lists, of_list, 0)
    while lists:  # Read lists in lists breadth first, as kubectl does.
        outer, position, depth, duplicates = lists.popleft()
        if depth > MAX_LIST_DEPTH:
            yield UndecodableError(f"lists in lists; allowed: {MAX_LIST_DEPTH} deep", position), duplicates
            continue
        for index, item in enumerate(outer.get("items") or ()):
            place = f"{position.item}.items[{index}]" if position.item else f"items[{index}]"
            inside = Position(position.source, position.document, position.line, place)
            yield from _object(item, inside, document.text, duplicates, lists, outer, depth)


Item = tuple[object, Position, bytes, Duplicates, Data]


def _values(document: Document, source: str) -> Iterator[Item]:
    """Yield the values of a document. For a long list, yield its items, each with the fields of the list."""
    position = Position(source, document.number, document.line + rows_without_content(document.text))
    if len(document.text) >= LARGE:
        items = _json_items(document, position) if document.is_json else _yaml_items(document, position)
        if items is not None:
            yield from items
            return
    try:
        values, duplicates = parse(document.text, document.line, is_json=document.is_json)
    except ManifestSyntaxError as fault:
        yield _unreadable(fault, position), position, b"", Duplicates(), {}
        return
    for value in values:
        yield value, position, document.text, duplicates, {}
        duplicates = Duplicates()


def _unreadable(fault: ManifestSyntaxError, position: Position) -> UnreadableError:
    line = int(fault.fault.path.removeprefix("line ") or 0)
    return UnreadableError(fault.fault.message, Position(position.source, position.document, line, position.item))


def parse(text: bytes, line: int, *, is_json: bool) -> tuple[list[object], Duplicates]:
    """Parse a text as kubectl does. Return its values, and the repeated keys. Raise ManifestSyntaxError if the text is
    invalid."""
    duplicates = Duplicates()
    if is_json:
        return [_parse_json(text, line, duplicates)], duplicates
    composers: list[GoComposer] = []

    def composer(next_event: Any) -> GoComposer:
        composers.append(GoComposer(next_event))
        return composers[0]

    values = compose_yaml(text_of(text, line), line, composer)
    for found in composers:
        duplicates += [f"line {line + row}: key {quoted(_short(key))} is there twice" for row, key in found.duplicates]
    return values, duplicates


def _parse_json(text: bytes, line: int, duplicates: Duplicates) -> object:
    def mapping(pairs: list[tuple[str, object]]) -> Data:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    duplicates.append(f"key {quoted(_short(key))} is there twice")
                seen.add(key)
        return found

    try:
        value: object = json.loads(
            text_of(text, line),
            object_pairs_hook=mapping,
            parse_float=_number,
            parse_int=_number,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as error:
        raise ManifestSyntaxError(line + error.lineno - 1, error.msg) from None
    except (ValueError, RecursionError, OverflowError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ManifestSyntaxError(line, reason) from None
    if _too_deep(value, MAX_DEPTH):
        raise ManifestSyntaxError(line, f"nested deeper than {MAX_DEPTH} levels")
    return value


def _number(text: str) -> object:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} digits")
    value = normalized(int(text) if text.lstrip("-").isdecimal() else float(text))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the number {text} is too large")
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _too_deep(value: object, levels: int) -> bool:
    layer = [value]
    while layer:
        if levels == 0:
            return any(isinstance(each, dict | list) for each in layer)
        levels -= 1
        layer = [
            inner
            for each in layer
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
    return False


# Long lists, item by item


def _json_items(document: Document, position: Position) -> Iterator[Item] | None:
    try:
        fields = msgspec.json.decode(document.text, type=dict[str, msgspec.Raw])
        kind = msgspec.json.decode(fields.get("kind", b'""'))
        items = msgspec.json.decode(fields.pop("items", b""), type=list[msgspec.Raw])
        head = {key: msgspec.json.decode(raw) for key, raw in fields.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(kind, str) or not kind.endswith("List"):
        return None
    return _items(head, position, ((document.line, bytes(item)) for item in items), is_json=True)


def _yaml_items(document: Document, position: Position) -> Iterator[Item] | None:
    if b"&" in document.text:  # Items with anchors cannot be parsed separately.
        return None
    parts = split_list(document.text)
    if parts is None:
        return None
    head_text, items = parts
    try:
        (head,), _ = parse(head_text, document.line, is_json=False)
    except (ManifestSyntaxError, ValueError):
        return None
    if not isinstance(head, dict) or not str(head.get("kind") or "").endswith("List"):
        return None
    return _items(head, position, ((document.line + lines, item) for lines, item in items), is_json=False)


def _items(head: Data, position: Position, texts: Iterator[tuple[int, bytes]], *, is_json: bool) -> Iterator[Item]:
    for index, (line, text) in enumerate(texts):
        place = Position(position.source, position.document, 0 if is_json else line, f"items[{index}]")
        try:
            values, duplicates = parse(text, line, is_json=is_json and text[:1] == b"{")
        except ManifestSyntaxError as fault:
            yield _unreadable(fault, place), place, b"", Duplicates(), head
            continue
        for value in values:
            yield value, place, b"", duplicates, head


# Objects


def _object(
    value: object,
    position: Position,
    text: bytes,
    duplicates: Duplicates,
    lists: deque[tuple[Data, Position, int, Duplicates]],
    of_list: Data,
    depth: int,
) -> Iterator[tuple[Found, Duplicates]]:
    if not isinstance(value, dict):
        yield (
            UndecodableError(f"found {_named(value)}; allowed: an object with apiVersion and kind", position),
            duplicates,
        )
        return
    if of_list:
        _inherit(value, of_list)
    try:
        _check_header(value, position)
        # A custom resource whose kind ends in List has no items.
        if str(value["kind"]).endswith("List") and isinstance(value.get("items", ""), list | None):
            lists.append((value, position, depth + 1, duplicates))
            return
        _check_metadata(value, position, text)
    except UndecodableError as error:
        yield error, duplicates
        return
    yield ResourceObject(value, position, text), duplicates


def _inherit(item: Data, of_list: Data) -> None:
    """Set apiVersion and kind of an item that lacks them, from its typed list such as ``ServiceList``."""
    kind = str(of_list.get("kind") or "").removesuffix("List")
    if kind:
        item.setdefault("kind", kind)
        item.setdefault("apiVersion", of_list.get("apiVersion"))


def _check_header(value: Data, position: Position) -> None:
    for field, name in (("kind", "Kind"), ("apiVersion", "apiVersion")):
        said = value.get(field)
        if said is not None and not isinstance(said, str):
            raise UndecodableError(f"{field}: found {_named(said)}; allowed: a text", position)
        if not said:
            raise UndecodableError(f"Object {name!r} is missing in {_excerpt(value)!r}", position)


def _check_metadata(value: Data, position: Position, text: bytes) -> None:
    def demand(found: object, kind: type, allowed: str, *path: str) -> None:
        if found is not None and not isinstance(found, kind):
            hint = "; put it in quotes" if kind is str and not isinstance(found, dict | list) else ""
            raise UndecodableError(
                f"{_path(path)}: found {_named(found)}; allowed: {allowed}{hint}", position.of_field(text, path)
            )

    metadata = value.get("metadata")
    demand(metadata, dict, "a mapping", "metadata")
    if not isinstance(metadata, dict):
        value["metadata"] = {}
        return
    for field in ("name", "generateName", "namespace", "resourceVersion", "uid"):
        demand(metadata.get(field), str, "a text", "metadata", field)
    for field in ("labels", "annotations"):
        pairs = metadata.get(field) or {}
        demand(pairs, dict, "a mapping of texts", "metadata", field)
        for key, said in pairs.items():
            if said is None:
                pairs[key] = ""
            demand(pairs[key], str, "a text", "metadata", field, key)
    demand(metadata.get("finalizers"), list, "a list", "metadata", "finalizers")
    demand(metadata.get("ownerReferences"), list, "a list", "metadata", "ownerReferences")


def _path(parts: tuple[str, ...]) -> str:
    return ".".join(part if "." not in part else f"[{quoted(_short(part))}]" for part in parts).replace(".[", "[")


def _named(value: object) -> str:
    """Describe a value for a message."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the truth value {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {quoted(_short(value))}"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN // 2 else f"{text[: _SHOWN // 2]}..."


def _excerpt(value: Data) -> str:
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return "{...}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
