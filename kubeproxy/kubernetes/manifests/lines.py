"""Finds the line of a field in the text of a manifest, for messages about faults.

Parsed values have no line numbers, so the text is parsed again if there is a fault to report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_WITHOUT_CONTENT: Final = re.compile(rb"(?:[ \t\r]*(?:#[^\n]*)?\n)*")


def steps(path: str) -> list[str | int]:
    """Split a path such as ``items[3].metadata`` into keys and indexes."""
    return [name or int(index) for name, index in _STEP.findall(path)]


def line_of(text: bytes, path: str, *, first: int) -> int:
    """Return the line of a field, or of the deepest part of its path that exists.

    `first` is the number of the text's first line, which is returned if the text cannot be parsed.
    """
    return first + (rows_of(text, steps(path)) or [0])[-1]


def rows_of(text: bytes, path: Sequence[str | int]) -> list[int]:
    """Return the row at which the document's content begins, and then the row of each part of the path that exists.

    Rows are lines of the text, counted from 0. Return an empty list if the text cannot be parsed.
    """
    try:
        node: Any = yaml.compose(text.decode("utf-8", "replace"), Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    if node is None:
        return []
    rows = [int(node.start_mark.line)]
    for part in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            rows.append(int(node.start_mark.line))
        elif isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if key.value == part]
            if not pairs:
                break
            key, node = pairs[-1]  # If a key occurs twice, the last value counts.
            rows.append(int(key.start_mark.line))
        else:
            break
    return rows


def rows_without_content(text: bytes) -> int:
    """Count the empty lines and comments at the beginning of a document."""
    match = _WITHOUT_CONTENT.match(text)
    return text.count(b"\n", 0, match.end()) if match else 0
