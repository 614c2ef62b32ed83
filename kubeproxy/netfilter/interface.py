"""The interface of packet filter adapters, which is all that the proxier uses of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from kubeproxy.netfilter.ruleset import Reach, Rebalance, RuleSet

PAUSE_S = 30.0
"""For how long first packets are dropped until a new instance serves. TCP clients retry 1, 3, 7 and 15 s after the
first attempt."""


class Feature(Enum):
    """A feature that a rule set may ask for beyond redirects, and that a kernel or an adapter may lack."""

    SPREADS = auto()
    """The feature of `RuleSet.spreads`: the kernel leads clients to endpoints."""
    RESCUE = auto()
    """The feature of `RuleSet.rescue`: failures of such connections are reported."""
    TRANSPARENT = auto()
    """The feature of `RuleSet.transparent`: endpoints are dialed from clients' addresses."""
    SOCKET_GUARD = auto()
    """The feature of `RuleSet.guard_sockets`: only our own listeners get redirected packets."""


class Netfilter(Protocol):
    """An adapter. Its methods are called one at a time. Each of them changes everything or nothing, and raises
    KernelError if it fails."""

    @property
    def name(self) -> str:
        """Return ``nftables``, ``iptables``, ``none`` or ``fake``."""

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """Make the kernel equal to `wanted` by one transaction that has only the difference. Return True if anything
        had to be changed.

        The difference is to the rules that the adapter knows to be there. With `verify` (at start, and at every
        periodic sync) it is to the rules read from the kernel, or notified by it since the last reading. So removed
        rules are restored, and rules of an earlier run removed. Rules of other programs are never touched.
        """

    async def rebalance(self, change: Rebalance) -> bool:
        """Make this change at once, in the rules last applied. Nothing but what it names
        differs. The cost grows with the change, not with the rules.

        Return False if nothing was changed, because the rules in the kernel are unknown or because the change takes an
        `apply`. After True the caller enters the change in the rule set that it applied last (`RuleSet.rebalance`);
        applying that rule set again then finds nothing to do.
        """

    async def why_not(self, feature: Feature) -> str | None:
        """Return why this host does not support a feature, or None if it does. The trial leaves nothing behind."""

    async def reach(self, ours: RuleSet) -> Reach:
        """Read the redirects in the kernel and compare them with those of `ours`."""

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """Replace our redirects by drops of first packets for that time, so that clients retry and are not rejected.
        Return True if there was any redirect.

        Redirects of other instances are replaced, too. Running connections are left alone. The kernel still leads
        clients to the endpoints of spreads, because that needs no process. The pause ends by itself after that time, or
        with the next `apply`, whose transaction adds redirects.
        """

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """Call this function whenever another process has changed our rules, or may have. The calls come from the event
        loop, at once or within a second. There are none if the adapter cannot notice changes."""

    async def cleanup(self) -> bool:
        """Remove all rules of ours. Return True if there were any."""

    async def close(self) -> None:
        """Release threads and files. The rules stay."""
