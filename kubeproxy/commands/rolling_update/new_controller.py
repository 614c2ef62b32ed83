"""Makes the new controller from the old controller and another image, or checks a new controller from a file."""

from __future__ import annotations

import hashlib
from typing import Final

from kubeproxy.commands.rolling_update.controller import Controller, Data, UpdateError, without_marks
from kubeproxy.kubernetes.printing.go_encoding import compact_json
from kubeproxy.kubernetes.resource_builder.errors import quoted
from kubeproxy.model.errors import ConfigError

ORIGINAL_SUFFIX: Final = "-orig"
"""The suffix of the deployment key's value on the old controller."""
_OF_THE_SERVER: Final = (
    *("uid", "resourceVersion", "creationTimestamp", "generation", "selfLink", "managedFields"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", "generateName"),
)


def hash_of(controller: Controller) -> str:
    """Return a hash of the controller, including its resourceVersion, that is valid as a label value."""
    return hashlib.md5(compact_json(controller.data).encode(), usedforsecurity=False).hexdigest()


def container_of(controller: Controller, chosen: str) -> Data:
    """Return the container that gets the new image: the container named `chosen`, or the only container if `chosen` is
    empty. Raise ConfigError if there is none."""
    containers = controller.containers
    if chosen:
        for container in containers:
            if container.get("name") == chosen:
                return container
        names = ", ".join(str(container.get("name")) for container in containers)
        raise ConfigError(f"container {chosen} not found in pod (the containers of {controller.name} are {names})")
    if len(containers) > 1:
        names = ", ".join(str(container.get("name")) for container in containers)
        raise ConfigError(
            f"must specify container to update when updating a multi-container pod: --container, one of {names}"
        )
    if not containers:
        raise ConfigError(f"pod has no containers! ({controller.name})")
    return containers[0]


def fresh(controller: Controller, name: str) -> Controller:
    """Return a copy to be created under another name, without marks and without fields that the server sets."""
    copied = controller.copy()
    for key in _OF_THE_SERVER:
        copied.metadata.pop(key, None)
    copied.metadata["name"] = name
    copied.data.pop("status", None)
    without_marks(copied)
    return copied


def with_image(
    old: Controller, *, name: str, container: str, image: str, pull_policy: str, key: str, replicas: int
) -> Controller:
    """Return the new controller: the old controller with another image, and with the deployment key `key` in template
    and selector. If `name` is empty, the name is generated."""
    found = container_of(old, container)
    if found.get("image") == image and not pull_policy:
        raise ConfigError(
            "--image-pull-policy (Always|Never|IfNotPresent) must be provided when --image is the same as existing"
            " container image"
        )
    digest = hash_of(old)
    new = fresh(old, name or f"{old.name}-{digest}")
    changed = container_of(new, container)
    changed["image"] = image
    if pull_policy:
        changed["imagePullPolicy"] = pull_policy
    new.selector[key] = digest
    new.template_labels[key] = digest
    new.spec["replicas"] = replicas
    return new


def check_image(existing: Controller, container: str, image: str) -> None:
    """Raise ConfigError if the existing new controller of an interrupted update has another image than `image`."""
    found = str(container_of(existing, container).get("image"))
    if found != image:
        raise ConfigError(
            f"Found existing in-progress update to image ({found}).\n"
            f"Either continue in-progress update with --image={found} or rollback with --rollback"
        )


def check_names(old: Controller, new: Controller, what: str) -> None:
    """Raise ConfigError if both controllers have the same name, or if their selectors do not differ in the value of any
    key. `what` is the file name for the message."""
    if new.name == old.name:
        raise ConfigError(f"{what} cannot have the same name as the existing ReplicationController {old.name}")
    shared = old.selector.keys() & new.selector.keys()
    if all(old.selector[key] == new.selector[key] for key in shared):
        raise ConfigError(
            f"{what} must specify a matching key with non-equal value in Selector for {old.name}:"
            f" it has {_shown(new.selector)}, {old.name} has {_shown(old.selector)}"
        )


def check_size(new: Controller) -> None:
    """Raise UpdateError if the size of the new controller is 0."""
    if new.replicas <= 0:
        raise UpdateError(f"Invalid controller spec for {new.name}; required: > 0 replicas, actual: {new.replicas}")


def without_pods(new: Controller) -> Controller:
    """Return a copy of size 0. The new controller is created in this form."""
    empty = new.copy()
    empty.spec["replicas"] = 0
    return empty


def with_key(old: Controller, key: str, value: str) -> Controller:
    """Return a copy of the old controller with the deployment key in its template and selector."""
    if key in old.selector:
        return old
    keyed = old.copy()
    keyed.selector[key] = value
    keyed.template_labels[key] = value
    return keyed


def _shown(selector: dict[str, str]) -> str:
    return quoted(",".join(f"{key}={value}" for key, value in sorted(selector.items())))
