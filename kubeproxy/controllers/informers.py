"""Clients and informers of the kinds that workload controllers use."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kubeproxy.controllers.objects import Deployment, Lease, Pod, ReplicaSet, Service
from kubeproxy.controllers.replicaset_kind import REPLICA_SET, ReplicaSetKind
from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.object_client import ObjectClient, Requests
from kubeproxy.model.drain_report import REPORT_NAMESPACE, REPORT_SELECTOR

_service = msgspec.json.Decoder(Service).decode
_lease = msgspec.json.Decoder(Lease).decode
_pod = msgspec.json.Decoder(Pod).decode
_deployment = msgspec.json.Decoder(Deployment).decode


def pod_client(requests: Requests, *, written: Callable[[Pod], None] | None = None) -> ObjectClient[Pod]:
    """Requests for pods."""
    return ObjectClient(requests, group="/api/v1", resource="pods", decode=_pod, written=written)


def replica_set_client(
    requests: Requests, kind: ReplicaSetKind = REPLICA_SET, *, written: Callable[[ReplicaSet], None] | None = None
) -> ObjectClient[ReplicaSet]:
    """Requests for ReplicaSets or ReplicationControllers."""
    return ObjectClient(requests, group=kind.group, resource=kind.resource, decode=kind.decode, written=written)


def deployment_client(
    requests: Requests, *, written: Callable[[Deployment], None] | None = None
) -> ObjectClient[Deployment]:
    """Requests for Deployments."""
    return ObjectClient(requests, group="/apis/apps/v1", resource="deployments", decode=_deployment, written=written)


def service_client(requests: Requests, *, written: Callable[[Service], None] | None = None) -> ObjectClient[Service]:
    """Requests for Services."""
    return ObjectClient(requests, group="/api/v1", resource="services", decode=_service, written=written)


def lease_client(requests: Requests) -> ObjectClient[Lease]:
    """Requests for the Leases by which node proxies report."""
    return ObjectClient(requests, group="/apis/coordination.k8s.io/v1", resource="leases", decode=_lease)


def service_informer() -> Informer[Service]:
    """Return all Services of the cluster."""
    return Informer(name="services", kind="Service", path="/api/v1/services", decode=_service)


def report_informer() -> Informer[Lease]:
    """Return the Leases by which node proxies report."""
    return Informer(
        name="leases",
        kind="Lease",
        path=f"/apis/coordination.k8s.io/v1/namespaces/{REPORT_NAMESPACE}/leases",
        query={"labelSelector": REPORT_SELECTOR},
        decode=_lease,
    )


def pod_informer() -> Informer[Pod]:
    """Return all pods of the cluster."""
    return Informer(name="pods", kind="Pod", path="/api/v1/pods", decode=_pod)


def replica_set_informer(kind: ReplicaSetKind = REPLICA_SET) -> Informer[ReplicaSet]:
    """Return all ReplicaSets, or all ReplicationControllers."""
    return Informer(name=kind.resource, kind=kind.kind, path=f"{kind.group}/{kind.resource}", decode=kind.decode)


def deployment_informer() -> Informer[Deployment]:
    """Return all Deployments."""
    return Informer(name="deployments", kind="Deployment", path="/apis/apps/v1/deployments", decode=_deployment)
