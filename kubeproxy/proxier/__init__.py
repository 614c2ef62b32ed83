"""Turns what the sources define into listeners, proxy ports and netfilter rules.

The modules, in the order in which a change passes them:

tracker             what every source defines, which source owns a Service, and what changed since the last round
state               the four parts that a change passes:
  resolver          a Service and its slices -> its frontends
  availability      frontends -> wanted ones, without ports and endpoints that this host cannot serve
  listeners         wanted frontends -> messages for the data plane, and changes of the rules
  ruleset_builder   serving frontends -> RuleSet
kernel_sync         netfilter transactions and the conntrack entries that contradict them
proxier             the rounds: takes changes, sends messages, has the kernel synced

What the resolver uses: `frontends`, `endpoint_selection` (ready or terminating, on this node or on any, by topology),
`restrictions` with `cidr_set`, `drained_endpoints` and `drain_requests` with `resolution_times`, and the facts about
this `node`. What availability uses: `port_claims`, which hold node ports against other processes, and `loops`, which
finds endpoints that lead back to this proxy. What listeners use: `plan`, the table of moves, `port_allocator`, and
`shared_ports` for frontends beyond the number that have a port of their own. What the rules use: `data_path_choice`
(which frontends the kernel leads), `slot_budget`, `address_claims` (which service port has a destination that several
claim) and `hairpins`.

Around them: `settings` is what may change while the proxier runs, as one value; `sync_schedule` says when the next
transaction is due; `problems` has the texts about Services; `reports` calls the `observer` when something has changed;
`view` is for those that only read, and returns values of `kubeproxy.model.snapshot`; `clock` is replaced by tests.

Only `proxier`, `kernel_sync` and `clock` await. `port_claims` and `port_allocator` make system calls, by the functions
in `port_system_calls`. All else is pure: time is an argument.
"""

from kubeproxy.proxier.kernel_sync import Kernel
from kubeproxy.proxier.node import NodeFacts, Preserve
from kubeproxy.proxier.observer import ProxierObserver
from kubeproxy.proxier.port_allocator import PortRange
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.sync_schedule import Periods
from kubeproxy.proxier.tracker import START_GRACE_S, Tracker

__all__ = [
    "START_GRACE_S",
    "Kernel",
    "NodeFacts",
    "Periods",
    "PortRange",
    "PortSystemCalls",
    "Preserve",
    "Proxier",
    "ProxierObserver",
    "ProxierSettings",
    "Tracker",
]
