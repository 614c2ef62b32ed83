"""The deployment key: a label by which the old controller's pods differ from those of the new one.

The order of the writes keeps the controller from losing its pods: first its template (so pods made from now on have the
label), then the pods, then its selector. If the selector came first, the controller would match none of its pods,
release them, and make a whole new set.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeproxy.commands.rolling_update.controller import Controller, UpdateLock
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.controllers.objects import Pod
from kubeproxy.kubernetes.metadata import controller_of


def label_template(controller: Controller, key: str, value: str) -> None:
    """The first of the writes, to be made together with the marks. Nothing where the selector has the key."""
    if key not in controller.selector:
        controller.template_labels[key] = value


async def add_key(
    requests: ControllerRequests, lock: UpdateLock, old: Controller, key: str, *, resumed: bool
) -> Controller:
    """The writes after the first: pods, selector, strays. `resumed`: an earlier run may have ended among them."""
    value = old.template_labels.get(key)
    if key in old.selector:
        if resumed:
            await _delete_strays(requests, old, key, {name: text for name, text in old.selector.items() if name != key})
        return old
    if value is None:
        return old
    before = dict(old.selector)
    for pod in await requests.pods(before):
        if _belongs(pod, old) and pod.metadata.labels.get(key) != value:
            await requests.change_pod(pod, {"labels": {key: value}})

    def select(found: Controller) -> None:
        lock.check(found)
        found.selector[key] = found.template_labels[key] = value

    changed = await requests.update(old, select)
    await _delete_strays(requests, old, key, before)
    return changed


async def _delete_strays(requests: ControllerRequests, old: Controller, key: str, before: Mapping[str, str]) -> None:
    """Delete pods without the label that the controller made before it saw its new template; it releases them.

    They are known by their name, as a pod that matched the former selector may have been made by hand.
    """
    if not before:
        return
    for pod in await requests.pods(before):
        made_here = pod.metadata.name.startswith(f"{old.name}-") and _belongs(pod, old)
        if made_here and key not in pod.metadata.labels and pod.metadata.deletion_timestamp is None:
            await requests.delete_pod(pod)


def _belongs(pod: Pod, controller: Controller) -> bool:
    """Return an orphan, or a pod of this controller: what other controllers own is not touched."""
    owner = controller_of(pod)
    return owner is None or owner.uid == controller.uid
