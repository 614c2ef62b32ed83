"""Finds the differences between two configurations, and their effect on a running daemon."""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.config.field_info import Effect
from kubeproxy.config.fields import build, fields, flatten
from kubeproxy.config.schema import Configuration


@dataclass(frozen=True, slots=True)
class Difference:
    """The paths of the changed fields. Fields without effect are left out."""

    live: tuple[str, ...]
    """The changed fields that take effect on reload."""
    restart: tuple[str, ...]
    """The changed fields that take effect only at the next start."""


def compare(old: Configuration, new: Configuration) -> Difference:
    """Return the fields in which two configurations differ."""
    before, after = flatten(old), flatten(new)
    changed = [field for path, field in fields().items() if before[path] != after[path]]
    return Difference(
        live=tuple(field.path for field in changed if field.effect is Effect.LIVE),
        restart=tuple(field.path for field in changed if field.effect is Effect.RESTART),
    )


def effective(old: Configuration, new: Configuration) -> Configuration:
    """Return the configuration that is in effect after a reload. Fields that take effect only at the next start keep
    their old values.

    So until the next start, every reload reports these fields again.
    """
    before, after = flatten(old), flatten(new)
    waiting = {path for path, field in fields().items() if field.effect is Effect.RESTART}
    return build({path: (before if path in waiting else after)[path] for path in fields()})
