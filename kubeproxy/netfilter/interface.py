"""What an adapter of the kernel's packet filter can do. The proxier sees no more of it than this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kubeproxy.netfilter.ruleset import Reach, RuleSet

GAP_S = 30.0
"""How long clients are kept waiting for a successor. Their attempts come 1, 3, 7, 15 s after the first."""


class Netfilter(Protocol):
    """An adapter. Its calls are made one at a time; each is all or nothing; the failure of each is a KernelError."""

    @property
    def name(self) -> str:
        """``nftables``, ``iptables``, ``none`` or ``fake``."""

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """Make the kernel equal to `wanted` by one transaction that holds only the difference.

        The difference is taken from what the adapter believes to be there; with `verify` (at start, and at every
        periodic sync) from what the kernel says, or has said of every change since it was last read, so that rules
        somebody removed come back, and what an earlier run left is removed. Rules that are not ours are never touched.
        True if anything had to be changed.
        """

    async def why_not_transparent(self) -> str | None:
        """Why this host cannot do what `RuleSet.transparent` asks for; None if it can. Leaves nothing behind."""

    async def why_not_guarding_sockets(self) -> str | None:
        """Why this host cannot do what `RuleSet.guard_sockets` asks for; None if it can. Leaves nothing behind."""

    async def reach(self, ours: RuleSet) -> Reach:
        """Where the redirects lead that the kernel has now, read from it and compared with those of `ours`."""

    async def pause(self, for_s: float = GAP_S) -> bool:
        """Take our redirects away, whoever of us made them, and have the first packets to their destinations dropped
        for so long, so that a client whose proxy is gone tries again instead of being refused.

        Running connections are left alone. When the time is up nothing of it works any more, and nobody needs to come
        for that; the next `apply` ends it in the transaction that brings its redirects. True if there was any redirect.
        """

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """Call this from now on whenever somebody else has, or may have, changed our rules; at once or within a second,
        and from the event loop. (Where the adapter cannot find out, nobody calls.)"""

    async def cleanup(self) -> bool:
        """Remove everything of ours. True if there was anything."""

    async def close(self) -> None:
        """Let go of helpers (threads, files); the rules stay."""
