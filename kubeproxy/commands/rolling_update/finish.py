"""Ends an update: deletes or keeps the old controller, removes the marks, and may give the new controller the old name.

Only the last write removes the marks, because a later run needs them to continue. Names cannot be changed, so a
controller is renamed by creating it again under the other name. At every moment, a complete specification must exist,
and no two controllers may select the same pods. So first the successor is created with size 0 and a selector that
matches no pod. Then the original is deleted without its pods. Then one write gives the successor the real selector and
size, and it adopts the pods.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kubeproxy.commands.rolling_update.controller import (
    DESIRED_REPLICAS,
    RENAMED_FROM,
    Controller,
    DeletedError,
    UpdateError,
    UpdateLock,
    without_marks,
)
from kubeproxy.commands.rolling_update.new_controller import fresh
from kubeproxy.commands.rolling_update.progress_output import ProgressOutput
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.controllers.deployments.rollout_status import Waiting
from kubeproxy.kubernetes.resource_builder.errors import quoted
from kubeproxy.runtime.backoff import DoublingBackoff

_FIRST_LOOK_S: Final = 0.1


class Finish:
    """Makes the writes after the last step."""

    def __init__(
        self,
        requests: ControllerRequests,
        progress: ProgressOutput,
        lock: UpdateLock,
        *,
        poll_interval_s: float,
        timeout_s: float,
    ) -> None:
        self._requests = requests
        self._progress = progress
        self._lock = lock
        self._poll_interval_s = poll_interval_s
        self._timeout_s = timeout_s

    async def delete(self, gone: Controller | None, kept: Controller) -> Controller:
        """Delete `gone`, which is None if it is already deleted, and remove the marks from `kept`, which keeps its
        name."""
        if gone is not None:
            self._progress.event("delete", f"Update succeeded. Deleting {gone.name}", controller=gone.name)
            await self._delete_empty(gone)
        return await self._requests.update(await self._newest(kept), without_marks)

    async def preserve(self, old: Controller, new: Controller) -> Controller:
        """Keep both controllers, and remove the marks of the update."""
        self._progress.event("preserve", f"Update succeeded. {old.name} stays without pods", controller=old.name)
        survivor = await self._requests.update(await self._newest(new), without_marks)
        await self._requests.update(await self._newest(old), without_marks)
        return survivor

    async def rename(self, old: Controller | None, new: Controller, name: str) -> Controller:
        """Delete `old`, which is None if it is already deleted, and give the new controller its name `name`."""
        if old is not None:
            self._progress.event(
                "delete", f"Update succeeded. Deleting old controller: {old.name}", controller=old.name
            )
            await self._delete_empty(old)
        self._progress.event("rename", f"Renaming {new.name} to {name}", controller=new.name, name=name)
        new = await self._newest(new)
        successor = await self._requests.create(_successor(new, name))
        if successor is None:
            successor = await self._requests.get(name)
            if successor is None or successor.annotations.get(RENAMED_FROM) != new.name:
                raise UpdateError(
                    f"{new.name} cannot be renamed: another client has created {name}; {new.name} keeps serving."
                    f" Delete {name} and run the same command again, or keep the name {new.name}"
                )
        return await self.complete_rename(successor)

    async def complete_rename(self, successor: Controller) -> Controller:
        """Complete a rename after the successor was created, perhaps by an interrupted run."""
        predecessor = await self._requests.standing(successor.annotations[RENAMED_FROM])
        if predecessor is not None and predecessor.uid == successor.selector.get(RENAMED_FROM):
            if not predecessor.deleting:
                await self._requests.delete(predecessor, orphan=True)
            await self._gone(predecessor)
        return await self._requests.update(successor, _take_over)

    async def _delete_empty(self, controller: Controller) -> None:
        """Delete a controller of size 0. Raise UpdateError if another client has scaled it up meanwhile."""

        def check(found: Controller) -> None:
            if found.name == self._lock.name:
                self._lock.check(found)
            if found.replicas:
                raise UpdateError(
                    f"{found.name} was scaled to {found.replicas} by another client at the very end; it is not deleted"
                )

        newest = await self._requests.get(controller.name)
        if newest is not None and newest.uid == controller.uid:
            await self._requests.delete(newest, orphan=False, check=check)
            await self._gone(controller)

    async def _newest(self, controller: Controller) -> Controller:
        """Return the controller as the server has it now, with the changes of other clients."""
        found = await self._requests.get(controller.name)
        if found is None or found.uid != controller.uid:
            raise DeletedError(controller.name)
        return found

    async def _gone(self, controller: Controller) -> None:
        """Wait until the controller no longer exists. The garbage collector first removes the owner references of its
        pods."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout_s
        backoff = DoublingBackoff(first_s=_FIRST_LOOK_S, limit_s=self._poll_interval_s)
        while True:
            found = await self._requests.standing(controller.name)
            if found is None or found.uid != controller.uid:
                return
            finalizers = ", ".join(found.metadata.get("finalizers") or ()) or "none"
            self._progress.waits(Waiting(f"{controller.name} to be gone (finalizers: {finalizers})", None))
            if loop.time() > end:
                raise UpdateError(
                    f"timed out waiting for {quoted(controller.name)} to be gone: its finalizers are {finalizers}."
                    " Does the garbage collector of kube-controller-manager run?"
                )
            await asyncio.sleep(backoff.next())


def _successor(new: Controller, name: str) -> Controller:
    """Return a copy of the controller under another name, with size 0 and a selector that matches no pod."""
    successor = fresh(new, name)
    successor.annotations[RENAMED_FROM] = new.name
    successor.annotations[DESIRED_REPLICAS] = new.annotations.get(DESIRED_REPLICAS, str(new.replicas))
    successor.selector[RENAMED_FROM] = new.uid
    successor.template_labels[RENAMED_FROM] = new.uid
    successor.spec["replicas"] = 0
    return successor


def _take_over(successor: Controller) -> None:
    """Give the successor the original's selector, template and size, and remove its marks. Do nothing if that is
    already done."""
    if RENAMED_FROM not in successor.annotations:
        return
    size = successor.number(DESIRED_REPLICAS)
    if size is None:
        raise DeletedError(successor.annotations[RENAMED_FROM])
    successor.selector.pop(RENAMED_FROM, None)
    successor.template_labels.pop(RENAMED_FROM, None)
    successor.spec["replicas"] = size
    without_marks(successor)
