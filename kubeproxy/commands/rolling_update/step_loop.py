"""The loop of a rolling update: scales one controller up and the other down, step by step, until both have their final
size.

Every step is computed from the server's present state. So the loop can start from any state, such as after an
interruption, after a run of kubectl, or after another client has scaled a controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kubeproxy.commands.rolling_update.controller import Controller, DeletedError, UpdateError, UpdateLock
from kubeproxy.commands.rolling_update.drained_deletion import DrainedDeletion
from kubeproxy.commands.rolling_update.progress_output import ProgressOutput
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.commands.rolling_update.snapshot import Snapshot, take
from kubeproxy.commands.rolling_update.step_sizes import Bounds, scale_down, scale_up, trim
from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.deployments.rollout_status import Waiting
from kubeproxy.runtime.backoff import DoublingBackoff

_FIRST_LOOK_S: Final = 0.1


class StalledError(UpdateError):
    """Raised if an update has made no progress for `Pace.timeout_s`."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed and the timeouts of an update, in seconds."""

    update_period_s: float
    """The pause between a step up and the next step down."""
    poll_interval_s: float
    timeout_s: float
    """The longest time without progress. After it, the update fails."""
    min_ready_s: float


class _Moved(Exception):
    """Raised if another client has scaled the controller after the step was computed."""


