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
    """The settings of the proxier. `Proxier.use` puts other values into effect, and does only what the differences
    require."""

    families: frozenset[Family] = frozenset(Family)
    """The address families that the kernel has."""
    protocols: frozenset[Protocol] = frozenset({Protocol.TCP, Protocol.UDP})
    facts: NodeFacts = UNKNOWN_NODE
    """The facts about this node. If `facts.preserve` changes to include more endpoints, dials between this change and
    the next transaction may fail, and those clients have to try again."""
    restrictions: Restrictions = NO_RESTRICTIONS
    """The restrictions. A new object counts as a change even if it is equal, so that a reload checks the ports of other
    processes again."""
    port_range: PortRange | None = None
    """The range for new proxy ports, or None if the kernel chooses them. Ports in use do not change."""
    own_ports: int = 1 << 30
    """How many frontends have a proxy port of their own. Further frontends share ports. This never changes."""
    periods: Periods = Periods()  # noqa: RUF009 - frozen
    landing: Mapping[Family, Address] = field(default_factory=dict)
    """The addresses to which clients are redirected (see `RuleSet`). A change needs one transaction."""
    bind: Mapping[Family, Address] = field(default_factory=dict)
    """The addresses of listeners, by default the wildcard address. A change closes and reopens listeners, which breaks
    their connections."""
    guard_sockets: bool = False
    """Whether the data plane's listeners have IP_TRANSPARENT (see `RuleSet`)."""
    data_path: DataPathPolicy = USERSPACE_ONLY
    """The settings that decide the data path of each frontend. Running connections keep their path."""
    rescue_group: int | None = None
    """The NFLOG group to which the rules report failed connections, or None if they report none."""
    tcp_timeouts: Mapping[str, int] = field(default_factory=dict)
    """The conntrack timeouts of connections that the rules report (see `RuleSet`)."""
    scheduler: Scheduler = Scheduler.ROUND_ROBIN
    """The scheduler of Services that do not name one."""
    drains: bool = False
    """Whether drain requests have an effect."""
    aside: frozenset[Target] = frozenset()
    """The endpoints that an operator has taken out. They get new clients only if there is no other endpoint."""
    drain_hook_port: int = 0
    """The port to which the preStop hooks of this node's pods connect, or 0 if there are no hooks."""
    drain_hook: int = 0
    """The loopback port at which hooks are answered, or 0 if there are no hooks."""
    leaving: frozenset[Leaving] = frozenset()
    """The pods of this node whose preStop hook is running. They get new clients only if there is no other endpoint."""


DEFAULTS = ProxierSettings()
