"""Frozen values shared by all rooms; standard library only, no I/O, no clock.

service        a Service; `endpoint` its EndpointSlices
frontend       what one listener serves; `balancing` says how it spreads clients over endpoints,
               `maglev` which one a client has by its hash
snapshot       the proxier's state; `rescue` that of the rescue, `manifests` that of manifest files
node           this node
address        IP addresses as canonical text
drain_request  what a rollout asks of the proxies; `drain_report` is their answer, `json_values` checks both
mark           the packet mark of dials
printable      text without control characters
errors         errors by cause
version        of this package
"""

from kubeproxy.model.address import Address, Family, family_of, parse_address
from kubeproxy.model.balancing import MAX_WEIGHT, ROUND_ROBIN, Balancing, Scheduler, seed_of
from kubeproxy.model.endpoint import Endpoint, EndpointPort, EndpointSlice, SliceName
from kubeproxy.model.frontend import (
    NODE_PORTS,
    Claim,
    Destination,
    Frontend,
    FrontendName,
    Origin,
    Scope,
    Target,
    Traffic,
    Verdict,
)
from kubeproxy.model.mark import MARK
from kubeproxy.model.node import Node
from kubeproxy.model.service import (
    Protocol,
    Service,
    ServiceName,
    ServicePort,
    ServicePortName,
    TrafficPolicy,
)

__all__ = [
    "MARK",
    "MAX_WEIGHT",
    "NODE_PORTS",
    "ROUND_ROBIN",
    "Address",
    "Balancing",
    "Claim",
    "Destination",
    "Endpoint",
    "EndpointPort",
    "EndpointSlice",
    "Family",
    "Frontend",
    "FrontendName",
    "Node",
    "Origin",
    "Protocol",
    "Scheduler",
    "Scope",
    "Service",
    "ServiceName",
    "ServicePort",
    "ServicePortName",
    "SliceName",
    "Target",
    "Traffic",
    "TrafficPolicy",
    "Verdict",
    "family_of",
    "parse_address",
    "seed_of",
]
