"""A table of flows in memory, for tests of what reconciles one."""

from __future__ import annotations

from kubeproxy.model import Address
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack.stale_flows import TrackedFlow, Transition
from kubeproxy.netfilter.ruleset import RuleSet


class FakeConntrack:
    """Holds the flows it is given, deletes what is stale, and fails on demand."""

    def __init__(self, *, local: frozenset[Address] = frozenset()) -> None:
        self.local = local
        """The node's addresses."""
        self.flows: list[TrackedFlow] = []
        self.deleted: list[TrackedFlow] = []
        """Oldest first."""
        self.calls: list[tuple[RuleSet | None, RuleSet]] = []
        """What each call was given, those that failed included."""
        self.forgotten: list[bool] = []
        """Whose ended connections were to be forgotten, by call."""
        self.dumps = 0
        """How often the kernel would have been asked."""
        self.failures: list[str] = []
        """Each makes one call fail with this text and delete nothing, first first."""

    def fail(self, text: str = "the kernel said no", *, times: int = 1) -> None:
        """Let the next calls fail."""
        self.failures += [text] * times

    async def forget_ended(self, rules: RuleSet, *, ours: bool) -> int:
        """See `Conntrack.forget_ended`; it only notes the call."""
        self.forgotten.append(ours)
        if self.failures:
            raise KernelError(self.failures.pop(0))
        return 0

    async def reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        """See `Conntrack.reconcile`."""
        self.calls.append((before, now))
        if self.failures:
            raise KernelError(self.failures.pop(0))
        transition = Transition(before, now)
        if not transition.families:
            return 0
        self.dumps += 1
        gone = transition.stale(self.flows, local=self.local)
        self.flows = [flow for flow in self.flows if flow not in gone]
        self.deleted += gone
        return len(gone)
