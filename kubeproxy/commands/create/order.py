"""Decides the order in which objects are created."""

from __future__ import annotations

from typing import Final

from kubeproxy.kubernetes.resource_builder.manifest_object import ResourceObject

SORTED_KINDS: Final = (
    "PriorityClass",
    "Namespace",
    "CustomResourceDefinition",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PodSecurityPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Secret",
    "ConfigMap",
    "RuntimeClass",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Service",
)
"""The kinds that ``--sort`` puts first, in Helm's order. Other kinds follow in the order of the input."""
_RANKS: Final = {kind: rank for rank, kind in enumerate(SORTED_KINDS)}
_LAST: Final = (
    "IngressClass",
    "Ingress",
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
)
"""The kinds that ``--sort`` puts last, because the Services that they refer to must already answer."""
_LAST_RANKS: Final = {kind: len(SORTED_KINDS) + 1 + rank for rank, kind in enumerate(_LAST)}
BARRIERS: Final = {
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "PriorityClass",
    "RuntimeClass",
    "StorageClass",
    "ResourceQuota",
    "LimitRange",
    "PodSecurityPolicy",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
}
"""With ``--parallel``, objects of these kinds are not created together with other kinds, because they affect objects
that are created later.

All earlier objects are created before such an object, and all later objects after it. Consecutive objects of the same
kind are created in parallel.
"""


def rank(item: ResourceObject) -> int:
    """Return the rank of an object's kind for ``--sort``. Lower ranks are created first."""
    return _LAST_RANKS.get(item.kind, _RANKS.get(item.kind, len(SORTED_KINDS)))


class Independence:
    """Decides whether an object may be created while others are in progress."""

    def __init__(self) -> None:
        self._barrier = ""
        """The kind in progress, if it is one of `BARRIERS`."""
        self._under_way: set[tuple[str, str, str, str]] = set()

    def conflicts(self, item: ResourceObject) -> bool:
        """Return whether this object must wait until all objects in progress are created."""
        return _barrier(item) != self._barrier or _identity(item) in self._under_way

    def begin(self, item: ResourceObject) -> None:
        """Note that the creation of an object has begun."""
        self._barrier = _barrier(item)
        self._under_way.add(_identity(item))

    def end(self, item: ResourceObject) -> None:
        """Note that the creation of an object has ended."""
        self._under_way.discard(_identity(item))


def _barrier(item: ResourceObject) -> str:
    return item.kind if item.kind in BARRIERS else ""


def _identity(item: ResourceObject) -> tuple[str, str, str, str]:
    return item.api_version, item.kind, item.namespace, item.name or f"{item.generate_name}*"
