"""From what the sources say to what the kernel and the data plane do.

The nouns, in the order in which a change meets them:

Tracker     what every source says, which of them owns a Service, and what changed since somebody last looked
NodeFacts   this node, as far as the answers depend on it
resolve     one Service and its slices -> the frontends that it asks for, one per family and scope
endpoints   who may answer: ready or leaving, here or anywhere, near or far
ProxierState      which frontends are wanted, which listeners stand, which ports they hold; it knows what may be done next
plan        one look at wanted and standing -> what to open, tell, take out of the rules, close
NodePortClaims      node ports and ports at the node's own addresses, held against other processes
Ports       the proxy ports: from a range or from the kernel
Rules       serving frontends -> RuleSet
Schedule    when netfilter may be spoken to next
Clock       the time, and how to wait for it; in tests, time that passes when it is told to
Proxier     carries out what the others decided: the only one that awaits, and the only one that has a Clock

Everything else is synchronous, and is told what time it is.
"""

from kubeproxy.proxier.node import NodeFacts, Preserve
from kubeproxy.proxier.observer import ProxierObserver
from kubeproxy.proxier.port_allocator import PortRange
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.proxier.snapshot import FrontendStatus, Snapshot
from kubeproxy.proxier.sync_schedule import Periods
from kubeproxy.proxier.tracker import START_GRACE_S, Tracker

__all__ = [
    "START_GRACE_S",
    "FrontendStatus",
    "NodeFacts",
    "Periods",
    "PortRange",
    "Preserve",
    "Proxier",
    "ProxierObserver",
    "Snapshot",
    "Tracker",
]
