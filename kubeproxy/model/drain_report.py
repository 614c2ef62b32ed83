"""Drain reports: what each node's proxy answers to drain requests.

A report stands in an annotation of a Lease for each node, as JSON:

    {"services": {"shop/web": {"generation": 1763827200123, "unused": ["10.244.2.9"], "open": {"10.244.1.7": 3}}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kubeproxy.model.address import Address
from kubeproxy.model.json_values import addresses_in, object_in, parsed, shown, to_text, whole_in
from kubeproxy.model.service import ServiceName

REPORT: Final = "kubeproxy/drain-report"
"""The annotation of a node's Lease, and the label by which these Leases are selected."""
NODE: Final = "node"
LEAVING: Final = "leaving"
"""The label's values: the report of the instance that serves a node, and that of one that another has replaced, which
only counts the connections that it still has."""
REPORT_SELECTOR: Final = REPORT
REPORT_NAMESPACE: Final = "kubeproxy-reports"
"""A namespace of nothing else: a node's token may write Leases in it."""
REPORT_PREFIX: Final = "kubeproxy-drain-"
"""A node's Lease is named by this and the node."""


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """What one node's proxy has put into effect of a Service's requests."""

    generation: int = 0
    """The newest generation that is in effect."""
    unused: frozenset[Address] = frozenset()
    """Addresses of pods to be used that this proxy does not have as ready endpoints yet."""
    kept: frozenset[Address] = frozenset()
    """Addresses to be drained that still get connections, because there is no other endpoint."""
    open: Mapping[Address, int] = field(default_factory=dict)
    """Open connections of this node, without zeros."""


@dataclass(frozen=True, slots=True)
class DrainState:
    """What this node has put into effect of one Service's requests."""

    report: ServiceReport
    """Without open connections, which the data plane counts."""
    counted: frozenset[Address]
    """The addresses for which open connections are asked."""
    draining: frozenset[Address]
    """The endpoints that drain."""
    spread_s: float
    """See `DrainRequests.spread_s`."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The report of one node's proxy."""

    services: Mapping[ServiceName, ServiceReport] = field(default_factory=dict)
    """Services with requests."""


def lease_name(node: str, role: str = NODE) -> str:
    """The name of a node's Lease."""
    return f"{REPORT_PREFIX}{node}" if role == NODE else f"{REPORT_PREFIX}{node}.{role}"


def encode_report(report: NodeReport) -> str:
    """The annotation of a Lease; equal reports are equal texts."""
    services: dict[str, Any] = {}
    for name in sorted(report.services):
        of_service = report.services[name]
        entry: dict[str, Any] = {"generation": of_service.generation}
        if of_service.unused:
            entry["unused"] = sorted(of_service.unused)
        if of_service.kept:
            entry["kept"] = sorted(of_service.kept)
        if of_service.open:
            entry["open"] = dict(sorted(of_service.open.items()))
        services[str(name)] = entry
    return to_text({"services": services})


def decode_report(text: str) -> NodeReport:
    """The report of an annotation. ValueError, with what is wrong, for anything else."""
    services = object_in(object_in(parsed(text), "").get("services", {}), "services")
    found: dict[ServiceName, ServiceReport] = {}
    for name, value in services.items():
        namespace, separator, own = name.partition("/")
        if not separator:
            raise ValueError(f"services: found {shown(name)}; allowed is NAMESPACE/NAME")
        where = f"services[{name}]"
        entry = object_in(value, where)
        found[ServiceName(namespace, own)] = ServiceReport(
            generation=whole_in(entry.get("generation"), f"{where}.generation"),
            unused=frozenset(addresses_in(entry.get("unused", []), f"{where}.unused")),
            kept=frozenset(addresses_in(entry.get("kept", []), f"{where}.kept")),
            open=_counts(entry.get("open", {}), f"{where}.open"),
        )
    return NodeReport(found)


def _counts(value: object, where: str) -> dict[Address, int]:
    counts = object_in(value, where)
    addresses = addresses_in(list(counts), where)
    return {a: whole_in(count, f"{where}[{a}]") for a, count in zip(addresses, counts.values(), strict=True)}
