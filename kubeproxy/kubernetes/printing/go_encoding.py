"""Writes JSON and YAML as Go's libraries do, with sorted keys and the same quotes and line breaks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cmp_to_key
from typing import Any, Final

import yaml

from kubeproxy.kubernetes.manifests.go_yaml import resolve

_ESCAPED: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPES: Final = re.compile("[<>&\u2028\u2029]")
_DATE: Final = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(?:\.[0-9]*)?"
    r"(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?)?"
)
_BASE_60: Final = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")


def compact_json(value: object) -> str:
    """Return JSON on one line, without spaces."""
    return _escaped(json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")))


def indented_json(value: object) -> str:
    """Return JSON with an indent of four spaces, as ``kubectl -o json`` prints it."""
    return _escaped(json.dumps(value, sort_keys=True, ensure_ascii=False, indent=4))


def _escaped(text: str) -> str:
    return _ESCAPES.sub(lambda match: _ESCAPED[match[0]], text)


def yaml_text(value: object) -> str:
    """Return a YAML document, without separators."""
    text = yaml.emit(_document(value), Dumper=yaml.CDumper, allow_unicode=True, width=80)
    assert isinstance(text, str)
    # libyaml adds this mark if the last string ends with several line breaks. Go's library does not.
    return text.removesuffix("...\n") if text.endswith("\n...\n") else text


def _document(value: object) -> Iterator[yaml.Event]:
    yield yaml.StreamStartEvent()
    yield yaml.DocumentStartEvent(explicit=False)
    yield from _events(value)
    yield yaml.DocumentEndEvent(explicit=False)
    yield yaml.StreamEndEvent()


def _events(value: Any) -> Iterator[yaml.Event]:
    match value:
        case dict():
            yield yaml.MappingStartEvent(None, None, implicit=True, flow_style=not value)
            for key in sorted(map(str, value), key=_natural):
                # Quote the key <<, because it would be read as a merge.
                yield yaml.ScalarEvent(None, None, (True, True), key, style='"' if key == "<<" else _style(key))
                yield from _events(value[key])
            yield yaml.MappingEndEvent()
        case list():
            yield yaml.SequenceStartEvent(None, None, implicit=True, flow_style=not value)
            for item in value:
                yield from _events(item)
            yield yaml.SequenceEndEvent()
        case str():
            yield yaml.ScalarEvent(None, None, (True, True), value, style=_style(value))
        case None:
            yield yaml.ScalarEvent(None, None, (True, False), "null")
        case bool():
            yield yaml.ScalarEvent(None, None, (True, False), "true" if value else "false")
        case _:
            yield yaml.ScalarEvent(None, None, (True, False), json.dumps(value))


def _style(text: str) -> str | None:
    if "\n" in text:
        return "|"
    ambiguous = not text or not isinstance(resolve(text), str) or _DATE.fullmatch(text) or _BASE_60.fullmatch(text)
    return '"' if ambiguous else None


def _compare(left: str, right: str) -> int:
    """Compare two keys as yaml.v2 sorts them: letters come after all other characters, and numbers are compared by
    value (``a2`` before ``a10``)."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a == b:
            continue
        if a.isalpha() and b.isalpha():
            return -1 if a < b else 1
        if a.isalpha() or b.isalpha():
            return -1 if b.isalpha() else 1
        return _compare_numbers(left, right, index)
    return len(left) - len(right)


def _compare_numbers(left: str, right: str, index: int) -> int:
    start = 0
    if "0" in (left[index], right[index]):
        before = left[:index]
        start = 1 if before[len(before.rstrip("0123456789")) :].strip("0") else 0
    a, b = _DIGITS.match(left, index), _DIGITS.match(right, index)
    digits, others = a[0] if a else "", b[0] if b else ""
    number, other = int(f"{start}{digits[:400]}"), int(f"{start}{others[:400]}")
    if number != other:
        return -1 if number < other else 1
    if len(digits) != len(others):
        return len(digits) - len(others)
    return -1 if left[index] < right[index] else 1


_DIGITS: Final = re.compile(r"[0-9]*")
_natural: Final = cmp_to_key(_compare)
