"""Writes the schema of the chart's value `config` from the schema of the configuration.

``python -m docs.generators.chart_schema deploy/chart/values.schema.json`` replaces that part of the file. So Helm
refuses a misspelled field, which the daemon, as kube-proxy, only warns of.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, inspect

from kubeproxy.config.fields import members, plain
from kubeproxy.config.schema import Configuration

VALUE: Final = "config"


def written(text: str) -> str:
    """Return the text of a chart's schema with the part for `config` recreated."""
    schema: dict[str, Any] = json.loads(text)
    schema["properties"][VALUE] = {**_group(Configuration), "type": "object"}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _group(group: type[Struct]) -> dict[str, Any]:
    properties = {name: _member(member.type) for name, member in members(group).items()}
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _member(kind: inspect.Type) -> dict[str, Any]:
    text = (kind.extra_json_schema or {}).get("description") if isinstance(kind, inspect.Metadata) else None
    found = _value(plain(kind))
    return {"description": text, **found} if text else found


def _value(kind: inspect.Type) -> dict[str, Any]:
    """Return the schema of a value. As in the file, null is the same as no value."""
    match kind:
        case inspect.StructType():
            return _group(kind.cls)
        case inspect.BoolType():
            return {"type": ["boolean", "null"]}
        case inspect.IntType() | inspect.FloatType():
            limits = {"minimum": kind.ge, "maximum": kind.le}
            number = "integer" if isinstance(kind, inspect.IntType) else "number"
            return {"type": [number, "null"], **{name: it for name, it in limits.items() if it is not None}}
        case inspect.LiteralType():
            return {"enum": [*kind.values, None]}
        case inspect.VarTupleType():
            return {"type": ["array", "null"], "items": _value(plain(kind.item_type))}
        case inspect.StrType():
            return {"type": ["string", "null"]}
        case inspect.DictType():
            return {"type": ["object", "null"]}
        case inspect.UnionType():
            parts = [_value(plain(it)) for it in kind.types if not isinstance(it, inspect.NoneType)]
            return parts[0] if len(parts) == 1 else {"anyOf": parts}
        case _:
            # Durations, addresses, ranges: texts, of which the daemon says more than a schema could. 0 is a duration.
            return {"type": ["string", "number", "null"]}


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
