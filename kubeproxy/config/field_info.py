"""The functions with which the schema declares the meaning of a field, its flag, and the effect of a change."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Meta, Struct


class Group(Struct, frozen=True, kw_only=True, rename="camel"):
    """A group of fields of the file."""


class Effect(StrEnum):
    """The effect of a changed field on a running daemon."""

    LIVE = "live"
    """The change takes effect on reload."""
    RESTART = "restart"
    """The change takes effect at the next start."""
    NONE = "none"
    """The field has no effect. It is accepted for compatibility with kube-proxy's files and flags, and a warning lists
    it."""


def live(text: str, *, flag: str = "", zero_is_default: bool = False) -> Meta:
    """Declare a field whose changes take effect on reload.

    `text` is the meaning of the field, and `flag` its flag without dashes. With `zero_is_default`, 0 or an empty value
    in the file means the default, as for some fields of kube-proxy (pkg/proxy/apis/config/v1alpha1/defaults.go).
    """
    return _about(text, Effect.LIVE, flag, zero_is_default)


def restart(text: str, *, flag: str = "", zero_is_default: bool = False) -> Meta:
    """Declare a field whose changes take effect at the next start. The parameters are those of `live`."""
    return _about(text, Effect.RESTART, flag, zero_is_default)


def unused(text: str, *, flag: str = "", zero_is_default: bool = False) -> Meta:
    """Declare a field without effect. The parameters are those of `live`."""
    return _about(text, Effect.NONE, flag, zero_is_default)


def _about(text: str, effect: Effect, flag: str, zero_is_default: bool) -> Meta:
    return Meta(description=text, extra={"effect": effect, "flag": flag, "zero_is_default": zero_is_default})
