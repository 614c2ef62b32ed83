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
"""Fields in which an empty object means the same as an absent field. In other fields, such as emptyDir, {} has a
meaning."""
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
    """Return a template in its canonical form, which is the same for all equal templates, without the label
    pod-template-hash.

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
    """Return the canonical JSON of a template. The results are cached, because every sync compares the same few
    templates."""
    return msgspec.json.encode(normalized(msgspec.Raw(template)), order="sorted")


def canonical(template: msgspec.Raw) -> bytes:
    """Return the canonical JSON of a template, which is the same for all equal templates, without the label
    pod-template-hash."""
    return _canonical(bytes(template))


def equal(one: msgspec.Raw, other: msgspec.Raw) -> bool:
    """Return whether two templates describe the same pods."""
    return canonical(one) == canonical(other)


def template_hash(template: msgspec.Raw, collisions: int | None) -> str:
    """Return the template's hash for names and labels. Equal templates have the same hash. `collisions` changes the
    hash, after two templates had the same.

    The hash is 32-bit FNV-1a like upstream's, but over canonical JSON, so the values differ. That does no harm, because
    upstream's controller finds ReplicaSets by their templates and never by the hash.
    """
    text = canonical(template)
    value = 2166136261
    for byte in text + (b"" if collisions is None else collisions.to_bytes(8, "little")):
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return "".join(_SAFE[ord(digit) % len(_SAFE)] for digit in str(value))


def with_hash(template: msgspec.Raw, value: str) -> dict[str, Any]:
    """Return a Deployment's template for a ReplicaSet, with the hash `value` as a label."""
    found = template_of(template)
    metadata = found.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), HASH_LABEL: value}
    return found


def without_hash(template: msgspec.Raw) -> dict[str, Any]:
    """Return a ReplicaSet's template for a Deployment, without the label pod-template-hash."""
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
    """Return the labels that a template gives its pods."""
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
    """Return a quantity in a canonical form, such as ``0.5`` for ``500m``. Return any other text unchanged."""
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
