"""Syncs one Deployment once: decides the next step of its rollout, and carries it out.

`DeploymentSync.run` shows the order of the steps. The decisions are pure functions in other files; this file calls them
and makes the writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from kubeproxy.controllers import conditions, event_reporter, template
from kubeproxy.controllers.api_types import Deployment, DeploymentStatus, Pod, ReplicaSet
from kubeproxy.controllers.deployments import progress, proportional, retention, revisions, rollback, rolling_update
from kubeproxy.controllers.deployments import status as deployment_status
from kubeproxy.controllers.deployments.drain_sync import DrainStep, marked_pods, with_proxies
from kubeproxy.controllers.deployments.rolling_update import Scale
from kubeproxy.controllers.deployments.writes import DeploymentWrites, replica_set_name
from kubeproxy.controllers.pod_state import TERMINAL
from kubeproxy.controllers.proxy_requests.deployment_drains import DeploymentDrains, owner_of
from kubeproxy.controllers.proxy_requests.node_proxies import NotAskedError
from kubeproxy.controllers.surge import new_replica_set_size
from kubeproxy.kubernetes.client.errors import ApiError, UnreachableError
from kubeproxy.kubernetes.metadata import controller_of, key_of
from kubeproxy.kubernetes.object_client import already_exists, namespace_terminating, server_text


class UnknownStrategyError(ValueError):
    """Raised if a Deployment has an unknown strategy."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a sync needs in addition to the Deployment and its ReplicaSets."""

    writes: DeploymentWrites
    clock: Callable[[], float]
    """A function that returns Unix seconds."""
    pods_of: Callable[[ReplicaSet], Sequence[Pod]]
    """A function that returns the cached pods of a ReplicaSet, in every phase."""
    cached: Callable[[str, str], ReplicaSet | None]
    """A function that returns a cached ReplicaSet by namespace and name, or None."""
    enqueue_after: Callable[[float], None]
    """A function that syncs this Deployment again after a number of seconds, or, for 0, after the Deployment's
    backoff."""
    drains: DeploymentDrains
    """Writes the requests to node proxies, for Deployments whose rollouts wait for proxies."""


