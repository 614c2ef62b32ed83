"""Parses the text of a configuration file, which is YAML or JSON, to plain data."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from typing import Any

import yaml

_NOT_IN_JSON = {"tag:yaml.org,2002:timestamp"}
"""The tags of scalars that PyYAML would convert to objects. Their text is kept, as in Kubernetes, because JSON has no
such values."""


MAX_VALUES = 100_000
"""The largest number of values in a document, with aliases expanded. A whole configuration has 150 values."""


MAX_DEPTH = 50
"""The maximum nesting depth. A whole configuration has four levels."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also records fields that occur twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NOT_IN_JSON]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[str] = []
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH} levels")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    self.duplicates.append(_given_twice(key.value, f"line {key.start_mark.line + 1}: "))
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: str) -> tuple[Any, list[str]]:
    """Parse a text with one document. Return the data, and a warning for each field that occurs twice, of which the
    last value counts.

    Raise ValueError, with a message for the operator, if the text is neither YAML nor JSON.
    """
    if text.lstrip().startswith("{"):
        try:
            return _parse_json(text)
        except ValueError:
            pass  # The text may be YAML in braces. If it is not, the YAML parser's message names the line.
    try:
        loader = _Loader(_without_empty_end(text))
        try:
            node = loader.get_single_node()
            if node is None:
                return None, []
            if _size(node, {}) > MAX_VALUES:
                raise yaml.YAMLError(f"aliases that expand to more than {MAX_VALUES} values")
            return loader.construct_document(node), loader.duplicates
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(_one_line(error)) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # PyYAML raises these for a tag that contradicts the value, such as !!bool 3.
        raise ValueError(f"a value with the wrong type ({type(error).__name__}: {_one_line(error)})") from error


def _without_empty_end(text: str) -> str:
    """Return the text without document separators at its end, which many tools write."""
    lines = text.split("\n")
    while lines and lines[-1].rstrip() in ("", "---"):
        lines.pop()
    return "\n".join(lines)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values in a YAML node, with aliases expanded.

    It is computed before objects are constructed, because constructing copies merged values.
    """
    if id(node) not in known:
        known[id(node)] = MAX_VALUES + 1  # A value that contains itself is too large.
        children = (
            [child for pair in node.value for child in pair]
            if isinstance(node, yaml.MappingNode)
            else node.value
            if isinstance(node, yaml.SequenceNode)
            else ()
        )
        known[id(node)] = 1 + sum(_size(child, known) for child in children)
    return known[id(node)]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _parse_json(text: str) -> tuple[Any, list[str]]:
    duplicates = []

    def mapping(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                duplicates.append(_given_twice(key))
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=mapping), duplicates
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _given_twice(key: str, where: str = "") -> str:
    return f"{where}field {key!r} is given twice; the last one counts"
