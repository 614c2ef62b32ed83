"""The difference between two configurations, and its effect on a running daemon."""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.config.field_info import Effect
from kubeproxy.config.fields import build, fields, flatten
from kubeproxy.config.schema import Configuration


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths of the changed fields, without fields that have no effect."""

    live: tuple[str, ...]
    """The changed fields that take effect at once."""
    restart: tuple[str, ...]
    """The changed fields that wait for the next start."""


def compare(old: Configuration, new: Configuration) -> Difference:
    """Return the changed fields from `old` to `new`."""
    before, after = flatten(old), flatten(new)
    changed = [field for path, field in fields().items() if before[path] != after[path]]
    return Difference(
        live=tuple(field.path for field in changed if field.effect is Effect.LIVE),
        restart=tuple(field.path for field in changed if field.effect is Effect.RESTART),
    )


def effective(old: Configuration, new: Configuration) -> Configuration:
    """Return the configuration in effect after a reload. It has the new values, except for fields that wait for the
    next start.

    Until then, every reload lists those fields again.
    """
    before, after = flatten(old), flatten(new)
    waiting = {path for path, field in fields().items() if field.effect is Effect.RESTART}
    return build({path: (before if path in waiting else after)[path] for path in fields()})
