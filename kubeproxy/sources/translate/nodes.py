"""Translates Nodes: addresses, pod CIDRs, zone, and eligibility for load balancers."""

from __future__ import annotations

from ipaddress import ip_network

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import Fault, FaultList, show
from kubeproxy.model import Address, Node
from kubeproxy.sources.translate.validation import (
    MAX_SUBDOMAIN,
    SUBDOMAIN,
    SUBDOMAIN_RULE,
    address_in,
    indexed,
    reserved,
)

LEAVING = "ToBeDeletedByClusterAutoscaler"
"""The key of the taint on a node that the cluster autoscaler is about to remove (KEP-3836). Value and effect do not
matter."""

_TYPES = ("InternalIP", "ExternalIP")
"""The types of addresses in a Node's status that are IP addresses, the preferred type first."""


def node(raw: api_types.Node) -> tuple[Node | None, list[Fault]]:
    """Return a Node of the model, and the faults. The Node is None if its name is invalid."""
    faults: list[Fault] = FaultList()
    meta = raw.metadata or api_types.ObjectMeta()
    name = meta.name or ""
    addresses = _addresses(raw.status or api_types.NodeStatus(), faults)
    if len(name) > MAX_SUBDOMAIN or not SUBDOMAIN.fullmatch(name):
        faults.append(Fault("metadata.name", f"{show(meta.name)}; {SUBDOMAIN_RULE}"))
        return None, faults
    taints = raw.spec.taints if raw.spec is not None else None
    leaving = meta.deletion_timestamp is not None or any(taint.key == LEAVING for _, taint in indexed(taints))
    zone = (meta.labels.zone if meta.labels is not None else None) or ""
    found = Node(
        name=name,
        addresses=addresses,
        pod_cidrs=_pod_cidrs(raw.spec or api_types.NodeSpec(), faults),
        zone=zone,
        uid=meta.uid or "",
        eligible=not leaving,
    )
    return found, faults


def _pod_cidrs(spec: api_types.NodeSpec, faults: list[Fault]) -> tuple[str, ...]:
    """Return the pod CIDRs. An API server before 1.16 has only the field podCIDR."""
    found: dict[str, None] = {}
    for index, text in indexed(spec.pod_cidrs or [spec.pod_cidr]):
        try:
            found[str(ip_network(text, strict=False))] = None
        except ValueError:
            faults.append(Fault(f"spec.podCIDRs[{index}]", f"{show(text)} is no CIDR"))
    return tuple(found)


def _addresses(status: api_types.NodeStatus, faults: list[Fault]) -> tuple[Address, ...]:
    found: dict[Address, None] = {}
    for kind in _TYPES:
        for index, entry in indexed(status.addresses):
            if entry.type != kind:
                continue
            path = f"status.addresses[{index}].address"
            address = address_in(entry.address)
            if address is None:
                faults.append(Fault(path, f"{show(entry.address)} is no plain IP address"))
            elif special := reserved(address, loopback=False):
                faults.append(Fault(path, f"{address} is {special}, no {kind}"))
            else:
                found[address] = None
    return tuple(found)
