"""The first transaction of a new instance, by which the rules move to it from its predecessor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from kubeproxy.daemon.takeover.predecessor import Predecessor
from kubeproxy.daemon.takeover.takeover import Takeover
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.dataplane.workers.batch import CHUNK_MESSAGES
from kubeproxy.model.errors import KernelError, KubeproxyError
from kubeproxy.netfilter.cleanup import cleanup_all

log = structlog.get_logger(__name__)


class RuleTransfer:
    """The `Handover` (see `kernel_sync`) of the rules from the predecessor, if there is one.

    The steps are: the predecessor sends its session affinity bindings; it stops changing the rules (`Hold`); one
    transaction redirects clients to us; conntrack entries of redirects to the predecessor are deleted; the predecessor
    releases the rest (`Take`). If the transaction fails, or the predecessor still finds redirects to itself, it
    maintains its rules again, and the steps are repeated with the next transaction.

    The entries are deleted before `Take`. If this process ends in between, the predecessor continues, so no client with
    a long-lived UDP socket is sent to a process that has released its ports.

    `adapter` is the name of the packet filter's adapter in use. `on_taken` is called once, when the rules redirect to
    us and the predecessor has released everything.
    """

    def __init__(
        self, takeover: Takeover, data_plane: DataPlane, *, adapter: str, on_taken: Callable[[], None]
    ) -> None:
        self._takeover = takeover
        self._data_plane = data_plane
        self._adapter = adapter
        self._on_taken = on_taken
        self._applied = False
        self.taken = asyncio.Event()
        """Set when the rules redirect to us and the predecessor has released everything."""

    @property
    def _predecessor(self) -> Predecessor | None:
        return self._takeover.predecessor

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """See `Handover.transaction`."""
        if self._applied:
            yield
            return
        await self._restore_bindings()
        if self._predecessor is not None:
            await self._predecessor.hold()
        try:
            yield
        except KubeproxyError:
            if self._predecessor is not None:
                await self._predecessor.resume()
            raise
        self._applied = True

    async def _restore_bindings(self) -> None:
        """Restore the session affinity bindings that the predecessor and orphaned workers send in time. This never
        raises."""
        try:
            bindings = await self._takeover.recall()
            for at in range(0, len(bindings), CHUNK_MESSAGES):
                await self._data_plane.send(bindings[at : at + CHUNK_MESSAGES])
                await asyncio.sleep(0)
            if bindings:
                log.info("session affinity restored", clients=sum(len(part.bindings) for part in bindings))
        except Exception as error:  # No error may stop the takeover.
            log.warning("session affinity not restored", reason=str(error) or repr(error))

    async def complete(self) -> None:
        """See `Handover.complete`."""
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
        """Send `Take`. Return None, or the reason if the predecessor refuses.

        The predecessor refuses while rules redirect to it. If it uses the other adapter, its rules still exist at this
        point, and are removed first.
        """
        take = self._takeover.server.take
        if await predecessor.take(take) is None:
            return None
        try:
            for removed in await cleanup_all(keep=self._adapter):
                log.info("removed rules of the predecessor", what=removed)
        except KernelError as error:
            log.warning("cannot remove rules of predecessor", reason=str(error))
        return await predecessor.take(take)