class DeploymentSync:
    """The sync of one Deployment. After each write, it continues with the objects that the server returned."""

    def __init__(self, surroundings: Surroundings, deployment: Deployment, replica_sets: Sequence[ReplicaSet]) -> None:
        self._around = surroundings
        self._writes = surroundings.writes
        self._deployment = deployment
        self._all = list(replica_sets)
        self._new: ReplicaSet | None = None
        self._old: list[ReplicaSet] = []
        self._drain: DrainStep | None = None
        """The step's plan for draining pods, or None if the rollout does not wait for node proxies."""

    async def run(self) -> None:
        """Take the next step of the rollout, such as scaling one ReplicaSet, and then write the status."""
        if self._deployment.metadata.deletion_timestamp is not None:
            await self._find_new(create=False)
            await self._write_counts()
            return
        await self._note_pause()
        if self._deployment.spec.paused or not self._deployment.rolling:
            await self._end_drains()
        if self._deployment.spec.paused:
            await self._scale()
        elif rollback.requested_revision(self._deployment) is not None:
            await self._roll_back()
        elif proportional.is_scaling_event(self._deployment, self._all):
            await self._scale()
        elif self._deployment.spec.strategy.type == "Recreate":
            await self._recreate()
        elif self._deployment.rolling:
            await self._roll()
        else:
            raise UnknownStrategyError(f"unexpected deployment strategy type: {self._deployment.spec.strategy.type}")

    # The new ReplicaSet

    async def _find_new(self, *, create: bool) -> None:
        self._new = revisions.find_new(self._deployment, self._all)
        self._old = revisions.others(self._all, self._new)
        revision = revisions.max_revision(self._old) + 1
        if self._new is not None:
            self._new = await self._writes.refresh(self._deployment, self._new, revision)
            await self._note_found(self._new)
        elif create:
            self._new = await self._create_new(revision)

    async def _note_found(self, new: ReplicaSet) -> None:
        """Write the new ReplicaSet's revision to the Deployment, and the condition Progressing if there is none."""
        deployment = self._deployment
        status = deployment.status
        if deployment.deadline_s is not None and not conditions.find(status.conditions, conditions.PROGRESSING):
            status = self._progressing(progress.FOUND_NEW, f'Found new replica set "{new.metadata.name}"')
        await self._write(status, revision=new.metadata.annotations.get(revisions.REVISION))

    async def _create_new(self, revision: int) -> ReplicaSet:
        deployment = self._deployment
        size = new_replica_set_size(deployment, rolling_update.wanted_pods(self._old), 0)
        try:
            created = await self._writes.create(deployment, size, revision)
        except ApiError as error:
            if already_exists(error):
                created = await self._existing(error)
            else:
                await self._note_failed_creation(error)
                raise
        status = deployment.status
        if deployment.deadline_s is not None:
            status = self._progressing(progress.NEW_CREATED, f'Created new replica set "{created.metadata.name}"')
        await self._write(status, revision=created.metadata.annotations.get(revisions.REVISION))
        return created

    async def _existing(self, error: ApiError) -> ReplicaSet:
        """Return the existing ReplicaSet of the same name, if it belongs to this Deployment and has its template. It
        was then missing only in the cache.

        Otherwise two templates have the same hash. Raise `error` then; the next sync uses another name.
        """
        deployment = self._deployment
        found = self._around.cached(deployment.metadata.namespace, replica_set_name(deployment))
        if found is None:
            raise error
        owner = controller_of(found)
        ours = owner is not None and owner.uid == deployment.metadata.uid
        if ours and template.equal(found.spec.template, deployment.spec.template):
            return found
        status = deployment.status
        counted = msgspec.structs.replace(status, collision_count=(status.collision_count or 0) + 1)
        self._deployment = await self._writes.status(deployment, counted)
        raise error

    async def _note_failed_creation(self, error: ApiError) -> None:
        if namespace_terminating(error) or isinstance(error, UnreachableError):
            return  # No Event arrives, and queued Events would only use up the object's rate limit.
        deployment = self._deployment
        message = f'Failed to create new replica set "{replica_set_name(deployment)}": {server_text(error)}'
        self._writes.report(deployment, "Warning", event_reporter.CREATE_ERROR, message)
        if deployment.deadline_s is not None:
            failed = conditions.new(
                conditions.PROGRESSING, conditions.FALSE, progress.FAILED_CREATE, message, self._around.clock()
            )
            await self._write(deployment_status.with_condition(deployment.status, failed))

    # The strategies

    async def _roll(self) -> None:
        """Take a step of the strategy RollingUpdate: scale the new ReplicaSet up, or else scale old ReplicaSets
        down."""
        await self._find_new(create=True)
        new = self._demanded_new()
        self._drain = await self._ask_proxies(new)
        size = rolling_update.scale_new(self._deployment, new, self._old)
        if size is not None:
            self._new = await self._writes.scale(self._deployment, Scale(new, size))
        elif not await self._shrink_old(new):
            await self._clean_up_if_complete()
        await self._follow_rollout()

    async def _ask_proxies(self, new: ReplicaSet) -> DrainStep | None:
        """Make the plan for draining, and ask the node proxies about the pods. Return None if the rollout does not wait
        for proxies."""
        around = self._around
        try:
            step = await DrainStep.begin(
                around.drains, self._writes, self._deployment, new, self._old, around.pods_of, around.clock()
            )
        except NotAskedError as error:
            self._note_not_asked(error)
            step = None
        if step is None:
            await self._end_drains()
        return step

    def _note_not_asked(self, error: NotAskedError) -> None:
        self._around.drains.do_without(self._deployment)
        if self._around.drains.first_unknown(self._deployment):
            text = f"{error}; proxies are not waited for"
            self._writes.report(self._deployment, "Warning", event_reporter.PROXIES_UNKNOWN, text)

    async def _end_drains(self) -> None:
        """End the drains of pods that no rollout is about to delete, so that they get connections again, and remove
        expired requests."""
        drains, deployment = self._around.drains, self._deployment
        if not drains.proxies.wanted.is_set():
            return  # No pod drains.
        marked = marked_pods([pod for replica_set in self._all for pod in self._around.pods_of(replica_set)])
        drains.forget(key_of(deployment))
        with suppress(NotAskedError):  # Requests that cannot be removed will expire.
            if marked:
                await drains.unmark(marked)
                await drains.ask(deployment, (), (), {pod.metadata.name for pod in marked})
            again = await drains.proxies.tidy(deployment.metadata.namespace, owner_of(deployment))
            if again is not None:
                self._around.enqueue_after(max(1.0, again - self._around.clock() + 1))

    async def _shrink_old(self, new: ReplicaSet) -> bool:
        """Scale old ReplicaSets down, first by their unavailable pods. Return whether any was scaled, or the rollout
        waits for proxies."""
        if self._drain is not None:
            try:
                for replica_set in await self._drain.shrink():
                    self._replace(replica_set)
            except NotAskedError as error:
                self._note_not_asked(error)
                self._drain = None
                await self._end_drains()
            else:
                return self._drain.waits
        budget = rolling_update.may_shrink_old(self._deployment, new, self._old)
        if budget == 0:
            return False
        unhealthy = rolling_update.cleanup_unhealthy(self._old, budget)
        if unhealthy is None:
            return False
        await self._scale_old(unhealthy)
        down = rolling_update.scale_down_old(self._deployment, new, self._old)
        await self._scale_old(down)
        return any(scale.change for scale in (*unhealthy, *down))

    async def _recreate(self) -> None:
        """Take a step of the strategy Recreate, which deletes all old pods before it creates the new ReplicaSet."""
        await self._find_new(create=False)
        running = revisions.active(self._old)
        if running:
            await self._scale_old([Scale(replica_set, 0) for replica_set in running])
        elif not self._old_pods_run():
            if self._new is None:
                await self._find_new(create=True)
            new = self._demanded_new()
            self._new = await self._scale_if_needed(new, self._deployment.spec.replicas)
            await self._clean_up_if_complete()
        await self._follow_rollout()

    def _old_pods_run(self) -> bool:
        """Return whether pods of old ReplicaSets may still run, including those that are being deleted."""
        if any(replica_set.status.replicas > 0 for replica_set in self._old):
            return True
        return any(
            pod.status.phase not in TERMINAL for replica_set in self._old for pod in self._around.pods_of(replica_set)
        )

    async def _scale(self) -> None:
        """Scale the existing ReplicaSets in proportion, without a step of the rollout. This happens if the Deployment's
        size has changed or it is paused."""
        await self._find_new(create=False)
        for scale in proportional.scale(self._deployment, self._new, self._old):
            self._replace(await self._writes.scale(self._deployment, scale))
        if self._deployment.spec.paused and rollback.requested_revision(self._deployment) is None:
            await self._clean_up()
        await self._write_counts()

    async def _roll_back(self) -> None:
        """Give the Deployment the template of the requested revision. Remove the rollback annotation even if that is
        impossible."""
        await self._find_new(create=True)
        deployment = self._deployment
        everything = [*self._old, self._demanded_new()]
        wanted = rollback.requested_revision(deployment) or rollback.previous_revision(everything)
        if wanted is None:
            self._writes.report(
                deployment, "Warning", event_reporter.ROLLBACK_NOT_FOUND, "Unable to find last revision."
            )
        elif (target := rollback.find_revision(everything, wanted)) is None:
            self._writes.report(
                deployment, "Warning", event_reporter.ROLLBACK_NOT_FOUND, "Unable to find the revision to rollback to."
            )
        elif rollback.same_template(deployment, target):
            self._writes.report(
                deployment,
                "Warning",
                event_reporter.ROLLBACK_UNCHANGED,
                f'The rollback revision contains the same template as current deployment "{deployment.metadata.name}"',
            )
        else:
            self._deployment = await self._writes.replace_template(deployment, rollback.patch(deployment, target))
            done = f'Rolled back deployment "{deployment.metadata.name}" to revision {wanted}'
            self._writes.report(deployment, "Normal", event_reporter.ROLLBACK_DONE, done)
            return
        self._deployment = await self._writes.annotate(deployment, {revisions.ROLLBACK_TO: None})

    # Old ReplicaSets.

    async def _scale_old(self, scales: Sequence[Scale]) -> None:
        for scale in scales:
            if scale.change:
                self._replace(await self._writes.scale(self._deployment, scale))

    async def _scale_if_needed(self, replica_set: ReplicaSet, size: int) -> ReplicaSet:
        if replica_set.spec.replicas == size:
            return replica_set
        return await self._writes.scale(self._deployment, Scale(replica_set, size))

    async def _clean_up_if_complete(self) -> None:
        if progress.is_complete(self._deployment, self._deployment.status):
            await self._clean_up()

    async def _clean_up(self) -> None:
        """Delete old ReplicaSets beyond revisionHistoryLimit."""
        for replica_set in retention.surplus(self._deployment, self._old):
            await self._writes.delete(replica_set)

    # The status.

    async def _note_pause(self) -> None:
        status = deployment_status.paused_or_resumed(self._deployment, self._around.clock())
        if status is not None:
            await self._write(status)

    async def _write_counts(self) -> None:
        """Write the counts and the condition Available, but not the conditions about progress."""
        await self._write(self._counted())

    async def _follow_rollout(self) -> None:
        """Write the whole status. If nothing has changed, sync again when the progress deadline is over."""
        now = self._around.clock()
        drain = self._drain
        status = deployment_status.follow_rollout(
            self._deployment,
            self._counted(),
            self._new,
            self._old,
            now,
            progressed=drain is not None and drain.progressed,
            waits=drain is not None and drain.waits,
        )
        status = with_proxies(status, drain)
        if drain is not None and drain.look_in_s is not None:
            self._around.drains.wait(self._deployment)
            self._around.enqueue_after(drain.look_in_s)
        if status != self._deployment.status:
            await self._write(status)
            return
        # While the rollout waits for proxies it cannot fail, and the next look is planned above.
        wait_s = None if drain is not None and drain.waits else progress.deadline_in(self._deployment, status, now)
        if wait_s is not None:
            self._around.enqueue_after(wait_s)

    def _counted(self) -> DeploymentStatus:
        everything = [*self._old, *([] if self._new is None else [self._new])]
        return deployment_status.compute(self._deployment, everything, self._new, self._around.clock())

    def _progressing(self, reason: str, message: str) -> DeploymentStatus:
        condition = conditions.new(conditions.PROGRESSING, conditions.TRUE, reason, message, self._around.clock())
        return deployment_status.with_condition(self._deployment.status, condition)

    async def _write(self, status: DeploymentStatus, *, revision: str | None = None) -> None:
        """Write status and revision if they have changed. Later writes use the resourceVersion of the answer."""
        known = self._deployment.metadata.annotations.get(revisions.REVISION)
        annotations = {} if revision is None or revision == known else {revisions.REVISION: revision}
        if annotations or status != self._deployment.status:
            self._deployment = await self._writes.status(self._deployment, status, annotations)

    # The ReplicaSets

    def _demanded_new(self) -> ReplicaSet:
        assert self._new is not None, "it was found or created before"
        return self._new

    def _replace(self, replica_set: ReplicaSet) -> None:
        """Replace a ReplicaSet by the version that the server returned."""
        uid = replica_set.metadata.uid
        if self._new is not None and self._new.metadata.uid == uid:
            self._new = replica_set
        self._old = [replica_set if each.metadata.uid == uid else each for each in self._old]
