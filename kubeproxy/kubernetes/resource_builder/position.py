"""Where in a text a field stands; looked for only when there is an error to report. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from kubeproxy.kubernetes.resource_builder.errors import Position

_BLANK = re.compile(rb"(?:[ \t\r]*(?:#[^\n]*)?\n)*")


def first_line(text: bytes) -> int:
    """How many lines without content a document begins with."""
    match = _BLANK.match(text)
    return text.count(b"\n", 0, match.end()) if match else 0


def line_of(text: bytes, path: Sequence[str | int], position: Position) -> int:
    """The line of a field in its source; 0 where it cannot be found. `position` is that of the document."""
    if not text:
        return 0
    inside: list[str | int] = []
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", position.item):
        inside.append(name or int(index))
    loader = yaml.CSafeLoader(text.decode("utf-8", "replace"))
    try:
        row = _row(loader.get_single_node(), [*inside, *path])
    except (yaml.YAMLError, RecursionError):
        return 0
    finally:
        loader.dispose()
    return 0 if row is None else position.line - first_line(text) + row


def _row(node: Any, path: Sequence[str | int]) -> int | None:
    """The row of the last part of the path that is there; None: not even the first is."""
    row = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if getattr(key, "value", None) == part]
            if not found:
                return row
            key, node = found[-1]
            row = key.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            row = node.start_mark.line
        else:
            return row
    return row
