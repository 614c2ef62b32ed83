"""The start on a node where another instance serves, or has served."""

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
"""How often a new instance checks whether its sources are complete, before it compares itself with its predecessor."""
OTHERS_LOOK_S = 0.5
"""How often a start checks whether earlier instances are still alive."""
FORGET_S, FORGET_SHARE = 2.0, 20
"""How often a start deletes the conntrack entries of connections that earlier instances end, and the share of the time
(one part in this many) that this may take."""


class Succession:
    """The steps with which this instance follows another one."""

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
        """Why this instance does not take over. It is set together with `refused`."""

    async def find_predecessor(self) -> None:
        """Find the owner of the node, if there is one. If there is no earlier instance, clients wait until this one
        serves."""
        if not self._ownership.has_netfilter:
            return  # No rules lead to such instances, so several of them may run side by side.
        self._require_own_user()
        owner = await self._ownership.takeover.begin(given_up=self._process.signals.stop.is_set)
        if owner is not None:
            self._data_plane.share(True)
            log.info(
                "taking over from running kubeproxy",
                predecessor=owner.pid,
                version=owner.version,
                services=max(0, owner.offer.services),
                sources=", ".join(owner.offer.sources),
            )
            # Everything is prepared beside the owner. The rules stay the owner's until it is known what this instance
            # would serve.
            await self._control_plane.proxier.hold(True)
        if self._ownership.marker.others():
            # The earlier instances serve meanwhile, so this one takes over only when everything is known.
            self._control_plane.tracker.start_within(math.inf)
            self._process.tasks.start(kept_running("others", self._outlive_others), name="others")
        else:
            await self._disarm()

    async def compare_with_predecessor(self) -> None:
        """Let the rules lead here if this instance serves enough; otherwise refuse the takeover."""
        while not all(self._control_plane.tracker.sources().values()):
            predecessor = self._ownership.predecessor
            if predecessor is None or predecessor.gone:
                break  # Some Services are better than none.
            await asyncio.sleep(SOURCES_LOOK_S)
        try:
            self._ownership.takeover.require_enough_services()
        except TakeoverRefusedError as error:
            self.refusal = error
            self.refused.set()
        else:
            await self._control_plane.proxier.hold(False)

    async def recall_later(self) -> None:
        """Serve the state of an earlier run if the sources are not complete soon. A predecessor would serve a better
        state."""
        await asyncio.sleep(START_GRACE_S)
        if self._ownership.predecessor is None:
            await self._control_plane.state_keeper.recall()

    def _require_own_user(self) -> None:
        """Raise TakeoverRefusedError if a kubeproxy of another user runs. It cannot be asked to yield, so the two would
        fight over the rules."""
        if self._configuration.value.kubeproxy.takeover == "force":
            return
        for other in of_other_users():
            raise TakeoverRefusedError("a kubeproxy", f"runs on this host already ({other})")

    async def _outlive_others(self) -> None:
        """Start with what is known if earlier instances end first, because some Services are better than none. Once the
        rules lead here, delete the conntrack entries of the connections that the other instances end, and of those that
        have moved here from them, because both kinds lead to ports of the other instances."""
        others, control_plane, clock = self._ownership.marker.others, self._control_plane, _now
        while not self._ownership.taken.is_set():
            if not others():
                log.warning("earlier instances have ended", serving="what is known", within_s=START_GRACE_S)
                control_plane.tracker.start_within(START_GRACE_S)
                await control_plane.state_keeper.recall()
                return
            await asyncio.sleep(OTHERS_LOOK_S)
        # Everything of before has been deleted when the rules were taken.
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
        """Return the number of open connections that earlier instances have begun."""
        return sum(worker.adopted_open for worker in await self._data_plane.worker_status())

    async def _disarm(self) -> None:
        """Remove redirects to ports that no process has any more, and that another process may get. What the kernel
        leads to endpoints by itself stays."""
        try:
            for adapter in await pause_stale_rules():
                log.info("earlier run's redirects paused", adapter=adapter)
        except KernelError as error:
            log.warning("cannot remove earlier run's redirects", reason=str(error))


def _now() -> float:
    return asyncio.get_running_loop().time()
