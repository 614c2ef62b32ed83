"""What has to be there before what. Pure."""

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
"""With ``--sort`` these come first, in this order, which is Helm's; other kinds follow in the order of the input."""
_RANKS: Final = {kind: rank for rank, kind in enumerate(SORTED_KINDS)}
_LAST: Final = (
    "IngressClass",
    "Ingress",
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
)
"""With ``--sort`` these come last: what they refer to has to answer."""
_LAST_RANKS: Final = {kind: len(SORTED_KINDS) + 1 + rank for rank, kind in enumerate(_LAST)}
BARRIERS: Final = frozenset(
    {
        *("Namespace", "CustomResourceDefinition", "ServiceAccount", "PriorityClass", "RuntimeClass", "StorageClass"),
        *(
            "ResourceQuota",
            "LimitRange",
            "PodSecurityPolicy",
            "Role",
            "RoleBinding",
            "ClusterRole",
            "ClusterRoleBinding",
        ),
        *("APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"),
    }
)
"""Kinds that decide what becomes of objects created after them. With ``--parallel`` objects of such a kind are created
together, but all that stands before them is created first, and what stands behind them afterwards."""


def rank(found: ResourceObject) -> int:
    """The place of an object's kind with ``--sort``."""
    return _LAST_RANKS.get(found.kind, _RANKS.get(found.kind, len(SORTED_KINDS)))


class Independence:
    """Tells whether an object may be created while others are under way."""

    def __init__(self) -> None:
        self._barrier = ""
        """The kind under way, if it is one of `BARRIERS`."""
        self._under_way: set[tuple[str, str, str, str]] = set()

    def conflicts(self, found: ResourceObject) -> bool:
        """Whether all that is under way has to be done first."""
        return _barrier(found) != self._barrier or _identity(found) in self._under_way

    def begin(self, found: ResourceObject) -> None:
        """It is under way."""
        self._barrier = _barrier(found)
        self._under_way.add(_identity(found))

    def end(self, found: ResourceObject) -> None:
        """It is done."""
        self._under_way.discard(_identity(found))


def _barrier(found: ResourceObject) -> str:
    return found.kind if found.kind in BARRIERS else ""


def _identity(found: ResourceObject) -> tuple[str, str, str, str]:
    return found.api_version, found.kind, found.namespace, found.name or f"{found.generate_name}*"
