"""Drain reports: what each node's proxy answers to drain requests.

A report stands in an annotation of a Lease for each node, as JSON:

    {"services": {"shop/web": {"generation": 1763827200123, "unused": ["10.244.2.9"], "open": {"10.244.1.7": 3}}},
     "omitted": {"crowd": 12}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kubeproxy.model.address import Address
from kubeproxy.model.json_values import object_in, parsed, shown, to_text, whole_in, word_in
from kubeproxy.model.service import ServiceName

REPORT: Final = "kubeproxy/drain-report"
"""The annotation of a node's Lease, and the label by which these Leases are selected."""
NODE: Final = "node"
LEAVING: Final = "leaving"
"""The label's values: one for the report of the instance that serves a node, and one for that of an instance that
another has replaced. The latter only counts the connections that it still has."""
REPORT_SELECTOR: Final = REPORT
REPORT_NAMESPACE: Final = "kubeproxy-reports"
"""A namespace for nothing but these Leases, because a node's token may write Leases in it."""
REPORT_PREFIX: Final = "kubeproxy-drain-"
"""A node's Lease is named by this prefix and the node."""
REPORT_BYTES: Final = 65_536
"""The longest report, which a node with many rollouts may have. A longer one is from no proxy, and is not read."""
LEASE_S: Final = 150
"""For how long a report counts as one of a live node. It is two heartbeats, one of which may be late, and some clock
skew."""


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """What one node's proxy has put into effect of one Service's requests."""

    generation: int = 0
    """The newest generation that is in effect."""
    unused: frozenset[Address] = frozenset()
    """The addresses in requests to use a pod at which this proxy has no ready endpoint yet."""
    kept: frozenset[Address] = frozenset()
    """The addresses to be drained that still get connections, because there is no other endpoint."""
    open: Mapping[Address, int] = field(default_factory=dict)
    """The number of open connections of this node by address, without zeros."""


@dataclass(frozen=True, slots=True)
class DrainState:
    """What this node has put into effect of one Service's requests."""

    report: ServiceReport
    """The report without open connections, which the data plane counts."""
    counted: frozenset[Address]
    """The addresses for which requests ask for the open connections."""
    draining: frozenset[Address]
    """The endpoints that drain."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The report of one node's proxy."""

    services: Mapping[ServiceName, ServiceReport] = field(default_factory=dict)
    """The Services with requests."""
    omitted: Mapping[str, int] = field(default_factory=dict)
    """The number of Services that did not fit into the report, by namespace. Those under the empty name belong to
    namespaces that are not named."""


def lease_name(node: str, role: str = NODE) -> str:
    """Return the name of a node's Lease."""
    return f"{REPORT_PREFIX}{node}" if role == NODE else f"{REPORT_PREFIX}{node}.{role}"


def encode_report(report: NodeReport) -> str:
    """Return a report as the annotation of a Lease. Equal reports are equal texts."""
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
    omitted = {"omitted": dict(sorted(report.omitted.items()))} if report.omitted else {}
    return to_text({"services": services, **omitted})


def decode_report(text: str) -> NodeReport:
    """Parse the report of an annotation. Raise ValueError, which says what is wrong, for any other text."""
    if len(text) > REPORT_BYTES:
        raise ValueError(f"found {len(text)} characters; allowed are at most {REPORT_BYTES}")
    root = object_in(parsed(text), "")
    services = object_in(root.get("services", {}), "services")
    reports: dict[ServiceName, ServiceReport] = {}
    for name, value in services.items():
        namespace, separator, own = name.partition("/")
        if not separator:
            raise ValueError(f"services: found {shown(name)}; allowed is NAMESPACE/NAME")
        where = f"services[{name}]"
        entry = object_in(value, where)
        reports[ServiceName(namespace, own)] = ServiceReport(
            generation=whole_in(entry.get("generation"), f"{where}.generation"),
            unused=frozenset(_addresses(entry.get("unused", []), f"{where}.unused")),
            kept=frozenset(_addresses(entry.get("kept", []), f"{where}.kept")),
            open={Address(a): n for a, n in _counts(entry.get("open", {}), f"{where}.open").items()},
        )
    return NodeReport(reports, _counts(root.get("omitted", {}), "omitted"))


def _addresses(value: object, where: str) -> list[Address]:
    """Return addresses as texts. They are only compared with those of requests.

    Parsing them would be most of the work of a controller that reads the reports of a thousand nodes.
    """
    if not isinstance(value, list):
        raise ValueError(f"{where}: found {shown(value)}; allowed is a list of IP addresses")
    return [Address(word_in(text, where)) for text in value]


def _counts(value: object, where: str) -> dict[str, int]:
    return {name: whole_in(count, f"{where}[{name}]") for name, count in object_in(value, where).items()}
