"""The interface of packet filter adapters; the proxier uses nothing else of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from kubeproxy.netfilter.ruleset import Reach, Rebalance, RuleSet

PAUSE_S = 30.0
"""How long first packets are dropped until a new instance serves. TCP clients retry 1, 3, 7, 15 s after the first."""


class Feature(Enum):
    """What a rule set may ask for beyond redirects, and a kernel or an adapter may lack."""

    SPREADS = auto()
    """`RuleSet.spreads`: the kernel leads clients to endpoints."""
    RESCUE = auto()
    """`RuleSet.rescue`: failures of such connections are reported."""
    TRANSPARENT = auto()
    """`RuleSet.transparent`: endpoints are dialed from clients' addresses."""
    SOCKET_GUARD = auto()
    """`RuleSet.guard_sockets`: only our own listeners get redirected packets."""


class Netfilter(Protocol):
    """An adapter. Its calls are made one at a time; each is all or nothing; the failure of each is a KernelError."""

    @property
    def name(self) -> str:
        """``nftables``, ``iptables``, ``none`` or ``fake``."""

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """Make the kernel equal to `wanted` by one transaction that holds only the difference.

        The difference is to the rules that the adapter knows to be there; with `verify` (at start, and at every
        periodic sync) to those read from the kernel, or notified by it since the last reading, so that removed rules
        are restored, and rules of an earlier run removed. Rules of other programs are never touched. True if anything
        had to be changed.
        """

    async def rebalance(self, change: Rebalance) -> bool:
        """Make this change at once, in the rules last applied.

        Of spreads only targets and endpoints may differ. The cost grows with the change, not with the rules. False if
        nothing was changed because that is not possible: the rules in the kernel are unknown, or the change takes an
        `apply`. After True the caller enters the change in the rule set that it applied last (`RuleSet.rebalance`):
        applying that one again then finds nothing to do."""

    async def why_not(self, feature: Feature) -> str | None:
        """Return why this host does not support a feature, or None if it does. The trial leaves nothing behind."""

    async def reach(self, ours: RuleSet) -> Reach:
        """Read the redirects in the kernel and compare them with those of `ours`."""

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """Replace our redirects by drops of first packets for that time.

        So a client retries instead of being refused. Redirects of other instances are replaced, too. Running
        connections are left alone, and so is what needs no process: the kernel still leads clients to the endpoints of
        spreads. The pause ends by itself after that time, or in the next `apply`, by the transaction
        that adds redirects. True if there was any redirect.
        """

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """Call this whenever another process has, or may have, changed our rules. The calls
        come from the event loop, at once or within a second. (Never, if the adapter cannot find out.)"""

    async def cleanup(self) -> bool:
        """Remove everything of ours. True if there was anything."""

    async def close(self) -> None:
        """Release threads and files; the rules stay."""