class StepLoop:
    """Takes the steps of one update. `lock` is on the controller that the command line names first."""

    def __init__(
        self,
        requests: ControllerRequests,
        progress: ProgressOutput,
        lock: UpdateLock,
        pace: Pace,
        drained_deletion: DrainedDeletion | None = None,
    ) -> None:
        self._requests = requests
        self._progress = progress
        self._lock = lock
        self._pace = pace
        self._drained_deletion = drained_deletion
        self._deadline = 0.0
        self._best_ready = 0
        self._last: Snapshot | None = None

    @property
    def last(self) -> Snapshot | None:
        """Return the last snapshot that the loop took, or None if it took none."""
        return self._last

    async def roll(self, up: Controller, down: Controller | None, limits: Bounds) -> None:
        """Take steps until `up` has the desired size and `down` has no pods. `down` is None if it is already deleted.

        Raise `StalledError`, `DeletedError`, `RivalUpdateError`, StatusError or UnreachableError.
        """
        self._extend_deadline()
        snapshot = await self._look(up, down)
        if self._drained_deletion is not None:
            await self._drained_deletion.begin(snapshot.active)
        sizes = snapshot.sizes
        self._progress.event(
            "begin",
            f"Scaling up {up.name} from {sizes.new} to {limits.desired},"
            f" scaling down {down.name if down else 'nothing'} from {sizes.old} to 0"
            f" (keep {limits.least_ready} pods available, don't exceed {limits.most} pods)",
            new=up.name,
            old=down.name if down else None,
            desired=limits.desired,
            least=limits.least_ready,
            most=limits.most,
        )
        while not snapshot.is_done(limits):
            stepped = await self._grow(snapshot, limits)
            snapshot = await self._look(up, down)
            if snapshot.is_done(limits):
                break
            if stepped:
                snapshot = await self._pause(up, down, limits)
            if snapshot.sizes.old:
                stepped = await self._shrink(snapshot, limits) or stepped
                snapshot = await self._look(up, down)
            if stepped:
                self._extend_deadline()
            else:
                await self._wait(snapshot, limits)
                snapshot = await self._look(up, down)
        await self._synced(up.name, limits.desired)

    # Steps

    async def _grow(self, snapshot: Snapshot, limits: Bounds) -> bool:
        up, sizes = snapshot.up.controller, snapshot.sizes
        size = scale_up(limits, sizes) if sizes.new <= limits.desired else trim(limits, sizes)
        if size == sizes.new:
            return False
        direction = "up" if size > sizes.new else "down"
        self._progress.event(
            f"scale-{direction}", f"Scaling {up.name} {direction} to {size}", controller=up.name, replicas=size
        )
        return await self._scale(up, size)

    async def _shrink(self, snapshot: Snapshot, limits: Bounds) -> bool:
        side = snapshot.down
        assert side is not None
        down, sizes = side.controller, snapshot.sizes
        size = scale_down(limits, sizes)
        if size == sizes.old:
            return False
        gone: Sequence[Pod] = ()
        if self._drained_deletion is not None:
            number = len(side.active) - size
            gone = await self._drained_deletion.retire(side.active, number)
            size += number - len(gone) if gone else 0
            again = await self._look(snapshot.up.controller, down)
            if again.sizes.old != sizes.old or scale_down(limits, again.sizes) > size:
                await self._drained_deletion.put_back(gone)
                # Pods may have become unready meanwhile, or another client may have scaled a controller: compute the
                # step again.
                return False
            assert again.down is not None
            down = again.down.controller
        self._progress.event("scale-down", f"Scaling {down.name} down to {size}", controller=down.name, replicas=size)
        if self._drained_deletion is not None:
            await self._check_lock(down.name)
            await self._drained_deletion.delete(gone)
        done = await self._scale(down, size)
        if not done and self._drained_deletion is not None:
            await self._drained_deletion.put_back(gone)
        return done

    async def _scale(self, controller: Controller, size: int) -> bool:
        """Scale the controller, and wait until it has that many pods. Return False if another client has changed the
        size meanwhile."""
        before = controller.replicas

        def change(found: Controller) -> None:
            if found.name == self._lock.name:
                self._lock.check(found)
            if found.replicas not in (before, size):
                raise _Moved
            found.spec["replicas"] = size

        await self._check_lock(controller.name)
        try:
            await self._requests.update(controller, change)
        except _Moved:
            return False
        self._extend_deadline()
        await self._synced(controller.name, size)
        return True

    async def _check_lock(self, name: str) -> None:
        """Check the lock before a write to the controller `name`, and raise RivalUpdateError if another run has taken
        the lock over. If the lock is on this controller, the write itself checks it."""
        if name != self._lock.name and (anchor := await self._requests.get(self._lock.name)) is not None:
            self._lock.check(anchor)

    # Waits

    async def _synced(self, name: str, size: int) -> None:
        """Wait until the controller has as many pods as its spec says, or another client has changed the size. Raise
        `StalledError` if that takes too long."""
        end = self._clock() + self._pace.timeout_s
        backoff = DoublingBackoff(first_s=_FIRST_LOOK_S, limit_s=self._pace.poll_interval_s)
        while True:
            found = await self._requests.get(name)
            if found is None:
                raise DeletedError(name)
            if found.replicas != size or found.synced:
                return
            reason = f": {found.failure}" if found.failure else ""
            if not found.observed:
                reason = "; the controller manager has not acted on it: does it run?"
            self._progress.waits(Waiting(f"{name} to have {size} pods (it has {found.present}){reason}", None))
            if self._clock() > end:
                raise StalledError(
                    f'timed out waiting for "{name}" to be synced: it has {found.present} of {size} pods{reason}'
                )
            await asyncio.sleep(backoff.next())

    async def _pause(self, up: Controller, down: Controller | None, limits: Bounds) -> Snapshot:
        """Wait for the update period. Return the last snapshot."""
        end = self._clock() + self._pace.update_period_s
        while True:
            snapshot = await self._look(up, down)
            left = end - self._clock()
            if left <= 0:
                return snapshot
            self._progress.waits(snapshot.waiting() or Waiting("the update period to be over", None))
            await asyncio.sleep(min(left, self._pace.poll_interval_s))

    async def _wait(self, snapshot: Snapshot, limits: Bounds) -> None:
        """Wait for the poll interval, because no step is possible. Raise `StalledError` if there was no progress for
        too long."""
        sizes = snapshot.sizes
        if scale_up(limits, replace(sizes, ending=0)) > sizes.new:
            # Only ending pods prevent the next step, and their grace period ends by itself, so this is not a stall.
            self._extend_deadline()
        waiting = snapshot.waiting()
        self._progress.waits(waiting or Waiting("a step to become possible", None))
        if self._clock() > self._deadline:
            why = f"; it waits for {waiting.text}" if waiting is not None else ""
            raise StalledError(f"timed out waiting for any update progress to be made{why}")
        await asyncio.sleep(self._pace.poll_interval_s)

    async def _look(self, up: Controller, down: Controller | None) -> Snapshot:
        """Return the present state of both controllers and their pods. Raise `DeletedError` if a controller is gone or
        another object has its name."""
        now_up = await self._same(up)
        now_down = None if down is None else await self._same(down)
        up_pods = await self._requests.pods(now_up.selector)
        down_pods = [] if now_down is None else await self._requests.pods(now_down.selector)
        snapshot = take(
            now_up, up_pods, now_down, down_pods, min_ready_s=self._pace.min_ready_s, now=self._requests.now()
        )
        self._last = snapshot
        if snapshot.up.ready > self._best_ready:
            self._best_ready = snapshot.up.ready
            self._deadline = self._clock() + self._pace.timeout_s
        self._progress.see(snapshot)
        return snapshot

    async def _same(self, controller: Controller) -> Controller:
        found = await self._requests.get(controller.name)
        if found is None or found.uid != controller.uid:
            raise DeletedError(controller.name)
        if found.name == self._lock.name:
            self._lock.check(found)
        return found

    def _extend_deadline(self) -> None:
        self._deadline = self._clock() + self._pace.timeout_s

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()
