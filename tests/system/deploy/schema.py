"""Kubernetes objects held against the API's own models, strictly: no unknown field, none of another type."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes_asyncio.client import models

_PLAIN: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "object": object,
    "datetime": str,
}


def faults(value: Any, kind: str, path: str = "") -> Iterator[str]:
    """What is wrong with a value of that kind (``V1DaemonSet``, ``list[V1Container]``, ``dict(str, str)``, ``str``)."""
    path = path or kind
    if kind == "IntOrString":
        kind = "int" if isinstance(value, int) else "str"
    if match := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            yield f"{path}: a list is wanted, not {value!r}"
            return
        for index, item in enumerate(value):
            yield from faults(item, match[1], f"{path}[{index}]")
    elif match := re.fullmatch(r"dict[(\[]str, (.*)[)\]]", kind):
        if not isinstance(value, dict):
            yield f"{path}: a map is wanted, not {value!r}"
            return
        for name, item in value.items():
            yield from faults(item, match[1], f"{path}.{name}")
    elif kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or (kind == "int" and isinstance(value, bool)):
            yield f"{path}: {kind} is wanted, not {value!r}"
    else:
        yield from _of_model(value, getattr(models, kind), path)


def _of_model(value: Any, model: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: a map is wanted, not {value!r}"
        return
    names = {json: name for name, json in model.attribute_map.items()}
    for name, item in value.items():
        if name not in names:
            yield f"{path}: there is no field {name}"
        else:
            yield from faults(item, _kind_of(model, names[name]), f"{path}.{name}")
    try:
        # The models themselves know which fields must be there.
        model(**{names[name]: item for name, item in value.items() if name in names})
    except ValueError as error:
        yield f"{path}: {error}"


def _kind_of(model: Any, name: str) -> str:
    kind = str(model.openapi_types[name])
    # The API says int-or-string; the models say object or str.
    return "IntOrString" if name in ("port", "max_surge", "max_unavailable", "target_port") else kind
