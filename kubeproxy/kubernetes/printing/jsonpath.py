"""Renders templates in kubectl's dialect of JSONPath, such as ``{.metadata.name}{"\n"}``, with filters, ranges and
slices.

No library implements this dialect. The JSONPath packages implement RFC 9535 or Goessner's JSONPath, which have neither
text around expressions nor ``{range}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kubeproxy.kubernetes.printing.go_encoding import compact_json
from kubeproxy.kubernetes.resource_builder.errors import quoted
from kubeproxy.model.errors import ConfigError

Values = list[Any]
Step = Callable[[Values], Values]
_FIELD: Final = re.compile(r"(?:\\.|[^\s.\[\](){}'\"|,=<>!&*?@$:])+")
_INTEGER: Final = re.compile(r"-?\d{1,9}")
_OPERATOR: Final = re.compile(r"==|!=|>=|<=|>|<")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_MAX_DEPTH: Final = 64
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


@dataclass(slots=True)
class _Part:
    """A part of a template: a text, an expression, or a range over an expression with its inner parts."""

    text: str = ""
    steps: list[Step] | None = None
    inside: list[_Part] = field(default_factory=list)
    ranges: bool = False


class JsonPath:
    """A parsed template."""

    def __init__(self, template: str) -> None:
        """Parse the template. Raise `ConfigError` if it is invalid."""
        text = template if "{" in template else "{" + _relaxed(template) + "}"
        try:
            self._parts = _Parser(text).template()
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"error parsing jsonpath {template}, {error}") from None

    def render(self, data: object) -> str:
        """Return the template's text for an object. A missing field becomes an empty text."""
        return "".join(_rendered(self._parts, [data]))

    def values(self, data: object) -> list[Any]:
        """Return the values of the template's expressions for an object."""
        return [value for part in self._parts if part.steps is not None for value in _applied(part.steps, [data])]


def _relaxed(template: str) -> str:
    """Return a template in braces. Like kubectl, accept ``metadata.name`` and ``.metadata.name`` for
    ``{.metadata.name}``."""
    return template if template.startswith((".", "$", "[", "@")) else f".{template}"


def _rendered(parts: list[_Part], values: Values) -> Iterator[str]:
    for part in parts:
        if part.steps is None:
            yield part.text
        elif part.ranges:
            for value in _applied(part.steps, values):
                yield from _rendered(part.inside, [value])
        else:
            yield " ".join(_shown(value) for value in _applied(part.steps, values))


def _applied(steps: list[Step], values: Values) -> Values:
    for step in steps:
        values = step(values)
    return values


