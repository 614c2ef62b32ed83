"""The adapter for ``--netfilter none``, where clients are redirected by other means."""

from __future__ import annotations

from collections.abc import Callable

from kubeproxy.netfilter.interface import PAUSE_S, Feature
from kubeproxy.netfilter.ruleset import Reach, RuleChange, RuleSet

_LACKS = {
    Feature.SPREADS: "nothing translates packets",
    Feature.RESCUE: "nothing reports failures",
    Feature.TRANSPARENT: "endpoints' answers find no way back",
    Feature.SOCKET_GUARD: "sockets are not checked",
}


class NoNetfilter:
    """Makes no rules. Proxy ports serve every client that connects, because they are not guarded."""

    name = "none"

    def __init__(self) -> None:
        self._applied = RuleSet()

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`. Return True if the rule set differs from the one before."""
        changed, self._applied = wanted != self._applied, wanted
        return changed

    async def change(self, change: RuleChange) -> bool:
        """See `Netfilter.change`."""
        return False

    async def why_not(self, feature: Feature) -> str | None:
        """See `Netfilter.why_not`. No feature is supported."""
        return f"without a packet filter {_LACKS[feature]}"

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        return Reach(0, 0)

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """See `Netfilter.pause`."""
        return False

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """See `Netfilter.on_foreign_change`. There are no rules of ours, so the callback is never called."""

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        return False

    async def close(self) -> None:
        """See `Netfilter.close`."""
