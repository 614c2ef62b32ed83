"""Generates clusters of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.apiserver.cluster import Cluster

SLICE_MAX = 1000
"""As many endpoints as the API server admits in a slice."""


def service(
    number: int, *, namespace: str = "demo", cluster_ip: str | None = None, ports: Sequence[int] = (80,)
) -> dict[str, Any]:
    """Service ``service-NUMBER`` with a cluster IP of its own in 10.96.0.0/12."""
    address = cluster_ip or f"10.{96 + (number >> 16)}.{(number >> 8) & 255}.{number & 255}"
    return {
        "metadata": {"name": f"service-{number}", "namespace": namespace},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [
                {"name": f"p{port}", "protocol": "TCP", "port": port, "targetPort": port + 8000} for port in ports
            ],
        },
        "status": {"loadBalancer": {}},
    }


def endpoint_slice(
    number: int,
    addresses: Sequence[str],
    *,
    namespace: str = "demo",
    suffix: str = "a",
    ports: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Slice ``service-NUMBER-SUFFIX`` of service ``service-NUMBER``, all endpoints ready."""
    return {
        "metadata": {
            "name": f"service-{number}-{suffix}",
            "namespace": namespace,
            "labels": {
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": f"service-{number}",
            },
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": f"node-{index % 7}",
            }
            for index, address in enumerate(addresses)
        ],
        "ports": [{"name": name, "protocol": "TCP", "port": port} for name, port in (ports or {"p80": 8080}).items()],
    }


def endpoint_slices(number: int, addresses: Sequence[str]) -> list[dict[str, Any]]:
    """The slices of a service with any number of endpoints, the first one as `endpoint_slice` names it."""
    pieces = [addresses[first : first + SLICE_MAX] for first in range(0, len(addresses), SLICE_MAX)] or [()]
    return [endpoint_slice(number, piece, suffix=f"a{index or ''}") for index, piece in enumerate(pieces)]


def endpoints(number: int, addresses: Sequence[str], *, namespace: str = "demo") -> dict[str, Any]:
    """The legacy Endpoints object of service ``service-NUMBER``."""
    return {
        "metadata": {"name": f"service-{number}", "namespace": namespace},
        "subsets": [
            {
                "addresses": [{"ip": address} for address in addresses],
                "ports": [{"name": "p80", "port": 8080, "protocol": "TCP"}],
            }
        ],
    }


def fill(cluster: Cluster, *, services: int, endpoints_each: int) -> None:
    """Put `services` Services into a cluster, each with one slice of `endpoints_each` endpoints in 10.0.0.0/10."""
    for number in range(services):
        first = number * endpoints_each
        addresses = [
            f"10.{(index >> 16) & 63}.{(index >> 8) & 255}.{index & 255}"
            for index in range(first, first + endpoints_each)
        ]
        cluster.put("services", service(number))
        for item in endpoint_slices(number, addresses):
            cluster.put("endpointslices", item)
