"""The change from one rule set to another that has other destinations, proxy ports and pods."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any, TypeVar

from kubeproxy.netfilter.ruleset import RuleChange, RuleSet

K = TypeVar("K")
V = TypeVar("V")

CHANGEABLE = (
    *("redirects", "spreads", "allowed_sources", "masquerades"),
    *("proxy_ports", "refused", "dropped", "hairpins", "hooks"),
)
"""The fields of a rule set that a change can have."""


def like(first: RuleSet, second: RuleSet) -> RuleSet:
    """The second rule set with all of the first that no change can have."""
    return replace(first, **{name: getattr(second, name) for name in CHANGEABLE})


def change_between(first: RuleSet, second: RuleSet) -> RuleChange:
    """The change that leads from one to the other."""
    proxy_ports, refused, dropped = (
        _moved(getattr(first, name), getattr(second, name)) for name in ("proxy_ports", "refused", "dropped")
    )
    ports = {*proxy_ports, *refused, *dropped}
    to_ports = (
        traffic
        for rules in (first, second)
        for traffic, port in rules.redirects.items()
        if (traffic.destination.protocol, port) in ports
    )
    redirects = {**_differing(first.redirects, second.redirects), **{it: second.redirects.get(it) for it in to_ports}}
    return RuleChange(
        spreads=_differing(first.spreads, second.spreads),
        hairpins=_moved(first.hairpins, second.hairpins),
        hooks=_moved(first.hooks, second.hooks),
        redirects=redirects,
        allowed_sources=_differing(first.allowed_sources, second.allowed_sources),
        masquerades=_differing(first.masquerades, second.masquerades),
        proxy_ports=proxy_ports,
        refused=refused,
        dropped=dropped,
    )


def changeable(rules: RuleSet) -> RuleSet:
    """A copy of a rule set that a change can be entered in."""
    copies: dict[str, Any] = {name: getattr(rules, name) for name in CHANGEABLE}
    for name, it in copies.items():
        copies[name] = dict(it) if isinstance(it, Mapping) else set(it)
    return replace(rules, **copies)


def _differing(first: Mapping[K, V], second: Mapping[K, V]) -> dict[K, V | None]:
    return {key: second.get(key) for key in {**first, **second} if first.get(key) != second.get(key)}


def _moved(first: Set[K], second: Set[K]) -> dict[K, bool]:
    return {key: key in second for key in first ^ second}
