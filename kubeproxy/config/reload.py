"""What differs between two configurations, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.config.field_info import Effect
from kubeproxy.config.fields import build, fields, flatten
from kubeproxy.config.schema import Configuration


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths of the fields that changed. Fields without meaning here are left out."""

    live: tuple[str, ...]
    """Those that a running daemon takes over."""
    restart: tuple[str, ...]
    """Those that wait for the next start."""


def compare(old: Configuration, new: Configuration) -> Difference:
    """What changes on the way from `old` to `new`."""
    before, after = flatten(old), flatten(new)
    changed = [field for path, field in fields().items() if before[path] != after[path]]
    return Difference(
        live=tuple(field.path for field in changed if field.effect is Effect.LIVE),
        restart=tuple(field.path for field in changed if field.effect is Effect.RESTART),
    )


def take_over(old: Configuration, new: Configuration) -> Configuration:
    """What is in effect after a reload: the new values, but the old ones of fields that wait for the next start. So
    those are named again at every reload, until there is a restart."""
    before, after = flatten(old), flatten(new)
    waits = {path for path, field in fields().items() if field.effect is Effect.RESTART}
    return build({path: (before if path in waits else after)[path] for path in fields()})
