"""The interface of packet filter adapters; the proxier uses nothing else of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kubeproxy.netfilter.ruleset import Reach, Rebalance, RuleSet

PAUSE_S = 30.0
"""How long first packets are dropped until a new instance serves. TCP clients retry 1, 3, 7, 15 s after the first."""


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

    async def why_not_spreading(self) -> str | None:
        """Why this host does not support `RuleSet.spreads`; None if it does. Leaves nothing behind."""

    async def why_not_rescuing(self) -> str | None:
        """Why this host does not support `RuleSet.rescue`; None if it does. Leaves nothing behind."""

    async def why_not_transparent(self) -> str | None:
        """Why this host does not support `RuleSet.transparent`; None if it does. Leaves nothing behind."""

    async def why_not_guarding_sockets(self) -> str | None:
        """Why this host does not support `RuleSet.guard_sockets`; None if it does. Leaves nothing behind."""

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
