"""This node, as the cluster (or the operator) describes it."""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.model.address import Address


@dataclass(frozen=True, slots=True)
class Node:
    """The facts about a node that its proxy needs."""

    name: str
    addresses: tuple[Address, ...] = ()
    """The InternalIPs first, then the ExternalIPs, each in the order of the status. The first address of a family is
    its primary one."""
    zone: str = ""
    """The value of the label topology.kubernetes.io/zone."""
    eligible: bool = True
    """Whether load balancers may send new connections here. They may not if the node is being deleted, or is tainted
    ToBeDeletedByClusterAutoscaler (KEP-3836)."""
    uid: str = ""
    """The node's metadata.uid, with which other objects refer to the node as their owner."""
    pod_cidrs: tuple[str, ...] = ()
    """The address blocks of its pods, if the cluster assigns them to nodes (``spec.podCIDRs``)."""
