"""Combines a packet filter adapter with the routing rules that transparent rule sets need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import PAUSE_S, Feature
from kubeproxy.netfilter.iptables.adapter import Iptables
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.routing import rules
from kubeproxy.netfilter.routing.rule_watch import RuleWatch
from kubeproxy.netfilter.ruleset import Reach, RuleChange, RuleSet

log = structlog.get_logger(__name__)


class WithRouting:
    """Applies rule sets to the packet filter and to the routing rules."""

    def __init__(self, packet_filter: Nftables | Iptables) -> None:
        self._filter = packet_filter
        # Whether our routing rules are in the kernel, or None if that is unknown.
        self._believed: bool | None = None
        self._watch: RuleWatch | None = None
        self._on_foreign_change: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """Return the name of the packet filter adapter."""
        return self._filter.name

    async def probe(self) -> None:
        """Check that the packet filter works, without changing anything. Raise KernelError with the reason if it does
        not."""
        await self._filter.probe()

    async def why_not(self, feature: Feature) -> str | None:
        """See `Netfilter.why_not`. A transparent rule set needs routing rules as well."""
        try:
            await self._filter.probe(feature)
            if feature is Feature.TRANSPARENT:
                rules.probe()
        except KernelError as error:
            return str(error)
        return None

    async def change(self, change: RuleChange) -> bool:
        """See `Netfilter.change`."""
        return await self._filter.change(change)

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`. Marked packets need the routing rules, so these are added first and removed last."""
        changed = self._route(wanted=True, verify=verify) if wanted.transparent else False
        changed |= await self._filter.apply(wanted, verify=verify)
        return changed if wanted.transparent else changed | self._route(wanted=False, verify=verify)

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        return await self._filter.reach(ours)

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """See `Netfilter.pause`. The routing rules stay, because answers to running connections still need them."""
        return await self._filter.pause(for_s)

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """See `Netfilter.on_foreign_change`. The kernel notifies of removed routing rules at once. A removed route of
        our table is noticed at the next full sync."""
        self._on_foreign_change = callback
        self._filter.on_foreign_change(callback)
        if self._watch is None:
            try:
                self._watch = RuleWatch()
            except OSError as error:
                log.info("no notifications of routing rules", reason=error.strerror)
                return
            asyncio.get_running_loop().add_reader(self._watch, self._notice)

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        had = await self._filter.cleanup()
        return had | self._route(wanted=False, verify=True)

    async def close(self) -> None:
        """See `Netfilter.close`."""
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch)
            self._watch.close()
            self._watch = None
        await self._filter.close()

    def _notice(self) -> None:
        # This process's own removals are notified, too, so a notification counts only while our rules are believed to
        # exist.
        if self._watch is not None and self._watch.look() and self._believed:
            self._believed = None
            self._on_foreign_change()

    def _route(self, *, wanted: bool, verify: bool) -> bool:
        if self._believed is wanted and not verify:
            return False
        self._believed = None
        changed = rules.add() if wanted else rules.remove()
        self._believed = wanted
        return changed
