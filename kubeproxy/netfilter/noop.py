"""The adapter for ``--netfilter none``: redirects are made by other means."""

from __future__ import annotations

from collections.abc import Callable

from kubeproxy.netfilter.interface import PAUSE_S
from kubeproxy.netfilter.ruleset import Reach, Rebalance, RuleSet


class NoNetfilter:
    """Makes no rules. Proxy ports serve every client that connects to them, as nothing guards them."""

    name = "none"

    def __init__(self) -> None:
        self._applied = RuleSet()

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`: True when the rule set is another than before."""
        changed, self._applied = wanted != self._applied, wanted
        return changed

    async def rebalance(self, change: Rebalance) -> bool:
        """See `Netfilter.rebalance`."""
        return False

    async def why_not_spreading(self) -> str | None:
        """See `Netfilter.why_not_spreading`."""
        return "without a packet filter nothing translates packets"

    async def why_not_rescuing(self) -> str | None:
        """See `Netfilter.why_not_rescuing`."""
        return "without a packet filter nothing reports failures"

    async def why_not_transparent(self) -> str | None:
        """See `Netfilter.why_not_transparent`."""
        return "without a packet filter endpoints' answers find no way back"

    async def why_not_guarding_sockets(self) -> str | None:
        """See `Netfilter.why_not_guarding_sockets`."""
        return "without a packet filter sockets are not checked"

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        return Reach(0, 0)

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """See `Netfilter.pause`."""
        return False

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """See `Netfilter.on_foreign_change`: nothing here is ours."""

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        return False

    async def close(self) -> None:
        """See `Netfilter.close`."""
