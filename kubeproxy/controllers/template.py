"""Compares pod templates, and computes the hash that names a ReplicaSet."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import msgspec

from kubeproxy.controllers.api_types import template_of

HASH_LABEL: Final = "pod-template-hash"
_SAFE: Final = "bcdfghjklmnpqrstvwxz2456789"
"""The alphabet of Kubernetes' generated names, without vowels and without digits that look like letters."""
_MAPS: Final = frozenset(
    {
        *("annotations", "labels", "limits", "matchLabels", "metadata", "nodeSelector", "overhead", "requests"),
        *("resources", "volumeAttributes"),
    }
)
"""Fields in which an empty object means the same as none. In other fields, such as emptyDir, {} is a choice."""
_QUANTITY_MAPS: Final = frozenset({"limits", "requests", "overhead"})
_QUANTITIES: Final = frozenset({"divisor", "sizeLimit"})
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([EPTGMk]i?|Ki|m|u|n|[eE][+-]?[0-9]+)?")
_SUFFIXES: Final = {
    **{f"{unit}i": Decimal(2) ** (10 * power) for power, unit in enumerate("KMGTPE", start=1)},
    **{unit: Decimal(10) ** (3 * power) for power, unit in enumerate("kMGTPE", start=1)},
    "m": Decimal("1e-3"),
    "u": Decimal("1e-6"),
    "n": Decimal("1e-9"),
}


def normalized(template: msgspec.Raw) -> dict[str, Any]:
    """Return a template in the form that all equal templates share, without the label pod-template-hash.

    Null, empty lists and empty maps count as absent, and quantities are compared by value.
    """
    found = template_of(template)
    labels = (found.get("metadata") or {}).get("labels") or {}
    labels.pop(HASH_LABEL, None)
    pruned = _prune("", found, quantities=False)
    assert isinstance(pruned, dict), "a template is an object"
    return pruned


@lru_cache(maxsize=1024)
def _canonical(template: bytes) -> bytes:
    """Return the text that all equal templates share. Results are kept, because every sync compares the same few
    templates."""
    return msgspec.json.encode(normalized(msgspec.Raw(template)), order="sorted")


def canonical(template: msgspec.Raw) -> bytes:
    """Return the text that all equal templates share, without the label pod-template-hash."""
    return _canonical(bytes(template))


def equal(one: msgspec.Raw, other: msgspec.Raw) -> bool:
    """Return whether two templates make the same pods."""
    return canonical(one) == canonical(other)


def template_hash(template: msgspec.Raw, collisions: int | None) -> str:
    """Return a short text for names and labels. It is the same for equal templates, and another one after a collision.

    It is a 32-bit FNV-1a hash like upstream's, but over canonical JSON. Other controllers find ReplicaSets by their
    templates and never by this value.
    """
    text = canonical(template)
    value = 2166136261
    for byte in text + (b"" if collisions is None else collisions.to_bytes(8, "little")):
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return "".join(_SAFE[ord(digit) % len(_SAFE)] for digit in str(value))


def with_hash(template: msgspec.Raw, value: str) -> dict[str, Any]:
    """Return the template for a ReplicaSet: the Deployment's template with the hash as a label."""
    found = template_of(template)
    metadata = found.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), HASH_LABEL: value}
    return found


def without_hash(template: msgspec.Raw) -> dict[str, Any]:
    """Return the template for a Deployment: the ReplicaSet's template without the hash."""
    found = template_of(template)
    labels = (found.get("metadata") or {}).get("labels") or {}
    labels.pop(HASH_LABEL, None)
    return found


class _LabelledMeta(msgspec.Struct):
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class _Labelled(msgspec.Struct):
    metadata: _LabelledMeta = msgspec.field(default_factory=_LabelledMeta)


_decode_labels = msgspec.json.Decoder(_Labelled).decode


def labels_of(template: msgspec.Raw) -> dict[str, str]:
    """Return the labels of a template's pods."""
    return _decode_labels(template).metadata.labels


def _prune(key: str, value: Any, *, quantities: bool) -> Any:
    if isinstance(value, dict):
        inner = key in _QUANTITY_MAPS
        kept = {name: _prune(name, item, quantities=inner) for name, item in value.items()}
        return {
            name: item
            for name, item in kept.items()
            if item is not None and item != [] and not (item == {} and name in _MAPS)
        }
    if isinstance(value, list):
        return [_prune("", item, quantities=False) for item in value]
    if (quantities or key in _QUANTITIES) and isinstance(value, str | int | float):
        return _quantity(str(value))
    return value


def _quantity(text: str) -> str:
    """Return the value of a quantity as plain text. A text that is not a quantity stays as it is."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return text
    number, suffix = match[1], match[2] or ""
    try:
        if suffix[:1] in ("e", "E") and suffix != "E" and suffix != "Ei":
            return str(Decimal(number + suffix).normalize())
        return str((Decimal(number) * _SUFFIXES.get(suffix, Decimal(1))).normalize())
    except InvalidOperation:
        return text
