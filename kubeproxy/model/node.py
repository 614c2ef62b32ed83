"""This node, as the cluster or the configuration describes it."""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.model.address import Address


@dataclass(frozen=True, slots=True)
class Node:
    """The properties of a node that its proxy needs."""

    name: str
    addresses: tuple[Address, ...] = ()
    """The InternalIPs and then the ExternalIPs, each in the order of the node's status. The first address of a family
    is the primary address."""
    zone: str = ""
    """The value of the label topology.kubernetes.io/zone."""
    eligible: bool = True
    """Whether load balancers may send new connections to this node. It is false if the node is being deleted, or has
    the taint ToBeDeletedByClusterAutoscaler (KEP-3836)."""
    uid: str = ""
    """The node's metadata.uid, for owner references to the node."""
    pod_cidrs: tuple[str, ...] = ()
    """The CIDRs of the node's pods (``spec.podCIDRs``), if the cluster assigns CIDRs to nodes."""
