"""Deletes the conntrack entries to failed endpoints, so that their clients' first packets can be sent again.

The kernel has one table of all entries, and dumping it takes long. A client can make a thousand endpoints of its own
fail again and again. So one dump serves all endpoints that wait, tenants take turns if there are many, and dumps may
use only a part of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from kubeproxy.model import Address, Protocol, Target
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.netfilter.conntrack.delete_endpoint_flows import delete_flows_to
from kubeproxy.netfilter.routing.lookup import link_to
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.rescue.fair_turns import Tenants, next_turns
from kubeproxy.rescue.protocol import FreedFlow
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

AT_ONCE: Final = 16
"""For how many endpoints entries are deleted at once. Deletion walks through the kernel's table for each endpoint,
which takes some milliseconds. So the endpoint of another tenant waits at most a tenth of a second."""
SHARE, CREDIT_S = 0.25, 1.0
"""The largest share of time that may be spent on deletions, and how many seconds may be spent without a pause. When a
node with a hundred endpoints dies, the deletions take less."""
PAUSE_MAX_S: Final = 1.0
"""The longest pause. A client that would wait longer retransmits its SYN itself."""
COMPLAIN_S: Final = 60.0
"""How often failed deletions are logged."""


class Budget:
    """Limits the time that is spent on deletions."""

    def __init__(self) -> None:
        self._spent_s, self._at = 0.0, 0.0
        """The seconds spent recently, and the time at which that number was computed. `SHARE` of the time since then is
        subtracted from it."""

    def pause_s(self, began: float, ended: float) -> float:
        """Return how many seconds to pause after work that ran from `began` to `ended`."""
        left_s = max(0.0, self._spent_s - SHARE * (began - self._at))
        self._spent_s, self._at = left_s + ended - began, began
        return min(max(0.0, self._spent_s - CREDIT_S) / SHARE, PAUSE_MAX_S)


class FlowRelease:
    """Runs the deletions of one guardian."""

    def __init__(
        self,
        ejector: Ejector,
        tasks: TaskSet,
        *,
        on_freed: Callable[[Protocol, Target, Sequence[FreedFlow]], None],
    ) -> None:
        """`on_freed` is called when entries to an endpoint have been deleted."""
        self._ejector = ejector
        self._tasks = tasks
        self._on_freed = on_freed
        self._waiting: dict[Protocol, dict[Target, Tenants]] = {protocol: {} for protocol in Protocol}
        self._runs = False
        self._budget = Budget()
        self._complained_at = float("-inf")

    def free(self, protocol: Protocol, target: Target) -> None:
        """Schedule the deletion of the entries to an endpoint. Of TCP, only entries that the endpoint has not answered
        are deleted."""
        self._waiting[protocol].setdefault(target, self._ejector.tenants(protocol, target))
        if not self._runs:
            self._runs = True
            self._tasks.start(self._run(), name="free flows")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(0)  # Failures that are reported in the same turn of the loop share this dump.
            while any(self._waiting.values()):
                began = loop.time()
                for protocol, waiting in self._waiting.items():
                    if some := next_turns(waiting, [], AT_ONCE):
                        for target in some:
                            del waiting[target]
                        await self._delete(protocol, some)
                await asyncio.sleep(self._budget.pause_s(began, loop.time()))
        finally:
            self._runs = False

    async def _delete(self, protocol: Protocol, targets: Sequence[Target]) -> None:
        try:
            deleted = await delete_flows_to(targets, protocol, is_ours=self._ejector.translates)
        except KubeproxyError as error:
            now = asyncio.get_running_loop().time()
            if now - self._complained_at >= COMPLAIN_S:
                self._complained_at = now
                log.warning("cannot free failed flows", reason=str(error))
            return
        for target, flows in deleted.items():
            found = [
                FreedFlow(
                    *(flow.source, flow.source_port, flow.address, flow.port, peer, peer_port),
                    # For UDP there is no copy of the first packet that would name the client's interface.
                    link=_link_to(flow.source) if protocol is Protocol.UDP else None,
                )
                for flow, peer, peer_port in flows
            ]
            self._on_freed(protocol, target, found)


def _link_to(client: Address) -> int | None:
    try:
        return link_to(client)
    except OSError as error:
        log.info("cannot look up a client's route", reason=error.strerror)
        return None
