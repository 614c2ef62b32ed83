"""The deployment key: a label in which the old controller's pods differ from those of the new one.

The order of the writes keeps the controller from losing its pods. The template comes first, so that new pods have the
label. Then the pods get it, and then the selector. If the selector came first, the controller would match none of its
pods, release all of them, and create a whole new set.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeproxy.commands.rolling_update.controller import Controller, UpdateLock
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.controllers.api_types import Pod
from kubeproxy.kubernetes.metadata import controller_of


def label_template(controller: Controller, key: str, value: str) -> None:
    """Give the template the label, which is the first of the writes and is made together with the marks. Do nothing if
    the selector has the key already."""
    if key not in controller.selector:
        controller.template_labels[key] = value


async def add_key(
    requests: ControllerRequests, lock: UpdateLock, old: Controller, key: str, *, resumed: bool
) -> Controller:
    """Make the writes after the first: label the pods, change the selector, and delete strays. With `resumed`, an
    earlier run may have ended between these writes."""
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
    """Delete pods without the label that the controller created before it saw its new template, because it releases
    them.

    Such pods are recognized by their names, because other pods that match the former selector may have been created by
    hand.
    """
    if not before:
        return
    for pod in await requests.pods(before):
        made_here = pod.metadata.name.startswith(f"{old.name}-") and _belongs(pod, old)
        if made_here and key not in pod.metadata.labels and pod.metadata.deletion_timestamp is None:
            await requests.delete_pod(pod)


def _belongs(pod: Pod, controller: Controller) -> bool:
    """Return whether a pod is an orphan or belongs to this controller. Pods of other controllers are left alone."""
    owner = controller_of(pod)
    return owner is None or owner.uid == controller.uid
