"""Runs the rescue of failed connections while the configuration wants the kernel path (docs/rescue.md).

This module connects the guardian, which notices failures, with the proxier, which changes the rules. Endpoints that
workers have ejected on the userspace path are ejected on the kernel path as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable

import structlog

from kubeproxy.daemon.data_path_policy import DataPaths
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.model import Target
from kubeproxy.model.rescue import RescueCounts, RescueState
from kubeproxy.netfilter.conntrack.sysctls import ConntrackLimits, tcp_timeouts
from kubeproxy.netfilter.interface import Feature, Netfilter
from kubeproxy.netfilter.nftables.rescue import BRIDGE_S
from kubeproxy.proxier.data_path_choice import Wanted
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.rescue.guardian import Guardian
from kubeproxy.rescue.kernel_path_ejections import Endpoint

log = structlog.get_logger(__name__)

WORKERS_LOOK_S = 2.0
"""How often the ejections by workers are read."""
FORGET_S = 1.0
"""How often endpoints that no Service has any more are forgotten."""
READY_S = BRIDGE_S
"""How long the rescue may take to be ready in a takeover, a start after a re-exec, or a change to the kernel path.
On a busy node the rescue process takes seconds to start. For the same time the rules of the previous program are
kept alive."""
FORGOTTEN = {"close": 0}
"""The conntrack timeouts with which the kernel forgets a connection as soon as its endpoint has reset it. Otherwise a
client that uses the same port again would be sent to the same endpoint, which may be dead by now, and would see the
refusal."""
GAP_S = 3.0
"""How long the rescue may be interrupted before `auto` leaves the kernel path. A restart of the rescue process takes
less."""


class Rescue:
    """Starts and stops the guardian, and connects it with the proxier."""

    def __init__(
        self,
        *,
        netfilter: Netfilter,
        proxier: Proxier,
        data_plane: DataPlane,
        data_paths: DataPaths,
        limits: ConntrackLimits,
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        """`limits` are the configured settings of connection tracking."""
        self._netfilter = netfilter
        self._proxier = proxier
        self._data_plane = data_plane
        self._limits = limits
        self._data_paths = data_paths
        self._on_crash = on_crash
        self._ejector = Ejector(proxier.view, proxier, data_plane)
        self._guardian: Guardian | None = None
        self._changed = asyncio.Event()
        self._why_not: str | None = None
        self._ready = asyncio.Event()
        self._counts = RescueCounts()
        """The sums of the counts of earlier guardians."""
        self._restarts = 0
        """How often the rescue processes of earlier guardians were restarted."""
        self._worked = False
        self._changed_at = _now()

    def policy_changed(self) -> None:
        """Start or stop the rescue according to the policy of data paths."""
        self._changed.set()

    async def run(self) -> None:
        """Run the rescue, if it is wanted, until cancelled."""
        while True:
            self._changed.clear()
            if self._wanted:
                self._why_not = await self._netfilter.why_not(Feature.RESCUE)
                if self._why_not is None:
                    await self._guard()
                else:
                    log.warning("failed connections are not rescued", reason=self._why_not)
                    self._data_paths.cease_waiting()
            self._ready.set()
            await self._changed.wait()

    async def ready(self) -> None:
        """Wait until the rules can report failures, if they are to do that. Wait for at most `READY_S` seconds.

        Without this wait, clients would meet dead endpoints after a start, a takeover or a re-exec.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                await self._ready.wait()

    def bridge(self) -> None:
        """Keep the rescue working while this process replaces its program (exec)."""
        if self._guardian is not None:
            self._guardian.bridge()

    async def restore(self, target: Target) -> bool:
        """End the ejections of an endpoint on both data paths. Return whether there were any."""
        return await self._ejector.restore(target)

    def state(self) -> RescueState | None:
        """Return the state for the status and metrics, or None if the kernel path is not configured."""
        if self._data_paths.policy.wanted is Wanted.USERSPACE:
            return None
        guardian = self._guardian
        self._note(guardian is not None and guardian.working)
        problem = (
            self._data_paths.policy.refusal or self._why_not or (guardian.problem if guardian is not None else None)
        )
        return RescueState(
            working=self._worked,
            changed_at=self._changed_at,
            problem=problem or "",
            restarts=self._restarts + (0 if guardian is None else guardian.restarts),
            counts=self._counts if guardian is None else self._counts.plus(guardian.counts),
            ejections=self._ejector.totals,
            ejected=dict(self._ejector.ejected.items()),
        )

    def _note(self, working: bool) -> None:
        """Record whether the rescue works, and since when."""
        if working is not self._worked:
            self._worked, self._changed_at = working, _now()

    def complaint(self) -> str | None:
        """Return why failed connections of the kernel path are not rescued, or None if they are or if there is no
        kernel path."""
        if not self._wanted:
            return None
        if self._why_not is not None:
            return f"failed connections are not rescued: {self._why_not}"
        return self._guardian.problem if self._guardian is not None else None

    @property
    def _wanted(self) -> bool:
        policy = self._data_paths.policy
        return policy.wanted is not Wanted.USERSPACE and not policy.refusal

    async def _guard(self) -> None:
        """Run the guardian as long as the kernel path is wanted."""
        guardian = self._guardian = Guardian(
            self._ejector,
            on_group=self._report_to,
            in_force=self._proxier.kernel.reports_to,
            on_crash=self._on_crash,
            programmed_at=lambda: self._proxier.kernel.programmed_at,
        )
        try:
            async with asyncio.TaskGroup() as group:
                parts = [
                    group.create_task(self._await_start(guardian)),
                    group.create_task(guardian.run()),
                    group.create_task(self._watch_workers()),
                    group.create_task(self._watch_health(guardian)),
                ]
                while self._wanted:
                    self._changed.clear()
                    await self._changed.wait()
                for part in parts:
                    part.cancel()
        finally:
            self._counts = dataclasses.replace(self._counts.plus(guardian.counts), held=0)
            self._restarts += guardian.restarts
            self._guardian = None
            self._note(False)
            self._report_to(None)
            self._data_paths.use_rescue(works=False)
            await self._ejector.forget_all()

    def _report_to(self, group: int | None) -> None:
        """Set the NFLOG group to which the rules report failed connections, or None for no reports."""
        timeouts = {} if group is None else {**tcp_timeouts(self._limits), **FORGOTTEN}
        self._proxier.use(dataclasses.replace(self._proxier.settings, rescue_group=group, tcp_timeouts=timeouts))

    async def _await_start(self, guardian: Guardian) -> None:
        await guardian.started.wait()
        self._ready.set()

    async def _watch_health(self, guardian: Guardian) -> None:
        """Let `auto` use the kernel path only while failed connections are rescued."""
        began, worked_at = _now(), float("-inf")
        while True:
            now = _now()
            working = guardian.working
            self._note(working)
            if working:
                worked_at = now
            self._data_paths.use_rescue(works=now - worked_at <= GAP_S)
            if now - began > READY_S:
                self._data_paths.cease_waiting()
            self._ejector.forget(now)
            self._ejector.log_others(now)
            await asyncio.sleep(FORGET_S)

    async def _watch_workers(self) -> None:
        """Eject the endpoints that workers newly eject, until cancelled."""
        before: frozenset[Endpoint] = frozenset()
        while True:
            await asyncio.sleep(WORKERS_LOOK_S)
            found: dict[Endpoint, str] = {}
            for name, ejected in (await self._data_plane.ejected()).items():
                if (protocol := self._proxier.view.protocol_of(name)) is not None:
                    found.update((Endpoint(protocol, each.target), each.reason) for each in ejected)
            # If a dial of the guardian has ended an ejection, a worker that still has the endpoint ejected does not
            # eject it again.
            await self._ejector.noticed({each: reason for each, reason in found.items() if each not in before})
            before = frozenset(found)


def _now() -> float:
    return asyncio.get_running_loop().time()
