"""The first use of netfilter by a new instance: the rules move from its predecessor to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from kubeproxy.daemon.takeover.predecessor import Predecessor
from kubeproxy.daemon.takeover.takeover import Takeover
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.dataplane.workers.batch import CHUNK_MESSAGES
from kubeproxy.model.errors import KernelError, KubeproxyError
from kubeproxy.netfilter.cleanup import cleanup_all
from kubeproxy.netfilter.conntrack.stale_flows import Conntrack
from kubeproxy.netfilter.interface import PAUSE_S, Feature, Netfilter
from kubeproxy.netfilter.ruleset import Reach, Rebalance, RuleSet

log = structlog.get_logger(__name__)


class RuleTransfer(Netfilter, Conntrack):
    """A `Netfilter` and a `Conntrack`. Their first use takes the rules over from the predecessor, if there is one.

    The steps are: the predecessor sends its session affinity; it leaves the rules alone (`Hold`); one transaction
    redirects clients to us; the flows that still lead to the predecessor are deleted; it releases the rest (`Take`). If
    the transaction fails, or the predecessor still sees rules that lead to it, the predecessor maintains its rules
    again, and the next `apply` is the first. Every other call, and every later one, goes to the adapter.

    The flows come before `Take`, so that if this process ends in between, the predecessor continues and no client that
    keeps its UDP socket is left to a process that has released its ports.

    `on_taken` is called once, when the rules lead to us and the predecessor has released everything.
    """

    def __init__(
        self,
        netfilter: Netfilter,
        conntrack: Conntrack,
        takeover: Takeover,
        data_plane: DataPlane,
        *,
        on_taken: Callable[[], None],
    ) -> None:
        self._netfilter = netfilter
        self._conntrack = conntrack
        self._takeover = takeover
        self._data_plane = data_plane
        self._on_taken = on_taken
        self._applied = False
        self.taken = asyncio.Event()
        """Set when the rules lead to us, and the predecessor has released everything."""

    @property
    def _predecessor(self) -> Predecessor | None:
        return self._takeover.predecessor

    @property
    def name(self) -> str:
        """See `Netfilter.name`."""
        return self._netfilter.name

    async def rebalance(self, change: Rebalance) -> bool:
        """See `Netfilter.rebalance`."""
        return await self._netfilter.rebalance(change) if self._applied else False

    async def why_not(self, feature: Feature) -> str | None:
        """See `Netfilter.why_not`."""
        return await self._netfilter.why_not(feature)

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        return await self._netfilter.reach(ours)

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """See `Netfilter.pause`."""
        return await self._netfilter.pause(for_s)

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """See `Netfilter.on_foreign_change`."""
        self._netfilter.on_foreign_change(callback)

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        return await self._netfilter.cleanup()

    async def close(self) -> None:
        """See `Netfilter.close`."""
        await self._netfilter.close()

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`."""
        if self._applied:
            return await self._netfilter.apply(wanted, verify=verify)
        await self._restore_bindings()
        if self._predecessor is not None:
            await self._predecessor.hold()
        try:
            changed = await self._netfilter.apply(wanted, verify=verify)
        except KubeproxyError:
            if self._predecessor is not None:
                await self._predecessor.resume()
            raise
        self._applied = True
        return changed

    async def _restore_bindings(self) -> None:
        """Keep clients with their endpoints, as far as the predecessor and orphaned workers answer. This never
        fails."""
        try:
            bindings = await self._takeover.recall()
            for at in range(0, len(bindings), CHUNK_MESSAGES):
                await self._data_plane.send(bindings[at : at + CHUNK_MESSAGES])
                await asyncio.sleep(0)
            if bindings:
                log.info("session affinity restored", clients=sum(len(part.bindings) for part in bindings))
        except Exception as error:  # No error may stop the takeover.
            log.warning("session affinity not restored", reason=str(error) or repr(error))

    async def reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        """See `Conntrack.reconcile`. A failure does not stop the takeover, because the caller tries again."""
        try:
            deleted = await self._conntrack.reconcile(before, now)
        except KubeproxyError:
            await self._take()
            raise
        await self._take()
        return deleted

    async def forget_ended(self, rules: RuleSet, *, ours: bool) -> int:
        """See `Conntrack.forget_ended`."""
        return await self._conntrack.forget_ended(rules, ours=ours)

    async def _take(self) -> None:
        if self.taken.is_set() or not self._applied:
            return
        if self._predecessor is not None:
            if (reason := await self._send_take(self._predecessor)) is not None:
                self._applied = False
                await self._predecessor.resume()
                raise KernelError(f"the predecessor refuses the takeover: {reason}")
            self._predecessor.close()
        self.taken.set()
        self._on_taken()

    async def _send_take(self, predecessor: Predecessor) -> str | None:
        """Send `Take`. Return why the predecessor refuses it, or None.

        It refuses while rules lead to it. If it uses the other adapter, its rules still exist and are removed first.
        """
        take = self._takeover.server.take
        if await predecessor.take(take) is None:
            return None
        try:
            for removed in await cleanup_all(keep=self._netfilter.name):
                log.info("removed rules of the predecessor", what=removed)
        except KernelError as error:
            log.warning("cannot remove rules of predecessor", reason=str(error))
        return await predecessor.take(take)
