"""What the schema says of a field beside its type and default: what it is for, its flag, and what a change takes."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Meta


class Effect(StrEnum):
    """What a changed field does to a running daemon."""

    LIVE = "live"
    """Takes effect on reload."""
    RESTART = "restart"
    """Takes effect at the next start."""
    NONE = "none"
    """Has no meaning here: accepted, so that kube-proxy's files and flags go on working, and said so."""


def live(text: str, *, flag: str = "", zero_is_default: bool = False) -> Meta:
    """A field that can change while the daemon runs.

    `flag` names its flag without dashes. `zero_is_default` is for those fields of kube-proxy in which 0 or nothing in
    the file stands for the default (pkg/proxy/apis/config/v1alpha1/defaults.go).
    """
    return _about(text, Effect.LIVE, flag, zero_is_default)


def restart(text: str, *, flag: str = "", zero_is_default: bool = False) -> Meta:
    """A field that is read at start."""
    return _about(text, Effect.RESTART, flag, zero_is_default)


def unused(text: str, *, flag: str = "", zero_is_default: bool = False) -> Meta:
    """A field without meaning here."""
    return _about(text, Effect.NONE, flag, zero_is_default)


def _about(text: str, effect: Effect, flag: str, zero_is_default: bool) -> Meta:
    return Meta(description=text, extra={"effect": effect, "flag": flag, "zero_is_default": zero_is_default})
