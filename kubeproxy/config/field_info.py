"""The information about a field in addition to its type and default: its meaning, its flag, and the effect of a
change."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Meta, Struct


class Group(Struct, frozen=True, kw_only=True, rename="camel"):
    """A group of fields of the file."""


class Effect(StrEnum):
    """The effect that a changed field has on a running daemon."""

    LIVE = "live"
    """The change takes effect on reload."""
    RESTART = "restart"
    """The change takes effect at the next start."""
    NONE = "none"
    """The field has no effect. It is accepted so that kube-proxy's files and flags work. A warning lists such
    fields."""


def live(text: str, *, flag: str = "", zero_is_default: bool = False) -> Meta:
    """Declare a field that can change while the daemon runs.

    `flag` is its flag without dashes. With `zero_is_default`, 0 or the empty value in the file means the default, as in
    some fields of kube-proxy (pkg/proxy/apis/config/v1alpha1/defaults.go).
    """
    return _about(text, Effect.LIVE, flag, zero_is_default)


def restart(text: str, *, flag: str = "", zero_is_default: bool = False) -> Meta:
    """Declare a field that is read only at start."""
    return _about(text, Effect.RESTART, flag, zero_is_default)


def unused(text: str, *, flag: str = "", zero_is_default: bool = False) -> Meta:
    """Declare a field without effect."""
    return _about(text, Effect.NONE, flag, zero_is_default)


def _about(text: str, effect: Effect, flag: str, zero_is_default: bool) -> Meta:
    return Meta(description=text, extra={"effect": effect, "flag": flag, "zero_is_default": zero_is_default})
