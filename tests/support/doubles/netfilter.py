"""A netfilter adapter in memory."""

from __future__ import annotations

from collections.abc import Callable

from kubeproxy.model import Address, Destination
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import PAUSE_S, Feature
from kubeproxy.netfilter.packet_simulation import Fate, Trace, trace
from kubeproxy.netfilter.ruleset import Reach, RuleChange, RuleSet
from tests.support.rule_changes import changeable


class FakeNetfilter:
    """A kernel with one rule set. It records what was applied, fails on request, and can lose its rules."""

    name = "fake"

    def __init__(self) -> None:
        self.kernel = RuleSet()
        """The rules in effect."""
        self.believed: RuleSet | None = None
        """The rules that the adapter takes for those in effect; None: unknown."""
        self.history: list[RuleSet] = []
        """Every rule set that came into effect by a change, oldest first."""
        self.failures: list[str] = []
        """Error texts, in order. Each makes one apply, pause or cleanup fail and change nothing."""
        self.rebalanced = 0
        """Successful calls of `change` with endpoints alone."""
        self.services_changed = 0
        """Other successful calls of `change`."""
        self.paused: frozenset[Destination] = frozenset()
        """The destinations with waiting clients."""
        self._on_foreign_change: Callable[[], None] = lambda: None
        self.closed = False

    def fail(self, text: str = "the kernel said no", *, times: int = 1) -> None:
        """Make the next calls fail."""
        self.failures += [text] * times

    def lose(self, *, noticed: bool = False) -> None:
        """A foreign program flushes our rules. The adapter notices it only if it is `noticed`."""
        self.kernel = RuleSet()
        if noticed:
            self._on_foreign_change()

    def trace(
        self,
        destination: Destination,
        *,
        source: Address | None = None,
        from_this_host: bool = False,
        for_this_host: bool = False,
    ) -> Trace:
        """What meets a client that sends to `destination` now; see `kubeproxy.netfilter.packet_simulation.trace`."""
        if destination in self.paused:
            return Trace(Fate.DROPPED)
        return trace(
            self.kernel, destination, source=source, from_this_host=from_this_host, for_this_host=for_this_host
        )

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`."""
        self._maybe_fail()
        have = self.kernel if verify or self.believed is None else self.believed
        self.believed = wanted = changeable(wanted)
        if have == wanted and not self.paused:
            return False
        self.kernel, self.paused = wanted, frozenset()
        self.history.append(wanted)
        return True

    async def change(self, change: RuleChange) -> bool:
        """See `Netfilter.change`."""
        self._maybe_fail()
        if self.believed is None or self.kernel != self.believed:
            return False
        self.kernel = self.believed = changeable(self.kernel)
        self.kernel.enter(change)
        if change.only_endpoints:
            self.rebalanced += 1
        else:
            self.history.append(changeable(self.kernel))
            self.services_changed += 1
        return True

    async def why_not(self, feature: Feature) -> str | None:
        """See `Netfilter.why_not`: every feature is supported."""
        return None

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        self._maybe_fail()
        wanted = set(ours.redirects.items())
        have = set(self.kernel.redirects.items())
        return Reach(len(have & wanted), len(have - wanted))

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """See `Netfilter.pause`. Time does not pass here: it lasts until the next apply."""
        self._maybe_fail()
        destinations = frozenset(destination for destination, _ in self.kernel.redirects)
        if destinations:
            self.kernel, self.believed, self.paused = RuleSet(), None, destinations
        return bool(destinations)

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """See `Netfilter.on_foreign_change`: `lose` calls it, when the adapter notices."""
        self._on_foreign_change = callback

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        self._maybe_fail()
        had, self.kernel, self.believed = self.kernel != RuleSet() or bool(self.paused), RuleSet(), None
        self.paused = frozenset()
        return had

    async def close(self) -> None:
        """See `Netfilter.close`."""
        self.closed = True

    def _maybe_fail(self) -> None:
        if self.failures:
            raise KernelError(self.failures.pop(0))
