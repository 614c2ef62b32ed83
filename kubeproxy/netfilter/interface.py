"""What an adapter of the kernel's packet filter can do. The proxier sees no more of it than this."""

from __future__ import annotations

from typing import Protocol

from kubeproxy.netfilter.ruleset import RuleSet


class Netfilter(Protocol):
    """An adapter. Its calls are made one at a time; each is all or nothing; the failure of each is a KernelError."""

    @property
    def name(self) -> str:
        """``nftables``, ``iptables``, ``none`` or ``fake``."""

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """Make the kernel equal to `wanted` by one transaction that holds only the difference.

        The difference is taken from what the adapter believes to be there; with `verify` (at start, and at every
        periodic sync) from what the kernel says, so that rules somebody removed come back, and what an earlier run
        left is removed. Rules that are not ours are never touched. True if anything had to be changed.
        """

    async def why_not_transparent(self) -> str | None:
        """Why this host cannot do what `RuleSet.transparent` asks for; None if it can. Leaves nothing behind."""

    async def cleanup(self) -> bool:
        """Remove everything of ours. True if there was anything."""

    async def close(self) -> None:
        """Let go of helpers (threads, files); the rules stay."""
