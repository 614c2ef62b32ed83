"""From the path of a field to its line in a text. Pure.

The line of a document or of an item of a list is known from reading it. That of a field is found by composing the text
once more, which only documents with a fault need.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def line_of(text: bytes, path: str, *, first: int) -> int:
    """The line of a field, or of the nearest part of its path that is there; `first`: the number of the text's first
    line, which is the answer if the text cannot be composed."""
    try:
        node = yaml.compose(text.decode(), Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        return first
    if node is None:
        return first
    line = int(node.start_mark.line)
    for index, name in _STEP.findall(path):
        if isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            node = node.value[int(index)]
            line = int(node.start_mark.line)
        elif isinstance(node, yaml.MappingNode) and name:
            found = [(key, value) for key, value in node.value if key.value == name]
            if not found:
                break
            key, node = found[-1]
            line = int(key.start_mark.line)
        else:
            break
    return first + line
