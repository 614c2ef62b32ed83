"""This node, as the cluster (or the operator) describes it."""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.model.address import Address


@dataclass(frozen=True, slots=True)
class Node:
    """The facts about a node that its proxy needs."""

    name: str
    addresses: tuple[Address, ...] = ()
    """InternalIPs first, then ExternalIPs, each in the order of the status; the first of a family is its primary."""
    zone: str = ""
    """Label topology.kubernetes.io/zone."""
    eligible: bool = True
    """Whether load balancers may send new connections here: neither being deleted nor tainted
    ToBeDeletedByClusterAutoscaler (KEP-3836)."""
    uid: str = ""
    """metadata.uid, by which other objects refer to it as their owner."""
