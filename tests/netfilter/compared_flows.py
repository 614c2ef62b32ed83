"""A conntrack table that compares what is deleted after a change of some Services with what would be deleted if all
rules had been compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from kubeproxy.model import NODE_PORTS, Address, Target, family_of
from kubeproxy.netfilter.conntrack.stale_flows import TrackedFlow, Transition
from kubeproxy.netfilter.ruleset import RuleSet
from tests.netfilter.histories import ENDPOINTS, OTHER, OWN, OWN6
from tests.support.rule_changes import changeable

LOCAL = frozenset({OWN, OTHER, OWN6, Address("127.0.0.1"), Address("::1")})
_STRANGERS = [Address("192.0.2.77"), Address("2001:db8::77")]
_FLOWS = 60


class ComparedFlows:
    """Makes flows at random, whenever some are to be deleted."""

    def __init__(self, in_force: Callable[[], RuleSet | None]) -> None:
        self._in_force = in_force
        self._random = random.Random(0)
        self._known: RuleSet | None = None
        """The rules in force at the last call."""
        self.stale = 0
        """How many flows have been found stale."""

    async def reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        """See `Conntrack.reconcile`."""
        in_force, known = self._in_force(), self._known
        assert in_force is not None
        self._known = changeable(in_force)
        if before is None or known is None or not known.redirects:
            return 0
        was, part, whole = Transition(known, known), Transition(before, now), Transition(known, in_force)
        flows = [it for it in self._flows(known, in_force) if not was.stale([it], LOCAL)]
        stale = part.stale(flows, LOCAL)
        assert stale == whole.stale(flows, LOCAL), (before, now)
        assert all(family_of(it.address) in part.families for it in stale)
        assert part.left is None or all(it.target in part.left for it in stale), (part.left, stale)
        new = part.untranslated(flows, local=LOCAL)
        assert new == whole.untranslated(flows, local=LOCAL)
        assert all(family_of(it.address) in part.new_tcp_families for it in new)
        self.stale += len(stale)
        return 0

    def _flows(self, before: RuleSet, now: RuleSet) -> Iterator[TrackedFlow]:
        """Yield flows to the destinations of these rules, untranslated, to this node, and to endpoints of `before`."""
        pick = self._random.choice
        traffic = [*before.redirects, *now.redirects]
        ports = [*before.redirects.values(), *now.redirects.values()]
        for _ in range(_FLOWS):
            to, _ = each = pick(traffic)
            home = pick([it for it in LOCAL if family_of(it) is family_of(to.address)])
            address = home if to.address in NODE_PORTS.values() else to.address
            spread = before.spreads.get(each)
            ends = [Target(address, to.port), Target(home, pick(ports)), *(spread.endpoints if spread else ())]
            clients = [it for it in (*LOCAL, *_STRANGERS, *ENDPOINTS) if family_of(it) is family_of(to.address)]
            yield TrackedFlow(pick(sorted(clients)), 40000, address, to.port, *pick(ends))

    async def forget_ended(self, rules: RuleSet, *, ours: bool) -> int:
        """See `Conntrack.forget_ended`."""
        return 0
