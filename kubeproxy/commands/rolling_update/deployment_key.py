"""Adds the deployment key, a label that distinguishes the old controller's pods from the new controller's pods.

The label is added to the template first, so that new pods have it, then to the existing pods, and last to the selector.
If the selector came first, the controller would match none of its pods, release all of them, and create a new set.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeproxy.commands.rolling_update.controller import Controller, UpdateLock
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.controllers.api_types import Pod
from kubeproxy.kubernetes.metadata import controller_of


def label_template(controller: Controller, key: str, value: str) -> None:
    """Add the label to the controller's template, unless the selector already has the key. This is the first of the
    writes, and the same request writes the marks."""
    if key not in controller.selector:
        controller.template_labels[key] = value


async def add_key(
    requests: ControllerRequests, lock: UpdateLock, old: Controller, key: str, *, resumed: bool
) -> Controller:
    """Label the pods, change the selector, and delete released pods. With `resumed`, an earlier run may already have
    made a part of these writes."""
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
    """Delete pods without the label. The controller created them before it saw its new template, and has released them
    because of its new selector.

    Only pods whose names begin with the controller's name are deleted, because users may have created other pods that
    match the former selector.
    """
    if not before:
        return
    for pod in await requests.pods(before):
        made_here = pod.metadata.name.startswith(f"{old.name}-") and _belongs(pod, old)
        if made_here and key not in pod.metadata.labels and pod.metadata.deletion_timestamp is None:
            await requests.delete_pod(pod)


def _belongs(pod: Pod, controller: Controller) -> bool:
    """Return whether a pod belongs to this controller, or has no controller."""
    owner = controller_of(pod)
    return owner is None or owner.uid == controller.uid
