"""Immutable values that all rooms share. They import only the standard library, and use no I/O and no clock.

service        a Service; `endpoint` has the EndpointSlices
frontend       the part of a service port that one listener serves; `balancing` says how clients are spread, `maglev`
               finds the endpoint of a client by a hash
snapshot       the proxier's state; `rescue` has the state of the rescue, `manifests` that of manifest files
node           this node
address        IP addresses as canonical text
drain_request  the requests of rollouts to the proxies; `drain_report` has the answers, `json_values` checks both
mark           the packet mark of dials
printable      escapes control characters
errors         the base classes of errors, by cause
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
