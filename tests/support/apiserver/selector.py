"""Label and field selectors: the subset that a service proxy uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Object = Mapping[str, Any]
Selector = Callable[[Object], bool]

_TERM = re.compile(r"^(!?)([A-Za-z0-9_./-]+)(?:(=|==|!=)([A-Za-z0-9_.:-]*))?$")


class BadSelector(ValueError):
    """An invalid selector: the server answers 400 with this message."""


def everything(item: Object) -> bool:
    """A selector of all objects."""
    return True


def label_selector(text: str) -> Selector:
    """Parses ``!a,b,c=d,e!=f``."""
    terms = [_label_term(part) for part in text.split(",") if part]
    return lambda item: all(term((item.get("metadata") or {}).get("labels") or {}) for term in terms)


def _label_term(text: str) -> Callable[[Mapping[str, str]], bool]:
    match = _TERM.match(text)
    if match is None:
        raise BadSelector(f"unable to parse requirement: found {text!r}, expected: !, identifier, or 'end of string'")
    absent, key, operator, value = match.groups()
    if absent:
        return lambda labels: key not in labels
    if operator is None:
        return lambda labels: key in labels
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def field_selector(text: str, fields: frozenset[str]) -> Selector:
    """Parses ``metadata.name=web,spec.clusterIP!=None``; `fields` are the server's known fields."""
    terms = [_field_term(part, fields) for part in text.split(",") if part]
    return lambda item: all(term(item) for term in terms)


def _field_term(text: str, fields: frozenset[str]) -> Selector:
    match = _TERM.match(text)
    if match is None or match[3] is None:
        raise BadSelector(f"invalid selector: '{text}'; can't understand '{text}'")
    field, operator, wanted = match[2], match[3], match[4]
    if field not in fields:
        raise BadSelector(f"field label not supported: {field}")

    def holds(item: Object) -> bool:
        value: Any = item
        for key in field.split("."):
            value = (value or {}).get(key)
        return ((value or "") == wanted) is (operator != "!=")

    return holds
