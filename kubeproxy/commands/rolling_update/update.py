"""Carries out a whole rolling update or rollback: finds the present state, marks the old controller, creates the new
one, takes the steps, and finishes.

The command may be killed after any of its writes. A later run finds out from the marks how far the update has come, and
continues it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kubeproxy.commands.rolling_update import deployment_key, new_controller
from kubeproxy.commands.rolling_update.controller import (
    DESIRED_REPLICAS,
    HOLDER,
    NEXT,
    ORIGINAL_REPLICAS,
    RENAMED_FROM,
    SOURCE,
    Controller,
    UpdateError,
    UpdateLock,
    check_source,
    desired_size,
    finished,
    in_progress,
    is_source_of,
    not_found,
    original_size,
)
from kubeproxy.commands.rolling_update.drained_deletion import DrainedDeletion
from kubeproxy.commands.rolling_update.finish import Finish
from kubeproxy.commands.rolling_update.guidance import go_on
from kubeproxy.commands.rolling_update.options import Cleanup, UpdateOptions
from kubeproxy.commands.rolling_update.progress_output import ProgressOutput
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.commands.rolling_update.step_loop import Pace, StepLoop
from kubeproxy.commands.rolling_update.step_sizes import bounds
from kubeproxy.kubernetes.api_types import Status
from kubeproxy.kubernetes.client.errors import StatusError
from kubeproxy.kubernetes.client.status import status_error
from kubeproxy.kubernetes.resource_builder.errors import quoted

ReadFile = Callable[[], Awaitable[Controller]]


@dataclass(frozen=True, slots=True)
class Planned:
    """The old and the new controller as the update would leave them. A dry run prints them."""

    source: Controller
    target: Controller


@dataclass(frozen=True, slots=True)
class _Target:
    """The new controller, which already exists or has to be created."""

    controller: Controller
    exists: bool
    desired: int
    resumed: bool
    """Whether an earlier run has marked the old controller."""


class RollingUpdate:
    """One run of the command against one namespace."""

    def __init__(
        self,
        options: UpdateOptions,
        requests: ControllerRequests,
        progress: ProgressOutput,
        read_file: ReadFile,
        drained_deletion: DrainedDeletion | None = None,
    ) -> None:
        self._options = options
        self._requests = requests
        self._progress = progress
        self._read_file = read_file
        self._drained_deletion = drained_deletion
        self.step_loop: StepLoop | None = None
        self.began = False
        """Whether this run has written anything."""
        self.back = True
        """Whether the update can be undone, because the old controller still exists."""
        self.new_name = ""
        """The name of the new controller, once it is known."""

    async def run(self) -> Controller | Planned:
        """Carry out the update, and return the remaining controller. In a dry run, return the plan."""
        found = await self._run()
        if self._drained_deletion is not None:
            await self._drained_deletion.end()
        return found

    async def _run(self) -> Controller | Planned:
        name = self._options.names[0]
        old = await self._requests.get(name)
        if self._options.rollback:
            return await self._back(name, old)
        if old is not None and RENAMED_FROM in old.annotations:
            former = old.annotations[RENAMED_FROM]
            old = await self._complete_rename(old)
            if await self._is_result(old, former):
                return old
        if old is None:
            return await self._without_old(name)
        return await self._forward(old)

    # Updates

    async def _forward(self, old: Controller) -> Controller | Planned:
        options = self._options
        target = await (self._from_file(old) if options.filename else self._from_image(old))
        new = target.controller
        self.new_name = new.name
        key = options.deployment_label_key
        value = self._key_of(old, resumed=target.resumed)
        keyed = old if options.filename else new_controller.with_key(old, key, value)
        new_controller.check_names(keyed, new, options.filename or new.name)
        if options.dry_run:
            return Planned(keyed, new)
        await self._requests.pods(old.selector)  # Fail before the first write if this user may not read pods.
        if not target.exists:
            await self._would_be_created(new)
        lock = UpdateLock.of(old, self._requests.now())

        def mark(found: Controller) -> None:
            lock.take(found)
            annotations = found.annotations
            if not target.resumed:
                annotations.pop(ORIGINAL_REPLICAS, None)
            annotations.setdefault(ORIGINAL_REPLICAS, str(found.replicas))
            annotations[NEXT] = new.name
            for left in (SOURCE, DESIRED_REPLICAS):  # An interrupted rollback may have left these marks.
                annotations.pop(left, None)
            if not options.filename:
                deployment_key.label_template(found, key, value)

        self.began = True
        old = await self._requests.update(old, mark)
        if not options.filename:
            old = await deployment_key.add_key(self._requests, lock, old, key, resumed=target.resumed)
        if not target.exists:
            new = await self._create(old, new, target.desired)
        else:
            self._continuing(new)
        await self._roll(lock, up=new, down=old, desired=target.desired)
        finish = self._finish(lock)
        self.back = options.cleanup_policy is Cleanup.PRESERVE
        match options.cleanup_policy:
            case Cleanup.RENAME:
                return await finish.rename(old, new, old.name)
            case Cleanup.PRESERVE:
                return await finish.preserve(old, new)
            case _:
                return await finish.delete(old, new)

    async def _from_image(self, old: Controller) -> _Target:
        """Return the new controller for ``--image``."""
        options = self._options
        next_name = old.annotations.get(NEXT, "")
        next_one = await self._requests.get(next_name) if next_name else None
        resumed = in_progress(old, next_one)
        name = options.names[1] if len(options.names) > 1 else next_name if resumed else ""
        self._refuse_another(old, name, next_one)
        existing = next_one if name == next_name else await self._requests.get(name) if name else None
        new_controller.container_of(old, options.container)
        if existing is not None and existing.name != old.name:
            check_source(old, existing)
            new_controller.check_image(existing, options.container, options.image)
            self._progress.event(
                "resume", f"Found existing update in progress ({existing.name}), resuming.", controller=existing.name
            )
            return _Target(existing, True, desired_size(existing), resumed)
        desired = original_size(old) if resumed else old.replicas
        new = new_controller.with_image(
            old,
            name=name,
            container=options.container,
            image=options.image,
            pull_policy=options.image_pull_policy,
            key=options.deployment_label_key,
            replicas=desired,
        )
        new_controller.check_size(new)
        return _Target(new, False, desired, resumed)

    async def _from_file(self, old: Controller) -> _Target:
        """Return the new controller for ``--filename``."""
        new = await self._read_file()
        next_name = old.annotations.get(NEXT, "")
        next_one = await self._requests.get(next_name) if next_name else None
        resumed = in_progress(old, next_one)
        self._refuse_another(old, new.name, next_one)
        if new.name == old.name:
            new_controller.check_names(old, new, self._options.filename)
        existing = await self._requests.get(new.name)
        if existing is not None:
            check_source(old, existing)
            return _Target(existing, True, desired_size(existing), resumed)
        if new.spec.get("replicas") is None:
            new.spec["replicas"] = original_size(old) if resumed else old.replicas
        new_controller.check_size(new)
        return _Target(new, False, new.replicas, resumed)

    def _refuse_another(self, old: Controller, name: str, next_one: Controller | None) -> None:
        """Raise `UpdateError` if a controller other than `name` is already replacing the old controller."""
        if next_one is not None and name not in ("", next_one.name) and next_one.annotations.get(SOURCE):
            raise UpdateError(
                f"Found existing in-progress update to {next_one.name}.\n"
                f"Either continue it or roll it back with: kubeproxy rolling-update {old.name} --rollback"
            )

    def _key_of(self, old: Controller, *, resumed: bool) -> str:
        """Return the value of the deployment key for the old controller. A value that an interrupted run has set is
        kept, and so is one that the controller's selector requires."""
        key = self._options.deployment_label_key
        found = old.template_labels.get(key)
        if found is not None and (resumed or key in old.selector):
            return found
        return new_controller.hash_of(old) + new_controller.ORIGINAL_SUFFIX

    async def _would_be_created(self, new: Controller) -> None:
        """Have the server check the new controller before anything is written."""
        try:
            await self._requests.try_create(new_controller.without_pods(new))
        except StatusError as error:
            if error.status in (403, 422):
                raise

    async def _create(self, old: Controller, new: Controller, desired: int) -> Controller:
        wanted = new_controller.without_pods(new)
        wanted.annotations[SOURCE] = old.source_id
        wanted.annotations[DESIRED_REPLICAS] = str(desired)
        created = await self._requests.create(wanted)
        if created is not None:
            self._progress.event("create", f"Created {created.name}", controller=created.name)
            return created
        existing = await self._requests.get(new.name)  # Perhaps an earlier request created it, and its answer was lost.
        if existing is None:
            raise UpdateError(f"{new.name} exists and waits for its deletion; run the same command again")
        check_source(old, existing)
        self._continuing(existing)
        return existing

    def _continuing(self, new: Controller) -> None:
        self._progress.event("continue", f"Continuing update with existing controller {new.name}.", controller=new.name)

    # Completing an interrupted update

    async def _complete_rename(self, successor: Controller) -> Controller:
        """Complete a rename that an earlier run has begun, and return the controller with the old name."""
        former = successor.annotations[RENAMED_FROM]
        self.new_name = former
        self.back = False
        self._progress.event("rename", f"Renaming {former} to {successor.name}", controller=former, name=successor.name)
        lock = UpdateLock.of(successor, self._requests.now())
        self.began = True
        return await self._finish(lock).complete_rename(successor)

    async def _is_result(self, survivor: Controller, former: str) -> bool:
        """Return whether nothing is left to do for this command after a completed rename. `former` is the controller's
        name before the rename."""
        options = self._options
        if options.filename:
            return (await self._read_file()).name == former
        return new_controller.container_of(survivor, options.container).get("image") == options.image

    async def _without_old(self, name: str) -> Controller | Planned:
        """Complete the update of a controller that an interrupted run has already deleted. Raise StatusError (404) if
        no controller replaces it."""
        options = self._options
        new = await self._replacement_of(name)
        if new is None:
            raise _missing(name)
        self.new_name = new.name
        if options.image:
            new_controller.check_image(new, options.container, options.image)
        if options.dry_run:
            return Planned(Controller({"metadata": {"name": name}}), new)
        self._progress.event(
            "resume", f"Found existing update in progress ({new.name}), resuming.", controller=new.name
        )
        lock = UpdateLock(name, "", "")
        self.began, self.back = True, False
        await self._roll(lock, up=new, down=None, desired=desired_size(new))
        finish = self._finish(lock)
        if options.cleanup_policy is Cleanup.RENAME:
            return await finish.rename(None, new, name)
        return await finish.delete(None, new)

    async def _replacement_of(self, name: str) -> Controller | None:
        options = self._options
        if len(options.names) > 1:
            found = await self._requests.get(options.names[1])
        elif options.filename:
            found = await self._requests.get((await self._read_file()).name)
        else:
            successors = [one for one in await self._requests.all() if is_source_of(name, one) and not one.deleting]
            if len(successors) > 1:
                names = ", ".join(sorted(one.name for one in successors))
                raise UpdateError(f"{name} is deleted, and several controllers replace it: {names}; name one of them")
            found = successors[0] if successors else None
        return found if found is not None and is_source_of(name, found) else None

    # Rollbacks

    async def _back(self, name: str, old: Controller | None) -> Controller | Planned:
        """Roll the update back: scale the old controller up again, and the new controller down."""
        options = self._options
        if old is None:
            replacement = next((one for one in await self._requests.all() if is_source_of(name, one)), None)
            if replacement is None:
                raise _missing(name)
            raise self._too_late(name, replacement)
        if RENAMED_FROM in old.annotations:
            raise self._too_late(name, old)
        new_name = options.names[1] if len(options.names) > 1 else old.annotations.get(NEXT, "")
        if not new_name:
            raise UpdateError(f"Could not find an update of {name} to rollback: no update of it is in progress")
        self.new_name = new_name
        new = await self._requests.get(new_name)
        if new is not None and new.name == old.name:
            raise UpdateError(f"{new_name} cannot have the same name as the existing ReplicationController {name}")
        if new is not None and new.annotations.get(SOURCE) != old.source_id and not finished(old, new):
            check_source(old, new)
        if new is None and not in_progress(old, None) and SOURCE not in old.annotations:
            raise UpdateError(f"Could not find {new_name} to rollback.")
        original = old.number(ORIGINAL_REPLICAS)
        if original is None:
            if new is not None and new.replicas:
                raise UpdateError(f"couldn't find original replica count of {quoted(old.name)}")
            original = old.replicas
        if options.dry_run:
            return Planned(new or Controller({"metadata": {"name": new_name}}), old)
        lock = UpdateLock.of(old, self._requests.now())
        resumed = HOLDER in old.annotations

        def mark(found: Controller) -> None:
            lock.take(found)
            annotations = found.annotations
            annotations[NEXT] = new_name
            annotations[ORIGINAL_REPLICAS] = annotations[DESIRED_REPLICAS] = str(original)
            if new is not None:
                annotations[SOURCE] = new.source_id

        self.began = True
        self._progress.event(
            "rollback", f"Setting {quoted(old.name)} replicas to {original}", controller=old.name, replicas=original
        )
        old = await self._requests.update(old, mark)
        self._continuing(old)
        old = await deployment_key.add_key(self._requests, lock, old, options.deployment_label_key, resumed=resumed)
        await self._roll(lock, up=old, down=new, desired=original)
        return await self._finish(lock).delete(new, old)

    def _too_late(self, name: str, new: Controller) -> UpdateError:
        """Return the error for a rollback after the old controller was deleted. `new` replaces it, and may already have
        its name."""
        images = [str(container.get("image")) for container in new.containers]
        image = images[0] if len(images) == 1 else "IMAGE"
        command = go_on(self._options).replace("--rollback", f"--image={image}")
        return UpdateError(
            f"{name} cannot be rolled back to: it is deleted already, and its pods are replaced by those of"
            f" {new.annotations.get(RENAMED_FROM, new.name)}. To complete the update: {command}"
        )

    # Helpers

    async def _roll(self, lock: UpdateLock, *, up: Controller, down: Controller | None, desired: int) -> None:
        options = self._options
        min_ready_s = options.min_ready_s or float(up.spec.get("minReadySeconds") or 0)
        pace = Pace(options.update_period_s, options.poll_interval_s, options.timeout_s, min_ready_s)
        limits = bounds(options.max_surge, options.max_unavailable, desired)
        self.step_loop = StepLoop(self._requests, self._progress, lock, pace, self._drained_deletion)
        await self.step_loop.roll(up, down, limits)

    def _finish(self, lock: UpdateLock) -> Finish:
        return Finish(
            self._requests,
            self._progress,
            lock,
            poll_interval_s=self._options.poll_interval_s,
            timeout_s=self._options.timeout_s,
        )


def _missing(name: str) -> StatusError:
    status = Status(reason="NotFound", message=not_found(name))
    return status_error(status, code=404, seen="the server answered", message=not_found(name))
