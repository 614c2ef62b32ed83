"""Frozen values that all rooms share. They use the standard library only, without I/O and clock.

service        a Service; `endpoint` has its EndpointSlices
frontend       what one listener serves; `balancing` says how it spreads clients over endpoints, and `maglev`
               finds the endpoint of a client by a hash
snapshot       the proxier's state; `rescue` has that of the rescue, and `manifests` that of manifest files
node           this node
address        IP addresses as canonical text
drain_request  what a rollout asks of the proxies; `drain_report` is their answer, and `json_values` checks both
mark           the packet mark of dials
printable      text without control characters
errors         errors by cause
version        the version of this package
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
