"""The control process's part of the rescue: it renews the ``alive`` element of the rules, ejects endpoints, and deletes
their conntrack entries.

What happens after a failure depends on its kind:

- *Refused.* The rescue process has already sent the SYN again. A dial from this node confirms the failure before the
  endpoint is ejected. So forged resets cannot eject an endpoint, and an endpoint that refuses only some clients stays.
- *Unreachable* (TCP). The conntrack entry sends the client to this endpoint until it is deleted; then the SYN is sent
  again. A dial confirms the failure as above.
- *Unreachable* (UDP). This node sends a datagram of its own to confirm the failure. Then the endpoint is ejected for a
  second, because no dial can tell when it works again; its entries are deleted, and the datagrams that the ICMP errors
  quoted are sent again. Without confirmation, one forged error could end all sessions with an endpoint, and have
  datagrams sent in the name of other clients.
- *Without a route.* The kernel drops the packet, or answers with an ICMP error, before any rule knows the endpoint. So
  this process watches routes (`lost_routes`). When a route is removed, a dial finds out whether another route reaches
  the endpoint. A UDP endpoint stays ejected as long as it has no route.
- *Silent.* The endpoint is ejected, its unanswered entries are deleted, and their SYNs are sent again. A dial follows
  soon, and ends the ejection if the endpoint answers. In two cases a dial has to confirm the failure first, while the
  SYNs are already sent again. The first: many endpoints fall silent at once, or this process was late, so that the node
  may be at fault. The second: a dial has reached the endpoint recently, so it is silent only to some clients, as under
  a network policy, and must stay for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import structlog

from kubeproxy.model import Family, Protocol, Target, family_of
from kubeproxy.model.rescue import RescueCounts
from kubeproxy.netfilter import reentry
from kubeproxy.netfilter.nftables.rescue import BRIDGE_S
from kubeproxy.netfilter.nftables.rescue_sets import RescueSets
from kubeproxy.netfilter.routing.lookup import has_route
from kubeproxy.netfilter.routing.route_watch import RouteWatch
from kubeproxy.rescue.dials import Dials
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.rescue.fair_turns import Tenants, has_room
from kubeproxy.rescue.flow_release import FlowRelease
from kubeproxy.rescue.lost_routes import LOOKUPS, Endpoint, LostRoutes
from kubeproxy.rescue.nflog import GROUPS
from kubeproxy.rescue.probe import refuses_datagrams
from kubeproxy.rescue.process import RescueProcess
from kubeproxy.rescue.protocol import Failed, FreedFlow, Reason
from kubeproxy.rescue.silence import Lateness, SilenceWatch
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

RENEW_S: Final = 1.0
"""How often the ``alive`` element is renewed. Its lifetime is long enough for two failed renewals."""
CHECK_S: Final = 0.05
"""How often to check that the rescue process works, and whether the rules have changed."""
LOOK_S: Final = 0.05
"""The interval between two reads of the endpoints' times while an endpoint has not answered yet."""
IDLE_LOOK_S: Final = 0.1
"""The interval between two reads of the endpoints' times otherwise."""
LOOK_SHARE: Final = 0.05
"""The largest share of a processor that reading the times may take. With thousands of endpoints the interval grows
accordingly."""
STEADY_S: Final = 60.0
"""A rescue process that ran at least this long resets the pause before its next start."""
PAUSE_FIRST_S, PAUSE_LIMIT_S = 0.1, 10.0
"""The pause before the second restart in a row, and the longest pause."""
ASKED_MAX: Final = 128
"""To how many UDP endpoints test datagrams may be on their way. One tenant may have half of them."""
FEW: Final = 3
"""Up to this many endpoints of one family that fall silent at the same check are ejected at once. If there are more,
they are dialed first."""
LOST_AT_ONCE: Final = 256
"""How many endpoints are handled at once after a route was removed; the others follow. If it was the default route,
they are all endpoints."""
TRUSTED_S: Final = 10.0
"""For how long after a successful dial silence alone does not eject the endpoint. Each silence causes another dial, so
an endpoint that is silent only to some clients is ejected once and does not flap."""


