"""Makes the clients and informers of the kinds that the controllers use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from kubeproxy.controllers.api_types import Deployment, Lease, Pod, ReplicaSet, Service
from kubeproxy.controllers.replicaset_kind import REPLICA_SET, REPLICATION_CONTROLLER, ReplicaSetKind
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.object_client import ObjectClient
from kubeproxy.model.drain_report import REPORT_NAMESPACE, REPORT_SELECTOR

_service = msgspec.json.Decoder(Service).decode
_lease = msgspec.json.Decoder(Lease).decode
_pod = msgspec.json.Decoder(Pod).decode
_deployment = msgspec.json.Decoder(Deployment).decode


def pod_client(requests: Client, *, written: Callable[[Pod], None] | None = None) -> ObjectClient[Pod]:
    """Return a client of pods."""
    return ObjectClient(requests, group="/api/v1", resource="pods", decode=_pod, written=written)


def replica_set_client(
    requests: Client, kind: ReplicaSetKind = REPLICA_SET, *, written: Callable[[ReplicaSet], None] | None = None
) -> ObjectClient[ReplicaSet]:
    """Return a client of ReplicaSets or ReplicationControllers."""
    return ObjectClient(requests, group=kind.group, resource=kind.resource, decode=kind.decode, written=written)


def deployment_client(
    requests: Client, *, written: Callable[[Deployment], None] | None = None
) -> ObjectClient[Deployment]:
    """Return a client of Deployments."""
    return ObjectClient(requests, group="/apis/apps/v1", resource="deployments", decode=_deployment, written=written)


def service_client(requests: Client, *, written: Callable[[Service], None] | None = None) -> ObjectClient[Service]:
    """Return a client of Services."""
    return ObjectClient(requests, group="/api/v1", resource="services", decode=_service, written=written)


def lease_client(requests: Client) -> ObjectClient[Lease]:
    """Return a client of the Leases in which node proxies write their drain reports."""
    return ObjectClient(requests, group="/apis/coordination.k8s.io/v1", resource="leases", decode=_lease)


def _service_informer() -> Informer[Service]:
    return Informer(name="services", kind="Service", path="/api/v1/services", decode=_service)


def _report_informer() -> Informer[Lease]:
    return Informer(
        name="leases",
        kind="Lease",
        path=f"/apis/coordination.k8s.io/v1/namespaces/{REPORT_NAMESPACE}/leases",
        query={"labelSelector": REPORT_SELECTOR},
        decode=_lease,
    )


def pod_informer() -> Informer[Pod]:
    """Return an informer of all pods of the cluster."""
    return Informer(name="pods", kind="Pod", path="/api/v1/pods", decode=_pod)


def _replica_set_informer(kind: ReplicaSetKind = REPLICA_SET) -> Informer[ReplicaSet]:
    return Informer(name=kind.resource, kind=kind.kind, path=f"{kind.group}/{kind.resource}", decode=kind.decode)


def deployment_informer() -> Informer[Deployment]:
    """Return an informer of all Deployments of the cluster."""
    return Informer(name="deployments", kind="Deployment", path="/apis/apps/v1/deployments", decode=_deployment)


@dataclass(frozen=True, slots=True)
class Informers:
    """The informers that all controllers share. The controller manager starts them."""

    deployments: Informer[Deployment] = field(default_factory=deployment_informer)
    replica_sets: Informer[ReplicaSet] = field(default_factory=_replica_set_informer)
    replication_controllers: Informer[ReplicaSet] = field(
        default_factory=lambda: _replica_set_informer(REPLICATION_CONTROLLER)
    )
    pods: Informer[Pod] = field(default_factory=pod_informer)
    services: Informer[Service] = field(default_factory=_service_informer)
    leases: Informer[Lease] = field(default_factory=_report_informer)
    """The Leases in which node proxies write their drain reports."""
    proxies_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set as soon as a controller needs the node proxies. Services and Leases are watched from then on."""
