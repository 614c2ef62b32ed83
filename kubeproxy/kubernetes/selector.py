"""Label selectors of objects and of command lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from kubeproxy.kubernetes.api_types import Wire

_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,19}")


class Requirement(Wire, frozen=True, omit_defaults=True):
    """A requirement, as in ``matchExpressions``."""

    key: str = ""
    operator: str = ""
    """``In``, ``NotIn``, ``Exists`` or ``DoesNotExist``, and on command lines also ``Gt`` or ``Lt``."""
    values: list[str] = msgspec.field(default_factory=list)


class LabelSelector(Wire, frozen=True, omit_defaults=True):
    """A label selector. It matches labels that meet all of its requirements, and all labels if it has none."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: list[Requirement] = msgspec.field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Return whether the selector has no requirements, so that it matches all labels."""
        return not self.match_labels and not self.match_expressions

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the selector matches labels. Raise ValueError if it has an unknown operator."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            _fits(requirement, labels) for requirement in self.match_expressions
        )

    def text(self) -> str:
        """Return the selector as text, for the query parameter labelSelector."""
        labels = [f"{key}={value}" for key, value in self.match_labels.items()]
        return ",".join([*labels, *map(_text, self.match_expressions)])


def _text(requirement: Requirement) -> str:
    match requirement.operator:
        case "In" | "NotIn":
            return f"{requirement.key} {requirement.operator.lower()} ({','.join(requirement.values)})"
        case "DoesNotExist":
            return f"!{requirement.key}"
        case _:
            return requirement.key


def _fits(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    key, values = requirement.key, requirement.values
    match requirement.operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt":
            value, (bound,) = labels.get(key, ""), values
            if not _NUMBER.fullmatch(value):
                return False
            return int(value) > int(bound) if requirement.operator == "Gt" else int(value) < int(bound)
        case other:
            raise ValueError(f"{other!r} is not a valid label selector operator")