def _shown(value: object) -> str:
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case dict() | list():
            return compact_json(value)
        case _:
            return json.dumps(value)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def template(self) -> list[_Part]:
        """Parse the whole text."""
        parts = self._parts(in_range=False)
        if self._at < len(self._text):
            raise ValueError("'end' without 'range'")
        return parts

    def _parts(self, *, in_range: bool) -> list[_Part]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        parts: list[_Part] = []
        while self._at < len(self._text):
            start = self._text.find("{", self._at)
            start = len(self._text) if start < 0 else start
            if start > self._at:
                parts.append(_Part(self._text[self._at : start]))
                self._at = start
            if self._at == len(self._text):
                break
            if match := re.compile(r"\{\s*end\s*\}").match(self._text, self._at):
                if not in_range:
                    raise ValueError("'end' without 'range'")
                self._at = match.end()
                self._depth -= 1
                return parts
            self._at += 1
            parts.append(self._expression())
        if in_range:
            raise ValueError("'range' without 'end'")
        self._depth -= 1
        return parts

    def _expression(self) -> _Part:
        self._space()
        if match := re.compile(r"range\s+").match(self._text, self._at):
            self._at = match.end()
            over = self._path("}")
            self._expect("}")
            return _Part(steps=over, ranges=True, inside=self._parts(in_range=True))
        text = ""
        steps: list[Step] | None = None
        while not self._peek("}"):
            if self._peek('"') or self._peek("'"):
                text += self._string()
            else:
                if steps is not None:
                    raise ValueError(f"unexpected {quoted(self._rest())}")
                steps = self._path("}")
            self._space()
        self._expect("}")
        return _Part(text, steps)

    def _path(self, *ends: str) -> list[Step]:
        steps: list[Step] = []
        self._space()
        if self._peek("$") or self._peek("@"):
            self._at += 1
        while True:
            self._space_before(*ends)
            if self._at >= len(self._text):
                raise ValueError("unclosed action")
            if any(self._peek(end) for end in ends):
                return steps
            if self._peek(".."):
                self._at += 2
                steps.append(_descend)
                if not self._peek("["):
                    steps.append(self._field())
            elif self._peek("."):
                self._at += 1
                if any(self._peek(end) for end in ends):
                    return steps
                steps.append(self._field())
            elif self._peek("["):
                self._at += 1
                steps.append(self._bracket())
            else:
                return self._no_step(steps)

    def _no_step(self, steps: list[Step]) -> list[Step]:
        if not steps:
            raise ValueError(f"unrecognized character in action: {quoted(self._rest()[:1])}")
        return steps

    def _field(self) -> Step:
        if self._peek("*"):
            self._at += 1
            return _all
        match = _FIELD.match(self._text, self._at)
        if match is None:
            raise ValueError(f"a field's name is missing before {quoted(self._rest())}")
        self._at = match.end()
        return _get(re.sub(r"\\(.)", r"\1", match[0]))

    def _bracket(self) -> Step:
        self._space()
        if self._peek("?("):
            self._at += 2
            return self._filter()
        steps: list[Step] = []
        while True:
            self._space()
            if self._peek("'") or self._peek('"'):
                steps.append(_get(self._string()))
            elif self._peek("*"):
                self._at += 1
                steps.append(_all)
            else:
                steps.append(self._index())
            self._space()
            if self._peek("]"):
                self._at += 1
                return steps[0] if len(steps) == 1 else _union(steps)
            self._expect(",")

    def _index(self) -> Step:
        numbers: list[int | None] = []
        while True:
            match = _INTEGER.match(self._text, self._at)
            numbers.append(int(match[0]) if match else None)
            self._at = match.end() if match else self._at
            if not self._peek(":") or len(numbers) == 3:
                break
            self._at += 1
        if len(numbers) == 1:
            if numbers[0] is None:
                raise ValueError(f"invalid array index before {quoted(self._rest())}")
            return _item(numbers[0])
        if len(numbers) == 3 and numbers[2] is not None and numbers[2] <= 0:
            raise ValueError("the step of a slice must be positive")
        return _slice(slice(*numbers))

    def _filter(self) -> Step:
        left = self._operand()
        self._space()
        operator, right = "exists", None
        if match := _OPERATOR.match(self._text, self._at):
            operator = match[0]
            self._at = match.end()
            right = self._operand()
        self._space()
        self._expect(")")
        self._space()
        self._expect("]")
        return _filtered(left, operator, right)

    def _operand(self) -> list[Step] | object:
        self._space()
        if self._peek("'") or self._peek('"'):
            return self._string()
        if match := re.compile(r"(?:true|false)\b").match(self._text, self._at):
            self._at = match.end()
            return match[0] == "true"
        if match := _NUMBER.match(self._text, self._at):
            self._at = match.end()
            return float(match[0]) if "." in match[0] else int(match[0][:300])
        return self._path(")", "=", "!", "<", ">")

    def _string(self) -> str:
        quote = self._text[self._at]
        found, position = [], self._at + 1
        while position < len(self._text) and self._text[position] != quote:
            if self._text[position] == "\\" and position + 1 < len(self._text):
                position += 1
                found.append(_ESCAPES.get(self._text[position], "\\" + self._text[position]))
            else:
                found.append(self._text[position])
            position += 1
        if position >= len(self._text):
            raise ValueError("unterminated quoted string")
        self._at = position + 1
        return "".join(found)

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _expect(self, text: str) -> None:
        if not self._peek(text):
            raise ValueError(f"expected {quoted(text)}, found {quoted(self._rest())}")
        self._at += len(text)

    def _space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _space_before(self, *ends: str) -> None:
        start = self._at
        self._space()
        if not any(self._peek(end) for end in ends):
            self._at = start if self._at < len(self._text) and start != self._at else self._at
            if start == self._at and self._at < len(self._text) and self._text[self._at].isspace():
                raise ValueError(f"unexpected {quoted(self._rest())}")

    def _rest(self) -> str:
        return self._text[self._at : self._at + 20]


def _get(name: str) -> Step:
    return lambda values: [value[name] for value in values if isinstance(value, dict) and name in value]


def _item(index: int) -> Step:
    return lambda values: [
        value[index] for value in values if isinstance(value, list) and -len(value) <= index < len(value)
    ]


def _slice(part: slice) -> Step:
    return lambda values: [item for value in values if isinstance(value, list) for item in value[part]]


def _union(steps: list[Step]) -> Step:
    return lambda values: [found for step in steps for found in step(values)]


def _children(value: object) -> Values:
    if isinstance(value, dict):
        return [value[key] for key in sorted(value)]
    return value if isinstance(value, list) else []


def _all(values: Values) -> Values:
    return [child for value in values for child in _children(value)]


def _descend(values: Values) -> Values:
    found: Values = []
    stack = list(reversed(values))
    while stack:
        value = stack.pop()
        found.append(value)
        stack.extend(reversed(_children(value)))
    return found


def _filtered(left: list[Step] | object, operator: str, right: list[Step] | object) -> Step:
    def side(operand: list[Step] | object, item: object) -> Values:
        return _applied(operand, [item]) if isinstance(operand, list) else [operand]

    def matches(item: object) -> bool:
        found = side(left, item)
        if operator == "exists":
            return bool(found)
        wanted = side(right, item)
        if len(found) != 1 or len(wanted) != 1:
            return False
        return _compared(found[0], operator, wanted[0])

    return lambda values: [item for value in values for item in _children(value) if matches(item)]


def _compared(left: object, operator: str, right: object) -> bool:
    if operator in ("==", "!="):
        same = left == right and isinstance(left, bool) == isinstance(right, bool)
        return same if operator == "==" else not same
    for kind in (int | float, str):
        if isinstance(left, kind) and isinstance(right, kind):
            less: bool = left < right  # type: ignore[operator]
            equal = left == right
            return {"<": less, "<=": less or equal, ">": not less and not equal, ">=": not less}[operator]
    return False
