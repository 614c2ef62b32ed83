"""The moment at which the rules change hands: netfilter and its flows, as a successor first uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from kubeproxy.daemon.takeover.predecessor import Predecessor
from kubeproxy.daemon.takeover.takeover import Takeover
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.dataplane.workers.batch import CHUNK_MESSAGES
from kubeproxy.model.errors import KernelError, KubeproxyError
from kubeproxy.netfilter.cleanup import cleanup_all
from kubeproxy.netfilter.conntrack.reconcile import Conntrack
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.ruleset import RuleSet

log = structlog.get_logger(__name__)


class RuleTransfer:
    """A `Netfilter` and a `Conntrack` of which the first use turns the rules from the predecessor, if there is one, to
    us: it tells which client stays with which endpoint, it holds still, the one transaction is made, the flows that
    still lead to it are deleted, it gives everything away. Should the transaction fail, or the predecessor still see
    rules that lead to it, it looks after its rules again, and the next apply is the first. Everything else, and
    everything after, is the adapter's own.

    The flows come before the giving: should we die in between, the predecessor goes on as before, and no client that
    keeps its UDP socket is left to a process that has made way.

    `on_taken` is called once, when the rules are ours and the predecessor has given everything away.
    """

    def __init__(
        self,
        netfilter: Netfilter,
        conntrack: Conntrack,
        takeover: Takeover,
        data_plane: DataPlane,
        *,
        on_taken: Callable[[], Awaitable[None]],
    ) -> None:
        self._netfilter = netfilter
        self._conntrack = conntrack
        self._takeover = takeover
        self._predecessor = takeover.predecessor
        self._data_plane = data_plane
        self._on_taken = on_taken
        self._applied = False
        self.taken = asyncio.Event()
        """Set when the rules lead to us, and the predecessor has given everything away."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._netfilter, name)

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`."""
        if self._applied:
            return await self._netfilter.apply(wanted, verify=verify)
        await self._inherit()
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

    async def _inherit(self) -> None:
        """Clients stay with the endpoints that they have had, as far as anybody tells us. It is not worth a failure."""
        try:
            remembered = await self._takeover.recall()
            for at in range(0, len(remembered), CHUNK_MESSAGES):
                await self._data_plane.send(remembered[at : at + CHUNK_MESSAGES])
                await asyncio.sleep(0)
            if remembered:
                log.info("session affinity goes on", clients=sum(len(piece.bindings) for piece in remembered))
        except Exception as error:  # whatever it is, it must not keep us from taking over
            log.warning("session affinity begins anew", reason=str(error) or repr(error))

    async def reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        """See `Conntrack.reconcile`. That it failed does not keep us from taking over: it is tried again."""
        try:
            deleted = await self._conntrack.reconcile(before, now)
        except KubeproxyError:
            await self._take()
            raise
        await self._take()
        return deleted

    async def _take(self) -> None:
        if self.taken.is_set() or not self._applied:
            return
        if self._predecessor is not None:
            if (why := await self._ask_for_all(self._predecessor)) is not None:
                self._applied = False
                await self._predecessor.resume()
                raise KernelError(f"the process that serves this node does not make way: {why}")
            self._predecessor.close()
        self.taken.set()
        await self._on_taken()

    async def _ask_for_all(self, predecessor: Predecessor) -> str | None:
        """Why it does not make way, or None. It looks whether rules still lead to it, and where it uses the other
        adapter, they do: they are removed then, while ours serve."""
        if await predecessor.take() is None:
            return None
        try:
            for removed in await cleanup_all(keep=self._netfilter.name):
                log.info("removed the predecessor's rules", what=removed)
        except KernelError as error:
            log.warning("cannot remove the predecessor's rules", reason=str(error))
        return await predecessor.take()
