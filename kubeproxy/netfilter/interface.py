"""The interface of packet filter adapters. The proxier uses nothing else of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from kubeproxy.netfilter.ruleset import Reach, RuleChange, RuleSet

PAUSE_S = 30.0
"""For how many seconds first packets are dropped until a new instance serves. TCP clients retry 1, 3, 7 and 15 s after
the first attempt."""


class Feature(Enum):
    """A feature of a rule set, beyond redirects, that a kernel or an adapter may lack."""

    SPREADS = auto()
    """For `RuleSet.spreads`: the kernel sends clients straight to endpoints."""
    RESCUE = auto()
    """For `RuleSet.rescue`: failed connections to these endpoints are reported."""
    TRANSPARENT = auto()
    """For `RuleSet.transparent`: endpoints are dialed from clients' addresses."""
    SOCKET_GUARD = auto()
    """For `RuleSet.guard_sockets`: only our own listeners get redirected packets."""


class Netfilter(Protocol):
    """An adapter. Its methods are never called concurrently. Each method changes everything or nothing, and raises
    KernelError if it fails."""

    @property
    def name(self) -> str:
        """Return ``nftables``, ``iptables``, ``none`` or ``fake``."""

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """Make the rules in the kernel equal to `wanted`, by one transaction with the difference. Return True if
        anything had to be changed.

        Normally the difference is computed from the rules that the adapter believes to be in the kernel. With `verify`
        (at start, and at every full sync) it is computed from the rules as read from the kernel, or as the kernel has
        notified since the last reading. So removed rules are restored, and rules of an earlier run are removed. Rules
        of other programs are never touched.
        """

    async def change(self, change: RuleChange) -> bool:
        """Make this change at once, within the rules last applied. The cost depends on the size of the change, not of
        the rules.

        Return False if nothing was changed, because the rules in the kernel are unknown or because the change needs an
        `apply`. After True the caller makes the same change in the rule set last applied (`RuleSet.enter`), so that
        applying it again finds no difference.
        """

    async def why_not(self, feature: Feature) -> str | None:
        """Return why this host does not support a feature, or None if it does. Testing this leaves nothing behind."""

    async def reach(self, ours: RuleSet) -> Reach:
        """Read the redirects in the kernel, and count those that `ours` has and those that it does not have."""

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """Replace our redirects by rules that drop first packets for `for_s` seconds, so that clients retry instead of
        being rejected. Return True if there was any redirect.

        Redirects of other instances are replaced, too. Running connections are not affected. The kernel path continues
        to work, because it needs no process. The pause ends by itself, or with the next `apply`, whose transaction adds
        redirects.
        """

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """Set a function to call when another process has changed our rules, or may have. It is called in the event
        loop, at once or within a second, or never if the adapter cannot notice changes."""

    async def cleanup(self) -> bool:
        """Remove all our rules. Return True if there were any."""

    async def close(self) -> None:
        """Release threads and files. The rules stay in the kernel."""
