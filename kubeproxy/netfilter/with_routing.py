"""A packet filter together with the routing rules that some of its rule sets need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import GAP_S
from kubeproxy.netfilter.iptables.adapter import Iptables
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.routing import rules
from kubeproxy.netfilter.routing.watch import RuleWatch
from kubeproxy.netfilter.ruleset import Reach, RuleSet

log = structlog.get_logger(__name__)


class Routed:
    """An adapter that keeps both."""

    def __init__(self, packet_filter: Nftables | Iptables) -> None:
        self._filter = packet_filter
        # Whether our routing rules are there, as far as we know; None: unknown.
        self._believed: bool | None = None
        self._watch: RuleWatch | None = None
        self._on_foreign_change: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """That of the packet filter."""
        return self._filter.name

    async def probe(self) -> None:
        """Try the packet filter without changing anything; KernelError tells why it does not work."""
        await self._filter.probe()

    async def why_not_transparent(self) -> str | None:
        """See `Netfilter.why_not_transparent`."""
        try:
            await self._filter.probe_transparent()
            if rules.add():
                rules.remove()
        except KernelError as error:
            return str(error)
        return None

    async def why_not_guarding_sockets(self) -> str | None:
        """See `Netfilter.why_not_guarding_sockets`."""
        try:
            await self._filter.probe_socket_guard()
        except KernelError as error:
            return str(error)
        return None

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`. What is marked must find its way: routing comes first, and goes last."""
        changed = self._route(wanted=True, verify=verify) if wanted.transparent else False
        changed |= await self._filter.apply(wanted, verify=verify)
        return changed if wanted.transparent else changed | self._route(wanted=False, verify=verify)

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        return await self._filter.reach(ours)

    async def pause(self, for_s: float = GAP_S) -> bool:
        """See `Netfilter.pause`. The routing stays: answers to running connections still need it."""
        return await self._filter.pause(for_s)

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """See `Netfilter.on_foreign_change`. The kernel tells of routing rules at once; that our table's one route has
        gone is found at the next full sync."""
        self._on_foreign_change = callback
        self._filter.on_foreign_change(callback)
        if self._watch is None:
            try:
                self._watch = RuleWatch()
            except OSError as error:
                log.info("the kernel does not tell who removes routing rules; full syncs look", reason=error.strerror)
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
        # What we have removed ourselves we do not believe to be there.
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
