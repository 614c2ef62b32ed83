"""Adds the connections and bytes of the kernel path to the data plane's counters, for the status and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import structlog
from msgspec.structs import replace

from kubeproxy.daemon.flow_accounting import NO_FLOWS, FlowAccounting, FlowCounts
from kubeproxy.dataplane.interface import NOTHING, Counters
from kubeproxy.model import FrontendName, Traffic
from kubeproxy.model.errors import KernelError
from kubeproxy.model.snapshot import DataPath, FrontendState
from kubeproxy.netfilter.nftables.execute import NotFoundError
from kubeproxy.netfilter.nftables.spread_counters import new_connections
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.runtime.time_slice import TimeSlice

log = structlog.get_logger(__name__)

FRESH_S: Final = 2.0
"""The shortest time between two readings of the kernel's counters."""
SHARE: Final = 0.05
"""The largest share of time that readings may take. With thousands of Services they are less frequent."""
SLICE_S: Final = 0.002
"""How many seconds of work are done between two yields to the event loop."""


class KernelTraffic:
    """The sums of each frontend's connections on the kernel path since `begin`.

    After `begin`, the counters are read only when a status or a scrape asks. The kernel restarts the counter of a
    destination when the number of its endpoints changes. What the counter has counted since the last reading is then
    lost.
    """

    def __init__(
        self,
        frontends: Callable[[], Collection[FrontendState]],
        flows: FlowAccounting,
        *,
        read: Callable[[Collection[Traffic] | None], Awaitable[Mapping[Traffic, int]]] = new_connections,
    ) -> None:
        self._frontends = frontends
        self._flows = flows
        self._read = read
        self._before: Mapping[Traffic, int] = {}
        self._older: dict[Traffic, int] | None = None
        """The values of the kernel's counters at `begin`, for traffic that has not been read since. It is None before
        `begin`."""
        self._not_begun = ""
        """Why `begin` could not read the counters. It is empty if `begin` succeeded or was not called."""
        self._sums: dict[FrontendName, int] = {}
        self._flow_counts: Mapping[FrontendName, FlowCounts] = {}
        self._next_at = float("-inf")
        self._one_at_a_time = asyncio.Lock()
        self._log = RateLimitedLog(log)

    async def begin(self) -> None:
        """Start to count. The kernel's counters outlive processes, so their present values are from earlier processes
        or from times without one.

        If the counters cannot be read now, counting starts with the next reading for a frontend on the kernel path.
        """
        try:
            self._older = dict(await self._read(None))
            self._not_begun = ""
        except NotFoundError:  # The table does not exist yet.
            self._older, self._not_begun = {}, ""
        except KernelError as error:
            self._not_begun = str(error)

    async def added_to(self, counters: Mapping[FrontendName, Counters]) -> Mapping[FrontendName, Counters]:
        """Return the counters with `by_kernel` added. Without a kernel path, return the same object."""
        async with self._one_at_a_time:
            loop = asyncio.get_running_loop()
            if (began := loop.time()) >= self._next_at:
                await self._count()
                now = loop.time()
                self._next_at = now + max(FRESH_S, (now - began) / SHARE)
        sums, flows = self._sums, self._flow_counts
        if not (sums or flows):
            return counters
        found = {name: _with(counters.get(name), sums.get(name, 0), flows.get(name)) for name in {*sums, *flows}}
        return {**counters, **found}

    async def _count(self) -> None:
        shown, time_slice = self._frontends(), TimeSlice(SLICE_S)
        belongs: dict[Traffic, FrontendName] = {}
        for status in shown:
            if status.data_path is DataPath.KERNEL:
                frontend = status.frontend
                belongs.update((Traffic(*item), frontend.name) for item in frontend.destinations.items())
            await time_slice.offer()
        known = {status.frontend.name for status in shown}
        await self._flows.refresh()
        self._flow_counts = self._flows.counts(known)
        self._sums = {name: count for name, count in self._sums.items() if name in known}
        if not belongs:
            self._before = {}
            return
        if self._not_begun:
            # A host without nf_tables has no frontend on the kernel path, and never comes here.
            self._log.warning("kernel path not counted", reason=self._not_begun)
            await self.begin()
        if self._older is None:
            return
        try:
            now = await self._read(belongs.keys())
        except KernelError as error:
            self._log.warning("kernel path not counted", reason=str(error))
            return
        for traffic, count in now.items():
            older = self._older.pop(traffic, 0)
            before = self._before.get(traffic, older)
            grown = count - before if count >= before else count
            if grown:
                name = belongs[traffic]
                self._sums[name] = self._sums.get(name, 0) + grown
        self._before = now


def _with(counters: Counters | None, count: int, flows: FlowCounts | None) -> Counters:
    now = flows or NO_FLOWS
    return replace(
        counters or NOTHING,
        by_kernel=count,
        kernel_open=now.open,
        kernel_bytes_in=now.bytes_in,
        kernel_bytes_out=now.bytes_out,
    )
