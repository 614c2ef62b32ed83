"""The start on a node on which another instance serves, or has served."""

from __future__ import annotations

import asyncio
import math

import structlog

from kubeproxy.daemon.control_plane import ControlPlane
from kubeproxy.daemon.current_configuration import CurrentConfiguration
from kubeproxy.daemon.data_plane_choice import AnyDataPlane
from kubeproxy.daemon.ownership import Ownership
from kubeproxy.daemon.process_start import Process
from kubeproxy.daemon.takeover.instances import of_other_users
from kubeproxy.daemon.takeover.serves_enough import TakeoverRefusedError
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.cleanup import pause_stale_rules
from kubeproxy.proxier.tracker import START_GRACE_S
from kubeproxy.runtime.keep_running import kept_running

log = structlog.get_logger(__name__)

SOURCES_LOOK_S = 0.02
"""How often a new instance checks whether its sources are complete, so that it can compare itself with its
predecessor."""
OTHERS_LOOK_S = 0.5
"""How often a new instance checks whether earlier instances are still alive."""
FORGET_S, FORGET_SHARE = 2.0, 20
"""How often a new instance deletes the conntrack entries of connections that have left earlier instances, and the
largest part (1/n) of the time that this may take."""


class Succession:
    """The steps by which this instance follows another one."""

    def __init__(
        self,
        configuration: CurrentConfiguration,
        process: Process,
        ownership: Ownership,
        control_plane: ControlPlane,
        data_plane: AnyDataPlane,
    ) -> None:
        self._configuration = configuration
        self._process = process
        self._ownership = ownership
        self._control_plane = control_plane
        self._data_plane = data_plane
        self.refused = asyncio.Event()
        self.refusal: TakeoverRefusedError | None = None
        """Why this instance does not take over. It is set before the event `refused`."""

    async def find_predecessor(self) -> None:
        """Find the owner of the node, if there is one. If no earlier instance lives, remove the redirects that the last
        one left. The rules then drop clients' first packets, so that clients try again until this instance serves."""
        if not self._ownership.has_netfilter:
            return  # Without rules several instances may run side by side.
        self._require_own_user()
        try:
            owner = await self._ownership.takeover.begin(given_up=self._process.signals.stop.is_set)
        except TakeoverRefusedError:
            if not self._process.stands_in:
                raise
            log.info("the other instance is back, ending")
            self._process.signals.stop.set()
            return
        if owner is not None:
            self._data_plane.share(True)
            log.info(
                "taking over from running kubeproxy",
                predecessor=owner.pid,
                version=owner.version,
                services=max(0, owner.offer.services),
                sources=", ".join(owner.offer.sources),
            )
            # Everything is prepared beside the owner. The owner keeps its rules until it is known what this instance
            # would serve.
            await self._control_plane.proxier.hold(True)
        if self._ownership.marker.others():
            # Earlier instances are serving meanwhile, so this one takes over only when its sources are complete.
            self._control_plane.tracker.start_within(math.inf)
            self._process.tasks.start(kept_running("others", self._outlive_others), name="others")
        else:
            await self._disarm()

    async def compare_with_predecessor(self) -> None:
        """Let the rules redirect to this instance if it serves enough. Otherwise refuse the takeover."""
        while not all(self._control_plane.tracker.sources().values()):
            predecessor = self._ownership.predecessor
            if predecessor is None or predecessor.gone:
                break  # Nobody else serves, and some Services are better than none.
            await asyncio.sleep(SOURCES_LOOK_S)
        try:
            self._ownership.takeover.require_enough_services()
        except TakeoverRefusedError as error:
            self.refusal = error
            self.refused.set()
        else:
            await self._control_plane.proxier.hold(False)

    async def recall_later(self) -> None:
        """Serve the state of an earlier run if the sources are not complete soon. This is not done if there is a
        predecessor, whose state is better."""
        await asyncio.sleep(START_GRACE_S)
        if self._ownership.predecessor is None:
            await self._control_plane.state_keeper.recall()

    def _require_own_user(self) -> None:
        """Raise TakeoverRefusedError if another user runs a kubeproxy. It cannot be asked to yield, so the two would
        fight over the rules."""
        if self._configuration.value.kubeproxy.takeover == "force":
            return
        for other in of_other_users():
            raise TakeoverRefusedError("a kubeproxy", f"runs on this host already ({other})")

    async def _outlive_others(self) -> None:
        """Follow earlier instances until they have ended. If they end before the sources are complete, start with what
        is known, because some Services are better than none. Once the rules redirect here, delete conntrack entries
        again and again: those of connections that end at the other instances, and of connections that have moved here,
        because both kinds still name ports of the other instances."""
        others, control_plane, clock = self._ownership.marker.others, self._control_plane, _now
        while not self._ownership.taken.is_set():
            if not others():
                log.warning("earlier instances have ended", serving="what is known", within_s=START_GRACE_S)
                control_plane.tracker.start_within(START_GRACE_S)
                await control_plane.state_keeper.recall()
                return
            await asyncio.sleep(OTHERS_LOOK_S)
        # Entries from before were deleted when the rules were taken over.
        forget_at, open_before = clock() + FORGET_S, -1
        while (live := others()) or open_before or await self._open_from_others():
            if clock() >= forget_at:
                began, open_now = clock(), await self._open_from_others()
                if live or open_now != open_before:
                    await control_plane.proxier.kernel.forget_ended(ours=False)
                open_before = open_now
                forget_at = clock() + max(FORGET_S, FORGET_SHARE * (clock() - began))
            await asyncio.sleep(OTHERS_LOOK_S)
        await control_plane.proxier.kernel.forget_ended(ours=False)

    async def _open_from_others(self) -> int:
        """Return the number of open connections that began at earlier instances."""
        return sum(worker.adopted_open for worker in await self._data_plane.worker_status())

    async def _disarm(self) -> None:
        """Remove redirects to ports at which no process listens any more, because another process might get such a
        port. Rules of the kernel path stay."""
        try:
            for adapter in await pause_stale_rules():
                log.info("earlier run's redirects paused", adapter=adapter)
        except KernelError as error:
            log.warning("cannot remove earlier run's redirects", reason=str(error))


def _now() -> float:
    return asyncio.get_running_loop().time()
