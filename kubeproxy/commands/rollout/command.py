"""Runs ``kubeproxy rollout``, which does for Deployments what ``kubectl rollout`` does, and prints the same."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from kubeproxy.commands.rollout.advise import Wanted, advise
from kubeproxy.controllers.api_types import Deployment, Pod, ReplicaSet, template_of
from kubeproxy.controllers.deployments import revisions, rollback
from kubeproxy.controllers.deployments.drain_plan import options_of
from kubeproxy.controllers.deployments.explain import explain
from kubeproxy.controllers.deployments.explain_proxies import ProxyWait, proxy_wait
from kubeproxy.controllers.deployments.rollout_status import DeadlineExceededError, status_line
from kubeproxy.controllers.informers import deployment_client, deployment_informer, pod_client, replica_set_client
from kubeproxy.controllers.proxy_requests.deployment_drains import owner_of
from kubeproxy.controllers.proxy_requests.proxy_drain import ProxyDrain
from kubeproxy.controllers.template import without_hash
from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.informer.connectivity import Connectivity
from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.metadata import controller_of
from kubeproxy.kubernetes.object_client import JSON_PATCH, understood
from kubeproxy.model.errors import KubeproxyError

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
CHANGE_CAUSE = "kubernetes.io/change-cause"
EXPLAIN_S = 5.0
"""The longest time in seconds that the command spends on explaining a failure."""


class RolloutError(KubeproxyError):
    """Raised if the command fails. The message says why."""


class _EventObject(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _Event(msgspec.Struct, rename="camel"):
    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    involved_object: _EventObject = msgspec.field(default_factory=_EventObject)


class _Events(msgspec.Struct):
    items: list[_Event] = []


@dataclass(frozen=True, slots=True)
class Rollout:
    """Runs the subcommands for one Deployment. `say` prints a line."""

    client: Client
    namespace: str
    name: str
    say: Callable[[str], None]
    clock: Callable[[], float] = time.time

    async def status(self, *, watch: bool = True, timeout_s: float | None = None) -> None:
        """Print the state of the rollout. With `watch`, print every change until the rollout is done.

        Raise `RolloutError` if the rollout timed out, or is not done within `timeout_s` seconds. Before that, print
        what the rollout waits for.
        """
        deployment = await self._deployment()
        try:
            async with asyncio.timeout(timeout_s):
                if not self._print_status(deployment, "") and watch:
                    await self._watch(status_line(deployment)[0])
        except TimeoutError:
            await self._explain_failure()
            raise RolloutError("timed out waiting for the condition") from None
        except DeadlineExceededError as error:
            await self._explain_failure()
            raise RolloutError(str(error)) from error

    async def history(self, *, revision: int | None = None) -> None:
        """Print all revisions with their change causes, or the pod template of `revision`."""
        found = {revisions.revision_of(each): each for each in await self._replica_sets(await self._deployment())}
        found.pop(0, None)
        if revision is not None:
            if revision not in found:
                raise RolloutError("unable to find the specified revision")
            self.say(f"deployment.apps/{self.name} with revision #{revision}")
            self._say_yaml({"Pod Template": template_of(found[revision].spec.template)})
            self.say("")
            return
        self.say(f"deployment.apps/{self.name} ")
        self.say("REVISION  CHANGE-CAUSE")
        for number, replica_set in sorted(found.items()):
            cause = replica_set.metadata.annotations.get(CHANGE_CAUSE) or "<none>"
            self.say(f"{number:<9} {cause}")
        self.say("")

    async def undo(self, *, to_revision: int = 0, dry_run: bool = False) -> None:
        """Roll back to a revision. 0 means the revision before the present one."""
        deployment = await self._deployment()
        if deployment.spec.paused:
            raise RolloutError(
                "you cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again"
            )
        found = await self._replica_sets(deployment)
        wanted = to_revision or rollback.previous_revision(found)
        if wanted is None:
            raise RolloutError(f'no rollout history found for deployment "{self.name}"')
        target = rollback.find_revision(found, wanted)
        if target is None:
            raise RolloutError(f"unable to find specified revision {wanted} in history")
        if dry_run:
            self.say(f"deployment.apps/{self.name} Pod Template:")
            self._say_yaml(without_hash(target.spec.template))
            self.say("(dry run)")
            return
        if rollback.same_template(deployment, target):
            self.say(
                f"deployment.apps/{self.name} skipped rollback (current template already matches revision {wanted})"
            )
            return
        patch = rollback.patch(deployment, target)
        await deployment_client(self.client).patch(self.namespace, self.name, patch, content_type=JSON_PATCH)
        self.say(f"deployment.apps/{self.name} rolled back")

    async def pause(self) -> None:
        """Stop rolling out changes of the template."""
        deployment = await self._deployment()
        if deployment.spec.paused:
            raise RolloutError(f'deployments.apps "{self.name}" is already paused')
        await self._patch({"spec": {"paused": True}})
        self.say(f"deployment.apps/{self.name} paused")

    async def resume(self) -> None:
        """Continue rolling out, with the changes that were made meanwhile."""
        deployment = await self._deployment()
        if not deployment.spec.paused:
            raise RolloutError(f'deployments.apps "{self.name}" is not paused')
        await self._patch({"spec": {"paused": None}})
        self.say(f"deployment.apps/{self.name} resumed")

    async def restart(self) -> None:
        """Replace all pods by new pods with the same template."""
        deployment = await self._deployment()
        if deployment.spec.paused:
            raise RolloutError(
                f'deployments.apps "{self.name}" can\'t restart paused deployment (run rollout resume first)'
            )
        annotations = {RESTARTED_AT: timestamps.seconds(self.clock())}
        await self._patch({"spec": {"template": {"metadata": {"annotations": annotations}}}})
        self.say(f"deployment.apps/{self.name} restarted")

    async def explain(self) -> None:
        """Print in one paragraph what the rollout waits for."""
        deployment = await self._deployment()
        owned = await self._replica_sets(deployment)
        new = revisions.find_new(deployment, owned)
        uids = {each.metadata.uid for each in owned}
        selected = await pod_client(self.client).list_namespace(
            self.namespace, selector=deployment.spec.selector.text()
        )
        pods = [pod for pod in selected if _owner(pod) in uids]
        new_uid = "" if new is None else new.metadata.uid
        new_pods = [pod for pod in pods if _owner(pod) == new_uid]
        old_pods = [pod for pod in pods if _owner(pod) != new_uid]
        warnings, proxies = await self._warnings(), await self._proxies(deployment, new_pods, old_pods)
        self.say(explain(deployment, new, new_pods, old_pods, warnings, self.clock(), proxies=proxies))

    async def advise(self, wanted: Wanted) -> None:
        """Print the patch that the Deployment needs for rollouts that lose no connection, and why. Change nothing."""
        body = await self.client.get_json(deployment_client(self.client).path(self.namespace, self.name))
        with understood("deployments.apps"):
            found = msgspec.json.decode(body, type=dict[str, Any])
        for line in advise(found, wanted).lines(self.name):
            self.say(line)

    async def _explain_failure(self) -> None:
        """Print what the rollout waits for. Print nothing if the API server does not answer within `EXPLAIN_S`, so that
        the failure itself is reported soon."""
        with contextlib.suppress(KubeproxyError, TimeoutError):
            async with asyncio.timeout(EXPLAIN_S):
                await self.explain()

    def _say_yaml(self, value: object) -> None:
        for line in yaml.safe_dump(value, sort_keys=False).splitlines():
            self.say(line)

    # Reads and writes

    async def _deployment(self) -> Deployment:
        return await deployment_client(self.client).get(self.namespace, self.name)

    async def _replica_sets(self, deployment: Deployment) -> list[ReplicaSet]:
        selector = deployment.spec.selector.text()
        found = await replica_set_client(self.client).list_namespace(self.namespace, selector=selector)
        return [each for each in found if (owner := controller_of(each)) and owner.uid == deployment.metadata.uid]

    async def _patch(self, change: dict[str, object]) -> None:
        """Patch the Deployment without a resourceVersion. With one, the patch would fail if the controller has written
        the status meanwhile."""
        await deployment_client(self.client).patch(self.namespace, self.name, change)

    async def _proxies(
        self, deployment: Deployment, new_pods: Sequence[Pod], old_pods: Sequence[Pod]
    ) -> ProxyWait | None:
        """Return the rollout's wait for node proxies. Return None if it does not wait for proxies, or this user may not
        read their reports."""
        try:
            options = options_of(deployment)
        except ValueError:
            options = None  # The controller reports the invalid annotation, and does not ask the proxies.
        if options is None:
            return None
        drain = ProxyDrain(self.client, self.namespace, owner_of(deployment), clock=self.clock)
        states = await drain.state([*new_pods, *old_pods])
        return proxy_wait(new_pods, old_pods, states, options, self.clock())

    async def _warnings(self) -> dict[str, str]:
        """Return the newest Warning Event of each pod, by pod name. The result is empty if this user may not read
        Events."""
        query = {"fieldSelector": "type=Warning,involvedObject.kind=Pod"}
        try:
            body = await self.client.get_json(f"/api/v1/namespaces/{self.namespace}/events", query)
        except ApiError as error:
            if error.status == 403:
                return {}
            raise
        with understood("events"):
            found = msgspec.json.decode(body, type=_Events).items
        events = sorted(found, key=lambda event: event.last_timestamp or "")
        return {event.involved_object.name: f"{event.reason}: {event.message}" for event in events}

    async def _watch(self, said: str) -> None:
        """Print the status line whenever it changes, until the rollout is done. `said` is the line that was printed
        last."""
        whole = deployment_informer()
        informer: Informer[Deployment] = Informer(
            name=whole.name,
            kind=whole.kind,
            path=deployment_client(self.client).path(self.namespace),
            query={"fieldSelector": f"metadata.name={self.name}"},
            decode=whole.decode,
        )
        changed = asyncio.Event()
        informer.add_handler(_Waker(changed))
        outages = Connectivity(server=self.client.server, clock=self.clock)
        keeping = asyncio.ensure_future(informer.run(self.client, outages=outages))  # noqa: TID251 - ends with the block
        try:
            await informer.synced.wait()
            while True:
                deployment = informer.store.get(f"{self.namespace}/{self.name}")
                if deployment is None:
                    raise RolloutError(f'deployment "{self.name}" was deleted')
                line, _ = status_line(deployment)
                if self._print_status(deployment, said):
                    return
                said = line
                changed.clear()
                await changed.wait()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    def _print_status(self, deployment: Deployment, said: str) -> bool:
        """Print the status line if it differs from `said`. Return whether the rollout is done."""
        line, done = status_line(deployment)
        if line != said:
            self.say(line)
        return done


class _Waker:
    """Sets an `asyncio.Event` at every change."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed

    def added(self, item: Deployment) -> None:
        self._changed.set()

    def updated(self, old: Deployment, new: Deployment) -> None:
        self._changed.set()

    def deleted(self, item: Deployment) -> None:
        self._changed.set()


def _owner(pod: Pod) -> str:
    owner = controller_of(pod)
    return "" if owner is None else owner.uid