class Guardian:
    """Runs the rescue process, and acts on its reports."""

    def __init__(
        self,
        ejector: Ejector,
        *,
        on_group: Callable[[int], None],
        in_force: Callable[[int], bool],
        on_crash: Callable[[str, BaseException], None],
        programmed_at: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`on_group` makes the rules report to an NFLOG group. `in_force` returns whether they do so already, and
        `programmed_at` when the rules were last changed."""
        self._ejector = ejector
        self._on_group = on_group
        self._in_force = in_force
        self._programmed_at = programmed_at
        self._tasks = TaskSet(on_crash)
        self._process: RescueProcess | None = None
        self._group = GROUPS[0]
        self._restarts = 0
        self._counts = RescueCounts()
        """The counts of the rescue processes that have ended."""
        self._alive = False
        self._problem: str | None = None
        self._elements: RescueSets | None = None
        self._reentry: reentry.Reentry | None = None
        self.started = asyncio.Event()
        """Set when the first rescue process reads its NFLOG group."""
        self._silence: Mapping[Family, SilenceWatch] = {family: SilenceWatch() for family in Family}
        self._dials = Dials(ejector, self._tasks, on_answered=self._has_answered)
        self._asking: dict[Target, Tenants] = {}
        """The UDP endpoints to which a test datagram is on its way, each with its tenants."""
        self._flows = FlowRelease(ejector, self._tasks, on_freed=self._send_again)

    async def run(self) -> None:
        """Run until cancelled. Traffic does not stop if the rescue fails: it continues as with kube-proxy."""
        self._elements = RescueSets()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_process())
                group.create_task(self._keep_alive())
                group.create_task(self._watch_silence())
                group.create_task(self._probe())
                group.create_task(self._watch_routes())
                group.create_task(self._follow_links())
        finally:
            await self._close()

    @property
    def working(self) -> bool:
        """Return whether the ``alive`` element is in the rules, so that failed connections are rescued."""
        return self._alive

    @property
    def problem(self) -> str | None:
        """Return why failed connections are not rescued. Return None if they are, or if the process is just
        starting."""
        return self._problem

    @property
    def restarts(self) -> int:
        """Return how often the rescue process was started again."""
        return self._restarts

    @property
    def counts(self) -> RescueCounts:
        """Return the sum of the counts of all rescue processes of this guardian."""
        return self._counts if self._process is None else self._counts.plus(self._process.counts)

    async def _close(self) -> None:
        """End the process. The ``alive`` element is left to expire, because another instance may be renewing it by
        now."""
        if self._process is not None:
            await self._process.close()
            self._end_reentry()
            with contextlib.suppress(OSError):  # The next process with this group removes the device.
                reentry.remove(self._group)
        await self._tasks.close()
        if self._elements is not None:
            self._elements.close()
            self._elements = None

    def bridge(self) -> None:
        """Keep the rules alive while this process replaces its program (exec). The rescue process keeps running."""
        if self._alive and self._elements is not None:
            with contextlib.suppress(OSError):  # Without this renewal the rules only become inert sooner.
                self._elements.renew_alive(BRIDGE_S)

    # The rescue process.

    async def _keep_process(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while True:
            began = loop.time()
            try:
                process = self._process = RescueProcess(self._group, on_failed=self._on_failed)
                await process.started
                if process.group is not None:
                    self._begin(process, process.group)
                reason = await asyncio.shield(process.ended)
            except OSError as error:
                reason = f"cannot start: {error.strerror or error}"
            if self._process is not None:
                self._counts = self._counts.plus(self._process.counts)
            self._process = None
            self._end_reentry()
            self._set_alive(False)
            if loop.time() - began >= STEADY_S:
                pause_s = 0.0
            self._problem = f"the rescue process has ended: {reason}"
            log.warning("rescue process has ended", reason=reason, restart_in_s=pause_s)
            await asyncio.sleep(pause_s)
            self._restarts += 1
            pause_s = min(max(PAUSE_FIRST_S, 2 * pause_s), PAUSE_LIMIT_S)

    def _begin(self, process: RescueProcess, group: int) -> None:
        self._group = group
        self._problem = None
        log.info("rescue process started", pid=process.pid, group=group)
        if process.unfiltered is not None:
            log.warning("rescue process unconfined", reason=process.unfiltered)
        try:
            if process.shut_out is not None:
                raise OSError(0, process.shut_out)
            self._reentry = reentry.Reentry(group)
        except OSError as error:
            self._cannot_enter(error)
        self._on_group(group)
        self.started.set()

    async def _follow_links(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                if self._reentry is not None:
                    self._reentry.look()
            except OSError as error:
                self._end_reentry()
                self._cannot_enter(error)

    def _cannot_enter(self, error: OSError) -> None:
        """Record that from now on only clients on this node have their packets sent again. Packets of other clients
        would bypass this node's policies if they entered by anything but the client's own interface."""
        self._problem = f"first packets of clients on other hosts and in pods are not sent again: {error.strerror}"
        log.warning("first packets cannot enter again", reason=error.strerror)

    def _end_reentry(self) -> None:
        if self._reentry is not None:
            self._reentry.close()
            self._reentry = None

    # The rules.

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        renew_at, programmed_at = 0.0, self._programmed_at()
        while True:
            process = self._process
            # A transaction that recreates the table, as after a change by another program, also adds the ``alive``
            # element, for three seconds.
            changed, programmed_at = programmed_at != self._programmed_at(), self._programmed_at()
            if process is None or process.group is None or not process.well:
                self._set_alive(False, anyway=changed)
            elif not self._in_force(process.group):
                self._alive = False  # Another instance may be renewing the element by now.
            elif changed or not self._alive or loop.time() >= renew_at:
                self._set_alive(True)
                renew_at = loop.time() + RENEW_S
            await asyncio.sleep(CHECK_S)

    def _set_alive(self, wanted: bool, *, anyway: bool = False) -> None:
        """Renew or remove the ``alive`` element. With `anyway`, remove it even if this guardian has not added it."""
        if self._elements is None or not (wanted or self._alive or anyway):
            return
        before = self._alive
        try:
            if wanted:
                self._elements.renew_alive()
            else:
                self._elements.remove_alive()
            self._alive = wanted
        except OSError as error:
            # The rules are gone or are being recreated. The element expires by itself.
            self._alive = False
            if before:
                log.warning("cannot renew rescue rules", reason=error.strerror)
        if before != self._alive:
            log.info("rescue of failed connections", working=self._alive)

    # Failures.

    def _on_failed(self, failed: Failed) -> None:
        protocol, target = failed.protocol, failed.endpoint
        if not self._ejector.knows(protocol, target):
            # No Service has the endpoint any more. So a subverted rescue process cannot name other endpoints either.
            return
        if protocol is Protocol.UDP:
            self._confirm_by_datagram(target, failed.reason)
            return
        if failed.reason is Reason.UNREACHABLE:
            self._flows.free(protocol, target)
        self._dials.confirm([target], failed.reason)

    def _confirm_by_datagram(self, target: Target, reason: Reason) -> None:
        if self._ejector.is_ejected(Protocol.UDP, target):
            self._flows.free(Protocol.UDP, target)
            return
        tenants = self._ejector.tenants(Protocol.UDP, target)
        if target not in self._asking and has_room(tenants, self._asking.values(), ASKED_MAX):
            self._asking[target] = tenants
            self._tasks.start(self._eject_if_refused(target, reason), name="confirm a failure")

    async def _eject_if_refused(self, target: Target, reason: Reason) -> None:
        try:
            refused = await refuses_datagrams(target)
        finally:
            del self._asking[target]
        if refused:
            await self._eject_and_free(Protocol.UDP, target, reason)

    def _has_answered(self, target: Target, took_s: float) -> None:
        self._silence[family_of(target.address)].measured(target, took_s)

    async def _eject_and_free(self, protocol: Protocol, target: Target, reason: Reason) -> None:
        if not self._ejector.is_ejected(protocol, target):
            await self._ejector.failed(protocol, target, reason)
        self._flows.free(protocol, target)

    def _send_again(self, protocol: Protocol, target: Target, flows: Sequence[FreedFlow]) -> None:
        if self._process is not None:
            self._process.freed(protocol, target, flows)

    # Silence.

    async def _watch_silence(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s, lateness = LOOK_S, Lateness()
        while True:
            due_at = loop.time() + pause_s
            await asyncio.sleep(pause_s)
            pause_s = LOOK_S
            if not self._alive or self._elements is None:
                continue
            began = loop.time()
            lateness.looked(began - due_at)
            if not lateness.judges:
                continue
            try:
                for family, watch in self._silence.items():
                    stamps = self._elements.stamps(family)
                    silent = watch.look(stamps.asked, stamps.answered, loop.time(), blur_s=stamps.blur_s)
                    self._found_silent(silent, late=lateness.late)
            except OSError as error:
                log.info("cannot read endpoints' times", reason=error.strerror)
                pause_s = RENEW_S
            else:
                pause_s = LOOK_S if any(watch.waiting for watch in self._silence.values()) else IDLE_LOOK_S
            pause_s = max(pause_s, (loop.time() - began) / LOOK_SHARE)

    def _found_silent(self, silent: Sequence[Target], *, late: bool) -> None:
        """Eject the endpoints at once if they are few. If they are many, have a dial confirm them first. The SYNs of
        their clients are sent again without waiting for the dial."""
        known = [target for target in silent if self._ejector.knows(Protocol.TCP, target)]
        fresh = [target for target in known if not self._ejector.is_ejected(Protocol.TCP, target)]
        trusted_since = asyncio.get_running_loop().time() - TRUSTED_S
        doubtful = [target for target in fresh if self._dials.reached_at(target) < trusted_since]
        at_once = set() if late or len(fresh) > FEW else set(doubtful)
        for target in known:
            if target in at_once:
                self._tasks.start(self._eject_and_free(Protocol.TCP, target, Reason.SILENT), name="eject")
            else:
                self._flows.free(Protocol.TCP, target)
        self._dials.confirm([target for target in fresh if target not in at_once], Reason.SILENT)

    # Routes.

    async def _watch_routes(self) -> None:
        """Dial the endpoints that have lost their route, because no rule sees a packet without a route."""
        loop = asyncio.get_running_loop()
        try:
            with contextlib.closing(RouteWatch()) as watch:
                routes = LostRoutes(self._ejector, watch)
                while True:
                    began = loop.time()
                    lost = routes.next(max(0, LOST_AT_ONCE - self._dials.waiting), began)
                    self._have_lost(lost)
                    await asyncio.sleep(max(LOOK_S, (loop.time() - began) / LOOK_SHARE))
        except OSError as error:
            log.info("routes are not followed", reason=error.strerror)

    def _have_lost(self, endpoints: Sequence[Endpoint]) -> None:
        """Dial the TCP endpoints, and eject the UDP endpoints that have no route."""
        routed = {target: has_route(target.address) for _, target in endpoints}
        tcp = [target for protocol, target in endpoints if protocol is Protocol.TCP]
        self._dials.confirm([it for it in tcp if not routed[it]], Reason.UNREACHABLE, anew=True)
        # Only this node may have lost the route. As `SILENT`, the endpoint stays in use if it is the last one.
        self._dials.confirm([it for it in tcp if routed[it]], Reason.SILENT, anew=True)
        for protocol, target in endpoints:
            if protocol is Protocol.UDP and not routed[target]:
                self._tasks.start(self._eject_and_free(protocol, target, Reason.UNREACHABLE), name="eject")

    # Dials of ejected endpoints.

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            datagrams = (target for protocol, target, _ in self._ejector.due() if protocol is Protocol.UDP)
            for target in islice(datagrams, LOOKUPS):  # The others stay due for the next time.
                self._ejector.dialed(Protocol.UDP, target)
                if has_route(target.address):
                    self._tasks.start(self._ejector.answered(Protocol.UDP, target), name="take back")
                else:
                    self._ejector.unanswered(Protocol.UDP, target)
            self._dials.next()
