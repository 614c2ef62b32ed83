"""Label selectors of objects and of command lines, and the labels that they match."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from kubeproxy.kubernetes.api_types import Wire

_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,19}")


class Requirement(Wire, frozen=True, omit_defaults=True):
    """One of ``matchExpressions``."""

    key: str = ""
    operator: str = ""
    """``In``, ``NotIn``, ``Exists`` or ``DoesNotExist``; on command lines also ``Gt`` and ``Lt``."""
    values: list[str] = msgspec.field(default_factory=list)


class LabelSelector(Wire, frozen=True, omit_defaults=True):
    """A selector as objects carry it. All of its requirements must match. Without any it matches everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: list[Requirement] = msgspec.field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Return whether there is no requirement, so that the selector matches every object."""
        return not self.match_labels and not self.match_expressions

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels match. Raise ValueError for an operator that does not exist."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            _fits(requirement, labels) for requirement in self.match_expressions
        )

    def text(self) -> str:
        """Return the selector as the parameter labelSelector has it."""
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
