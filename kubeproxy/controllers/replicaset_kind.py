"""The differences between ReplicaSets and ReplicationControllers, which one controller handles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeproxy.controllers.api_types import ReplicaSet, ReplicationController


@dataclass(frozen=True, slots=True)
class ReplicaSetKind:
    """One of the two kinds, with the values in which they differ."""

    kind: str
    api_version: str
    group: str
    """The path of the group version, such as ``/apis/apps/v1``."""
    resource: str
    queue: str
    """The name of the work queue in metrics, which is upstream's."""
    component: str
    """The name of the controller in Events, which is upstream's."""
    counts_terminating: bool
    """Whether the status has the field terminatingReplicas."""
    decode: Callable[[bytes | bytearray | msgspec.Raw], ReplicaSet]


_replica_set = msgspec.json.Decoder(ReplicaSet).decode
_replication_controller = msgspec.json.Decoder(ReplicationController).decode


def _decode_controller(data: bytes | bytearray | msgspec.Raw) -> ReplicaSet:
    return _replication_controller(data).as_replica_set()


REPLICA_SET: Final = ReplicaSetKind(
    kind="ReplicaSet",
    api_version="apps/v1",
    group="/apis/apps/v1",
    resource="replicasets",
    queue="replicaset",
    component="replicaset-controller",
    counts_terminating=True,
    decode=_replica_set,
)

REPLICATION_CONTROLLER: Final = ReplicaSetKind(
    kind="ReplicationController",
    api_version="v1",
    group="/api/v1",
    resource="replicationcontrollers",
    queue="replicationmanager",
    component="replication-controller",
    counts_terminating=False,
    decode=_decode_controller,
)
