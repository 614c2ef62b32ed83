"""The settings of the proxier that may change while it runs, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubeproxy.model import Address, Family, Protocol, Scheduler, Target
from kubeproxy.proxier.data_path_choice import USERSPACE_ONLY, DataPathPolicy
from kubeproxy.proxier.local_pods import Leaving
from kubeproxy.proxier.node import UNKNOWN_NODE, NodeFacts
from kubeproxy.proxier.port_allocator import PortRange
from kubeproxy.proxier.restrictions import NO_RESTRICTIONS, Restrictions
from kubeproxy.proxier.sync_schedule import Periods


@dataclass(frozen=True, slots=True)
class ProxierSettings:
    """The settings of the proxier. `Proxier.use` puts another value into effect, and does only what the difference
    requires."""

    families: frozenset[Family] = frozenset(Family)
    """The address families of this kernel."""
    protocols: frozenset[Protocol] = frozenset({Protocol.TCP, Protocol.UDP})
    facts: NodeFacts = UNKNOWN_NODE
    """The facts about this node. If `facts.preserve` is widened, clients whose endpoint is dialed before the kernel's
    transaction may have to wait for their next attempt."""
    restrictions: Restrictions = NO_RESTRICTIONS
    """The restrictions. Another object counts as a change even if it is equal, so that after a reload the ports of
    other processes are checked again."""
    port_range: PortRange | None = None
    """The range of new proxy ports, or None if the kernel chooses. Ports in use stay as they are."""
    own_ports: int = 1 << 30
    """How many frontends have a proxy port of their own. The other frontends share ports. This never changes."""
    periods: Periods = Periods()  # noqa: RUF009 - frozen
    landing: Mapping[Family, Address] = field(default_factory=dict)
    """The addresses to which clients are redirected (see `RuleSet`). A change costs one transaction."""
    bind: Mapping[Family, Address] = field(default_factory=dict)
    """The addresses of listeners, by default the wildcard address. Listeners at another address are opened anew, which
    breaks their connections."""
    guard_sockets: bool = False
    """Whether the data plane's listeners have IP_TRANSPARENT (see `RuleSet`)."""
    data_path: DataPathPolicy = USERSPACE_ONLY
    """The settings that decide the data path of each frontend. Running connections stay on their path."""
    rescue_group: int | None = None
    """The NFLOG group to which the rules report failed connections, or None if they report none."""
    tcp_timeouts: Mapping[str, int] = field(default_factory=dict)
    """The timeouts of connections that the rules report (see `RuleSet`)."""
    scheduler: Scheduler = Scheduler.ROUND_ROBIN
    """The scheduler of Services that do not ask for one."""
    drains: bool = False
    """Whether drain requests count."""
    aside: frozenset[Target] = frozenset()
    """The endpoints that an operator has taken out. They get new clients only if there is no other endpoint."""
    drain_hook_port: int = 0
    """The port of this node's pods to which preStop hooks connect, or 0 for none."""
    drain_hook: int = 0
    """The port on loopback where hooks are answered, or 0 for none."""
    leaving: frozenset[Leaving] = frozenset()
    """The pods of this node whose preStop hook runs. They get new clients only if there is no other endpoint."""


DEFAULTS = ProxierSettings()
