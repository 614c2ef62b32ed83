"""Drain reports, in which each node's proxy answers drain requests.

Each node has a Lease with its report, as JSON, in an annotation:

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
"""The annotation of a Lease with the report. A label of the same name selects these Leases."""
NODE: Final = "node"
LEAVING: Final = "leaving"
"""A value of the label. `NODE` marks the report of the instance that serves the node. `LEAVING` marks the report of an
instance that was replaced by a newer one, which only counts its remaining connections."""
REPORT_SELECTOR: Final = REPORT
REPORT_NAMESPACE: Final = "kubeproxy-reports"
"""The namespace of these Leases. It contains nothing else, because nodes' tokens may write Leases in it."""
REPORT_PREFIX: Final = "kubeproxy-drain-"
"""The prefix of a Lease's name. The node's name follows."""
REPORT_BYTES: Final = 65_536
"""The longest report. Proxies keep to it even with many rollouts, and longer reports are not decoded."""
LEASE_S: Final = 150
"""How long a report is valid after it was renewed, in seconds: two heartbeats, of which one may be missed, and some
clock skew."""


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """A node's answer to the requests of one Service."""

    generation: int = 0
    """The newest generation of requests that is in effect on the node."""
    unused: frozenset[Address] = frozenset()
    """The addresses that requests ask to use and that are not yet usable endpoints of this proxy."""
    kept: frozenset[Address] = frozenset()
    """The addresses that requests ask to drain and that still get connections, because there is no other endpoint."""
    open: Mapping[Address, int] = field(default_factory=dict)
    """The number of the node's open connections by address, without zeros."""


@dataclass(frozen=True, slots=True)
class DrainState:
    """This node's state of one Service's requests, from which its report is made."""

    report: ServiceReport
    """The report, still without open connections, which the data plane counts."""
    counted: frozenset[Address]
    """The addresses whose open connections have to be counted."""
    draining: frozenset[Address]
    """The endpoints that are draining."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The drain report of one node's proxy."""

    services: Mapping[ServiceName, ServiceReport] = field(default_factory=dict)
    """The reports about each Service that has requests."""
    omitted: Mapping[str, int] = field(default_factory=dict)
    """The number of Services that did not fit into the report, by namespace. The empty name counts the Services of
    further namespaces."""


def lease_name(node: str, role: str = NODE) -> str:
    """Return the name of the Lease with a node's report. `role` is `NODE` or `LEAVING`."""
    return f"{REPORT_PREFIX}{node}" if role == NODE else f"{REPORT_PREFIX}{node}.{role}"


def encode_report(report: NodeReport) -> str:
    """Encode a report for the annotation. Equal reports become equal texts."""
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
    """Decode the report in an annotation. Raise ValueError, with a message for the user, if the text is invalid."""
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
    """Return a list of addresses, without parsing them, because they are only compared with the addresses of requests.

    Parsing would take most of the time of a controller that reads the reports of a thousand nodes.
    """
    if not isinstance(value, list):
        raise ValueError(f"{where}: found {shown(value)}; allowed is a list of IP addresses")
    return [Address(word_in(text, where)) for text in value]


def _counts(value: object, where: str) -> dict[str, int]:
    return {name: whole_in(count, f"{where}[{name}]") for name, count in object_in(value, where).items()}
