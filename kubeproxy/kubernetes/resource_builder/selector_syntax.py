"""Parses label selectors of command lines, such as ``a=b,c!=d,e in (f,g),!h``."""

from __future__ import annotations

import re
from typing import Final

from kubeproxy.kubernetes.resource_builder.errors import quoted
from kubeproxy.kubernetes.selector import LabelSelector, Requirement
from kubeproxy.model.errors import ConfigError

_TOKEN: Final = re.compile(r"\s*(==|!=|=|!|\(|\)|,|<|>|[^\s=!(),<>]+)")
_KEY: Final = re.compile(r"(?:[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def parse_selector(text: str) -> LabelSelector:
    """Parse a selector. Raise `ConfigError` if it is invalid."""
    try:
        return LabelSelector(match_expressions=_requirements(_tokens(text)))
    except ValueError as error:
        raise ConfigError(f"the provided selector {quoted(text)} is not valid: {error}") from None


def _tokens(text: str) -> list[str]:
    found, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"unable to parse requirement at {text[position : position + 40]!r}")
        found.append(match[1])
        position = match.end()
    return found


def _requirements(tokens: list[str]) -> list[Requirement]:
    found: list[Requirement] = []
    rest = tokens[::-1]
    while rest:
        found.append(_requirement(rest))
        if rest and rest.pop() != ",":
            raise ValueError("found no ',' between two requirements")
        if not rest and tokens[-1] == ",":
            raise ValueError("found ',' at the end, expected: identifier")
    return found


def _requirement(rest: list[str]) -> Requirement:
    token = rest.pop()
    if token == "!":
        return Requirement(_key(rest), "DoesNotExist")
    rest.append(token)
    key = _key(rest)
    if not rest or rest[-1] == ",":
        return Requirement(key, "Exists")
    match operator := rest.pop():
        case "=" | "==" | "!=":
            value = rest.pop() if rest and rest[-1] != "," else ""
            return Requirement(key, "NotIn" if operator == "!=" else "In", [_value(value)])
        case "in" | "notin":
            return Requirement(key, "In" if operator == "in" else "NotIn", _values(rest))
        case ">" | "<":
            bound = rest.pop() if rest else ""
            if not re.fullmatch(r"[-+]?[0-9]{1,19}", bound):
                raise ValueError(f"for '>' and '<' the value must be an integer, found {bound!r}")
            return Requirement(key, "Gt" if operator == ">" else "Lt", [bound])
        case _:
            raise ValueError(f"found {operator!r}, expected: in, notin, =, ==, !=, >, <")


def _key(rest: list[str]) -> str:
    key = rest.pop() if rest else ""
    if not _KEY.fullmatch(key):
        raise ValueError(f"found {key!r}, expected: a label's name")
    return key


def _value(text: str) -> str:
    if not _VALUE.fullmatch(text):
        raise ValueError(f"found {text!r}, expected: a label's value")
    return text


def _values(rest: list[str]) -> list[str]:
    if not rest or rest.pop() != "(":
        raise ValueError("found no '(' after in or notin")
    found: list[str] = []
    expected = True
    while rest:
        token = rest.pop()
        if token == ")":
            return [*found, ""] if expected else found
        if token == ",":
            if expected:
                found.append("")
            expected = True
        else:
            found.append(_value(token))
            expected = False
    raise ValueError("found no ')'")
