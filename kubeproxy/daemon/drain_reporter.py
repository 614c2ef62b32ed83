"""Writes this node's drain report: which requests are in effect, and connections that are still open.

The report is a Lease. Nothing waits for it here: while the API server is away the proxy serves on, and
the newest report is written when it is back.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import structlog

from kubeproxy.daemon.report_schedule import HEARTBEAT_S, LEASE_S, ReportSchedule
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.model import Address, Node, ServiceName
from kubeproxy.model.drain import DrainRequests, Want
from kubeproxy.model.drain_report import (
    LEAVING,
    NODE,
    REPORT,
    REPORT_NAMESPACE,
    DrainState,
    NodeReport,
    ServiceReport,
    encode_report,
    lease_name,
)
from kubeproxy.model.errors import KernelError

if TYPE_CHECKING:
    from kubeproxy.kubernetes.client.client import Client

log = structlog.get_logger(__name__)

Count = Callable[[Collection[Address]], Awaitable[Mapping[Address, int]]]
"""Counts open connections to addresses, without zeros."""

LOOK_S: Final = 1.0
"""How often connections are counted while any are asked for."""
LEAVING_LOOK_S: Final = 2.0
"""The same after a takeover: for as long as shutdownGrace at most."""
END_S: Final = 2.0
"""How long the last write at the end may take."""
PATH: Final = f"/apis/coordination.k8s.io/v1/namespaces/{REPORT_NAMESPACE}/leases"


class DrainReporter:
    """The report of this node. `use` switches it on and off, `run` writes it."""

    def __init__(
        self,
        node_name: str,
        *,
        data_plane: DataPlane,
        node: Callable[[], Node | None],
        translated_to: Count | None = None,
        on_written: Callable[[bool], None] = lambda succeeded: None,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """`node` returns the Node object, if it is known. `translated_to` counts the connections that the kernel leads
        to endpoints without the data plane; KernelError when it cannot. `on_written` is called after each write, with
        its success."""
        self._node_name = node_name
        self._data_plane = data_plane
        self._node = node
        self._translated_to = translated_to
        self._on_written = on_written
        self._unix_clock = unix_clock
        self._on = False
        self._drains: Mapping[ServiceName, DrainState] = {}
        self._changed = asyncio.Event()
        self._exists = False
        """Whether the Lease was written, and is not ended."""
        self._role = NODE
        self._complaint = ""
        """The failure of the last write; empty: it succeeded."""
        self._uncounted = False
        """Whether the last count failed."""
        self.open: Mapping[Address, int] = {}
        """Open connections to the endpoints that drain, and those that rollouts ask for, as last counted."""

    def use(self, on: bool) -> None:
        """Whether to report from now on."""
        self._on = on
        self._changed.set()

    def drains_changed(self, drains: Mapping[ServiceName, DrainState]) -> None:
        """What is in effect of the drain requests has changed."""
        self._drains = drains
        self._changed.set()

    @property
    def draining(self) -> frozenset[Address]:
        """The endpoints that drain now."""
        return frozenset(address for state in self._drains.values() for address in state.draining)

    async def run(self, client: Client) -> None:
        """Write the report whenever it is due, until cancelled."""
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
                report, spread_s = await self._report()
                due = schedule.due(report, spread_s, clock())
                if due <= clock():
                    succeeded = await self._write(client, report, LEASE_S)
                    if succeeded:
                        schedule.written(report, clock())
                    else:
                        schedule.failed(clock())
                    continue
                await self._pause(due - clock())

    async def leave(self, client: Client, requests: Callable[[], Mapping[ServiceName, DrainRequests]]) -> None:
        """Count the connections that this instance still has, after another has taken over, until cancelled.

        It reports in a Lease of its own, and only what rollouts may wait for. `requests`: those of all Services."""
        self._role, self._exists = LEAVING, False
        clock = asyncio.get_running_loop().time
        written, expires_soon_at = NodeReport(), math.inf
        while self._on:
            now, found = self._unix_clock(), dict[ServiceName, ServiceReport]()
            for name, of_service in requests().items():
                counted = of_service.addresses(now, Want.DRAIN, Want.COUNT)
                if counted and (open_ := await self._data_plane.open_to(counted)):
                    found[name] = ServiceReport(of_service.generation, open=open_)
            report = NodeReport(found)
            if (report != written or clock() >= expires_soon_at) and await self._write(
                client, report, LEASE_S if found else 1
            ):
                written, expires_soon_at = report, clock() + HEARTBEAT_S if found else math.inf
            await asyncio.sleep(LEAVING_LOOK_S)

    async def end(self, client: Client) -> None:
        """Let the report expire at once: rollouts need not wait for this node any more."""
        if not self._exists:
            return
        self._exists = False
        try:
            async with asyncio.timeout(END_S):
                await self._write(client, NodeReport(), 1)
        except TimeoutError:
            log.info("drain report not ended", expires_in_s=LEASE_S)
        self._exists = False

    async def _pause(self, pause_s: float) -> None:
        """Wait for the next write, for a change, or for the next count."""
        counted = any(state.counted for state in self._drains.values())
        try:
            async with asyncio.timeout(min(pause_s, LOOK_S) if counted else pause_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _report(self) -> tuple[NodeReport, float]:
        """The report now, and the longest spread that any request grants."""
        drains = self._drains
        counted = frozenset(address for state in drains.values() for address in state.counted)
        await self._count(counted)
        services = {
            name: replace(state.report, open={a: self.open[a] for a in state.counted if self.open.get(a)})
            for name, state in drains.items()
        }
        return NodeReport(services), max((state.spread_s for state in drains.values()), default=0.0)

    async def _count(self, counted: frozenset[Address]) -> None:
        """Count the open connections. Where that fails the last counts stay: fewer would let a rollout go on."""
        counts = Counter(await self._data_plane.open_to(counted)) if counted else Counter[Address]()
        if counted and self._translated_to is not None:
            try:
                counts.update(await self._translated_to(counted))
            except KernelError as error:
                if not self._uncounted:
                    log.warning(
                        "connections not counted", reason=str(error), effect="rollouts wait for their time-outs"
                    )
                self._uncounted = True
                return
        self._uncounted = False
        self.open = counts

    async def _write(self, client: Client, report: NodeReport, lease_s: int) -> bool:
        """Write the report; whether the API server took it. A failure is logged once, until it changes."""
        from kubeproxy.kubernetes.client.errors import ApiError
        from kubeproxy.kubernetes.object_client import is_not_found

        try:
            try:
                await self._patch(client, report, lease_s)
            except ApiError as error:
                if not is_not_found(error):
                    raise
                await self._create(client, report, lease_s)
        except ApiError as error:
            self._on_written(False)
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning(
                    "drain report not written, retrying",
                    source="kubernetes",
                    error=str(error),
                    effect="rollouts wait for this node until their time-outs",
                )
            return False
        self._exists = True
        self._on_written(True)
        if self._complaint:
            self._complaint = ""
            log.info("drain report written again", source="kubernetes")
        return True

    async def _patch(self, client: Client, report: NodeReport, lease_s: int) -> None:
        import msgspec

        from kubeproxy.kubernetes.object_client import MERGE

        body = msgspec.json.encode(self._lease(report, lease_s))
        await client.send_json(
            "PATCH", f"{PATH}/{quote(lease_name(self._node_name, self._role))}", body, content_type=MERGE
        )

    async def _create(self, client: Client, report: NodeReport, lease_s: int) -> None:
        import msgspec

        lease = self._lease(report, lease_s)
        lease["metadata"]["name"] = lease_name(self._node_name, self._role)
        await client.send_json("POST", PATH, msgspec.json.encode(lease))

    def _lease(self, report: NodeReport, lease_s: int) -> dict[str, Any]:
        """The fields that this node sets. The Node owns the Lease, so it is deleted with it."""
        from kubeproxy.kubernetes import timestamps

        metadata: dict[str, Any] = {
            "labels": {REPORT: self._role},
            "annotations": {REPORT: encode_report(report)},
        }
        node = self._node()
        if node is not None and node.uid:
            owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
            metadata["ownerReferences"] = [owner]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._node_name,
                "leaseDurationSeconds": lease_s,
                "renewTime": timestamps.microseconds(self._unix_clock()),
            },
        }
