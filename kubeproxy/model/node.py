"""This node, as the cluster (or the operator) describes it."""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.model.address import Address


@dataclass(frozen=True, slots=True)
class Node:
    """What a proxy has to know of the node that it runs on."""

    name: str
    addresses: tuple[Address, ...] = ()
    """InternalIPs first, then ExternalIPs, each in the order of the status; the first of a family is its primary."""
    zone: str = ""
    """Label topology.kubernetes.io/zone."""
    eligible: bool = True
    """Whether load balancers may send it new connections: neither being deleted nor tainted
    ToBeDeletedByClusterAutoscaler (KEP-3836)."""
