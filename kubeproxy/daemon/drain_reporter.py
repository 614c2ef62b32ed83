"""Reports to rollouts which of their drain requests are in effect on this node, and how many connections are still
open.

Nothing in the daemon waits for these reports. While the API server is unreachable the proxy continues to serve, and the
newest report is written when the server is back. `report_room` and `report_schedule` limit the size and the rate of
reports, so that requests of tenants cannot overload the API server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from kubeproxy.daemon.cluster_size import ClusterSize
from kubeproxy.daemon.report_lease import ReportLease
from kubeproxy.daemon.report_room import Fitting, fitting, pause_s, room, size_of
from kubeproxy.daemon.report_schedule import ReportSchedule
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.model import Address, Node, ServiceName
from kubeproxy.model.drain_report import (
    LEASE_S,
    LEAVING,
    NODE,
    DrainState,
    NodeReport,
    ServiceReport,
    encode_report,
)
from kubeproxy.model.drain_request import DrainRequests, Want
from kubeproxy.model.errors import KernelError

if TYPE_CHECKING:
    from kubeproxy.kubernetes.client.client import Client

log = structlog.get_logger(__name__)

Count = Callable[[Collection[Address]], Awaitable[Mapping[Address, int]]]
"""A function that counts the open connections to each of these addresses. Addresses without connections are left
out."""

LOOK_S: Final = 1.0
"""How often connections are counted while a drain request needs counts."""
LOOK_SHARE: Final = 0.05
"""The largest share of time that counting may take."""
LEAVING_LOOK_S: Final = 2.0
"""How often the remaining connections are counted after a takeover."""
NODE_LOOK_S: Final = 1.0
"""How often to check for the Node object while it is unknown."""
END_S: Final = 2.0
"""How long the last write may take when the process ends."""


class DrainReporter:
    """The drain report of this node. `use` switches it on and off, and `run` writes it."""

    def __init__(
        self,
        node_name: str,
        *,
        data_plane: DataPlane,
        node: Callable[[], Node | None],
        on_written: Callable[[bool], None] = lambda succeeded: None,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """`node` returns the Node object, or None if it is unknown. `on_written` is called after each attempt to write,
        with True if it succeeded."""
        self._data_plane = data_plane
        self._node = node
        self._unix_clock = unix_clock
        self._make_lease = partial(ReportLease, node_name, node=node, on_written=on_written, unix_clock=unix_clock)
        self._lease = self._make_lease(NODE)
        self._size = ClusterSize()
        self._on = False
        self._drains: Mapping[ServiceName, DrainState] = {}
        self._sizes: Mapping[ServiceName, int] = {}
        """The size of each Service in a report. It is cached because there may be many Services."""
        self._fits = Fitting()
        self._room = 0
        """The size limit for which `_fits` was computed, or 0 if the drains have changed since."""
        self._changed = asyncio.Event()
        self._uncounted = False
        """Whether the last count failed."""
        self._count_s = 0.0
        """How long the last count took."""
        self.open: Mapping[Address, int] = {}
        """The last counts of open connections to draining endpoints, and of other connections for which rollouts
        ask."""

    def use(self, on: bool) -> None:
        """Switch the reports on or off."""
        self._on = on
        self._changed.set()

    def drains_changed(self, drains: Mapping[ServiceName, DrainState]) -> None:
        """Record the drain requests that are in effect now."""
        before, sizes = self._drains, self._sizes
        self._sizes = {
            name: sizes[name] if before.get(name) is state else size_of(name, state) for name, state in drains.items()
        }
        self._drains, self._room = drains, 0
        self._changed.set()

    @property
    def draining(self) -> frozenset[Address]:
        """Return the addresses of the endpoints that are draining."""
        return frozenset(address for state in self._drains.values() for address in state.draining)

    async def run(self, client: Client, translated_to: Count) -> None:
        """Write the report whenever it is due, until cancelled.

        `translated_to` counts the connections on the kernel path, from a reading that began after the call. It raises
        KernelError if it cannot count them.
        """
        clock = asyncio.get_running_loop().time
        while True:
            if not self._on:
                await self.end(client)
                self._changed.clear()
                if not self._on:
                    await self._changed.wait()
                continue
            schedule = ReportSchedule(random.random)
            while self._on:
                self._changed.clear()
                if self._node() is None:
                    await self._pause(NODE_LOOK_S)
                    continue
                await self._size.refresh(client, clock())
                shown, omitted = self._fitting()
                counted = _addresses(shown)
                await self._count(counted, translated_to)
                due = await self._write_if_due(client, schedule, NodeReport(reports(shown, self.open), omitted))
                if (left_s := due - clock()) > 0:
                    await self._pause(min(left_s, max(LOOK_S, self._count_s / LOOK_SHARE)) if counted else left_s)

    async def leave(self, client: Client, requests: Callable[[], Mapping[ServiceName, DrainRequests]]) -> None:
        """After a takeover, report the connections that this old instance still has, until cancelled.

        The report goes into a separate Lease, and has only connections for which rollouts may wait. `requests` returns
        the requests of all Services.
        """
        self._lease, schedule, before = self._make_lease(LEAVING), ReportSchedule(random.random), NodeReport()
        while self._on:
            await self._size.refresh(client, asyncio.get_running_loop().time())
            now = self._unix_clock()
            self.drains_changed({name: _leaving(each, now) for name, each in requests().items()})
            shown, omitted = self._fitting()
            open_ = await self._data_plane.open_to(_addresses(shown))
            # A Service without connections is reported once more, because a rollout waits to hear that the last
            # connection has ended.
            found = {
                name: report
                for name, report in reports(shown, open_).items()
                if report.open or (name in before.services and before.services[name].open)
            }
            is_open = any(report.open for report in found.values())
            if is_open or self._lease.lasts:
                before = NodeReport(found, omitted)
                await self._write_if_due(client, schedule, before, last=not is_open)
            await asyncio.sleep(LEAVING_LOOK_S)

    async def end(self, client: Client) -> None:
        """Make the report expire at once, so that rollouts no longer wait for this node."""
        if not self._lease.lasts:
            return
        try:
            async with asyncio.timeout(END_S):
                await self._lease.write(client, encode_report(NodeReport()), last=True)
        except TimeoutError:
            log.info("drain report not ended", expires_in_s=LEASE_S)
        self._lease.lasts = False

    async def _write_if_due(
        self, client: Client, schedule: ReportSchedule, report: NodeReport, *, last: bool = False
    ) -> float:
        """Write the report if it is due. Return the time of the next call."""
        clock, text = asyncio.get_running_loop().time, encode_report(report)
        due = schedule.due(report, pause_s(self._size.nodes, len(text)), clock())
        if due <= clock():
            if await self._lease.write(client, text, last=last):
                schedule.written(report, clock())
            else:
                schedule.failed(clock())
        return due

    async def _pause(self, pause_s: float) -> None:
        """Wait this many seconds, or until something changes."""
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _fitting(self) -> tuple[Mapping[ServiceName, DrainState], Mapping[str, int]]:
        """Return the Services that fit into a report, and for the others their number by namespace."""
        if (now := room(self._size.nodes)) != self._room:
            self._fits, self._room = fitting(self._sizes, now), now
        return {name: self._drains[name] for name in self._fits.services}, self._fits.omitted

    async def _count(self, counted: frozenset[Address], translated_to: Count) -> None:
        """Count the open connections. If that fails, keep the last counts, because a count that is too low would let a
        rollout continue too early."""
        clock = asyncio.get_running_loop().time
        began = clock()
        counts = Counter(await self._data_plane.open_to(counted)) if counted else Counter[Address]()
        self._count_s = clock() - began
        if counted:
            try:
                counts.update(await translated_to(counted))
            except KernelError as error:
                if not self._uncounted:
                    log.warning(
                        "connections not counted", reason=str(error), effect="rollouts wait for their time-outs"
                    )
                self._uncounted = True
                return
        self._uncounted = False
        self.open = counts


def _leaving(requests: DrainRequests, now: float) -> DrainState:
    """Return what an instance reports about drain requests after it has been replaced."""
    counted = requests.addresses(now, Want.DRAIN, Want.COUNT)
    return DrainState(ServiceReport(requests.generation), counted=counted, draining=frozenset())


def _addresses(states: Mapping[ServiceName, DrainState]) -> frozenset[Address]:
    return frozenset(address for state in states.values() for address in state.counted)


def reports(states: Mapping[ServiceName, DrainState], open_: Mapping[Address, int]) -> dict[ServiceName, ServiceReport]:
    """Return the reports of Services with these counts of open connections."""
    return {
        name: replace(state.report, open={a: open_[a] for a in state.counted if open_.get(a)})
        for name, state in states.items()
    }
