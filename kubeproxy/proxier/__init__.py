"""Turns what the sources define into listeners, proxy ports and netfilter rules.

The modules, in the order in which a change passes through them:

tracker             what every source defines, which source owns a Service, and what changed since the last round
state               the four parts that process a change:
  resolver          a Service and its slices -> its frontends
  availability      frontends -> wanted ones, without ports and endpoints that this host cannot serve
  listeners         wanted frontends -> messages for the data plane, and changes of the rules
  ruleset_builder   serving frontends -> RuleSet
kernel_sync         netfilter transactions and the conntrack entries that contradict them
proxier             the rounds: takes changes, sends messages, has the kernel synced

The resolver uses `frontends`, `endpoint_selection` (ready or terminating, on this node or on any, by topology),
`restrictions` with `cidr_set`, `drained_endpoints`, `drain_requests`, `slow_start`, `resolution_times`, the facts about
this `node`, and its `local_pods`. Availability uses `port_claims`, which bind node ports so that no other process can,
and `loops`, which finds endpoints that are addresses of this proxy itself. Listeners use `plan` (the table of moves),
`port_allocator`, and `shared_ports` for frontends that get no port of their own. The rules use `data_path_choice`
(which frontends take the kernel path), `kernel_slots` with `slot_budget`, `address_claims` (which service port gets a
destination that several claim) and `hairpins`.

Around them: `settings` holds what may change while the proxier runs, as one value; `sync_schedule` decides when the
next transaction is due; `problems` writes the texts about Services; `reports` calls the `observer` when something has
changed; `view` serves readers with values of `kubeproxy.model.snapshot`; `clock` can be replaced in tests.

Only `proxier`, `kernel_sync` and `clock` await. `port_claims` and `port_allocator` make system calls, by the functions
in `port_system_calls`. Everything else is pure, and gets the time as an argument.
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
