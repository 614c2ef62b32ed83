"""Turns what the sources define into listeners, proxy ports and netfilter rules.

The modules, in the order in which a change passes them:

tracker             what every source defines, which source owns a Service, and what changed since the last round
node                facts about this node on which frontends and rules depend
frontends           one Service and its slices -> its frontends, one per family and scope
restrictions        endpoints, addresses and ports that the configuration withholds, by `cidr_set`
loops               endpoints that lead back to this proxy
draining            the drain requests of a Service, applied to its endpoints
drains              the requests of all Services and what is in effect of them; `expiries` has their ends
endpoint_selection  which endpoints may serve: ready or terminating, on this node or on any, by topology
settings            what may change while the proxier runs, as one value
state               wanted frontends, existing listeners, their ports; it decides what may be done next
plan                compares wanted and existing -> what to open, update, add to the rules, remove from them, close
port_claims         node ports and ports at the node's own addresses, held against other processes
port_allocator      proxy ports: from a range or from the kernel; both make system calls, which are in `host_ports`
data_path           which frontends the kernel leads; `slot_budget` is the number of slots that each namespace may have
address_claims      which service port has a destination that several claim
hairpins            endpoints that the kernel may lead to themselves
ruleset_builder     serving frontends -> RuleSet
sync_schedule       when the next netfilter transaction is due
kernel_sync         netfilter transactions and the conntrack entries that contradict them
reports             log lines and calls of the observer, when something has changed
clock               the time, and waiting for it; tests have a clock of their own
observer            receives the events, for metrics and health
view                the state for those that read it, as values of `kubeproxy.model.snapshot`
proxier             the rounds

`proxier`, `kernel_sync` and `clock` await; the others are synchronous, and time is an argument to them.
"""

from kubeproxy.proxier.host_ports import HostPorts
from kubeproxy.proxier.kernel_sync import Kernel
from kubeproxy.proxier.node import NodeFacts, Preserve
from kubeproxy.proxier.observer import ProxierObserver
from kubeproxy.proxier.port_allocator import PortRange
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.sync_schedule import Periods
from kubeproxy.proxier.tracker import START_GRACE_S, Tracker

__all__ = [
    "START_GRACE_S",
    "HostPorts",
    "Kernel",
    "NodeFacts",
    "Periods",
    "PortRange",
    "Preserve",
    "Proxier",
    "ProxierObserver",
    "ProxierSettings",
    "Tracker",
]
