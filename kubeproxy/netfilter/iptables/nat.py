"""Makes the chains of table nat, which redirect.

Each chain redirects the packets of some clients to some destinations. Chains with CONTAINER in their name are for
clients on other hosts, those with HOST and HOOKS for this node itself, and those with INTERNAL for its pods. PORTALS
chains have single addresses, and PORTS chains have node ports, to which NODEPORT chains jump.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kubeproxy.model import MARK, NODE_PORTS, Address, Destination, Family, Origin, Traffic, family_of
from kubeproxy.netfilter.cidr import disjoint, is_loopback, of_family
from kubeproxy.netfilter.iptables import entry as iptables_entry
from kubeproxy.netfilter.iptables.chains import (
    NODEPORT_CONTAINER,
    NODEPORT_HOST,
    NODEPORT_INTERNAL,
    PORTALS_CONTAINER,
    PORTALS_HOOKS,
    PORTALS_HOST,
    PORTALS_INTERNAL,
    PORTS_CONTAINER,
    PORTS_HOST,
    PORTS_INTERNAL,
    Chains,
    RuleFactory,
    Rules,
)
from kubeproxy.netfilter.iptables.entry import Entry
from kubeproxy.netfilter.ruleset import Reach, RuleSet

_PORTALS_COMMENT = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
_NODEPORTS_COMMENT = "handle service NodePorts; NOTE: this must be the last rule in the chain"
_INTERNAL_COMMENT = "handle packets of pods; NOTE: this must be before the rules for all clients"
_HOOKS_COMMENT = "handle preStop hooks of this node's pods"

_ANY_SOURCE = (None,)


def nat(wanted: RuleSet, family: Family, rule_factory: RuleFactory) -> Chains:
    """Return the chains of table nat, and the jumps to them."""
    bind = wanted.bind.get(family)
    landing = bind or wanted.landing.get(family)
    exact, on_node = _by_kind(wanted.redirects, family, Origin.ANYWHERE)
    own_exact, own_on_node = _by_kind(wanted.redirects, family, Origin.NODE)
    addresses = of_family(wanted.node_addresses, family)
    # Packets from outside to a loopback address are not redirected, because the kernel drops them as martians.
    outside = [address for address in addresses if not is_loopback(address)]
    internal = disjoint(wanted.internal_sources, family)
    redirects = _Redirects(family, rule_factory, wanted.admitted)
    pods = _Pods(family, internal, sorted(wanted.uplinks))
    # This jump comes first: if a dial by the proxy is itself redirected to the proxy, it would be dialed again.
    not_ours = iptables_entry.match_unmarked(MARK)
    prerouting = _jumps(family, PORTALS_CONTAINER, _PORTALS_COMMENT)
    output = _jumps(family, PORTALS_HOST, _PORTALS_COMMENT, not_ours)
    chains = {
        PORTALS_CONTAINER: redirects.rules(PORTALS_CONTAINER, exact, landing),
        PORTALS_HOST: redirects.rules(PORTALS_HOST, {**exact, **own_exact}, bind),
    }
    hooks = {each: wanted.hook_port for each in wanted.hooks if family_of(each.address) is family}
    if hooks:
        output += _jumps(family, PORTALS_HOOKS, _HOOKS_COMMENT, not_ours)
        chains[PORTALS_HOOKS] = redirects.rules(PORTALS_HOOKS, hooks, None)
    if internal and own_exact:
        prerouting = [*pods.jumps(PORTALS_INTERNAL, PORTALS_CONTAINER), *prerouting]
        chains[PORTALS_INTERNAL] = redirects.rules(PORTALS_INTERNAL, own_exact, landing)
    if internal and own_on_node and outside:
        prerouting += pods.jumps(NODEPORT_INTERNAL, NODEPORT_CONTAINER if on_node else None)
        chains[NODEPORT_INTERNAL] = _to_addresses(family, outside, PORTS_INTERNAL)
        chains[PORTS_INTERNAL] = redirects.rules(PORTS_INTERNAL, own_on_node, landing)
    if on_node and outside:
        prerouting += _jumps(family, NODEPORT_CONTAINER, _NODEPORTS_COMMENT)
        chains[NODEPORT_CONTAINER] = _to_addresses(family, outside, PORTS_CONTAINER)
        chains[PORTS_CONTAINER] = redirects.rules(PORTS_CONTAINER, on_node, landing)
    if (on_node or own_on_node) and addresses:
        output += _jumps(family, NODEPORT_HOST, _NODEPORTS_COMMENT, not_ours)
        chains[NODEPORT_HOST] = _to_addresses(family, addresses, PORTS_HOST)
        chains[PORTS_HOST] = redirects.rules(PORTS_HOST, {**on_node, **own_on_node}, bind)
    return {"PREROUTING": tuple(prerouting), "OUTPUT": tuple(output), **chains}


def _by_kind(redirects: Mapping[Traffic, int], family: Family, origin: Origin) -> tuple[dict[Destination, int], ...]:
    """Return the redirects of one family and origin: those of single addresses, and those of node ports."""
    exact: dict[Destination, int] = {}
    on_node: dict[Destination, int] = {}
    for (key, its_origin), port in redirects.items():
        if its_origin is origin and (":" in key.address) is (family == 6):
            (on_node if key.address == NODE_PORTS[family] else exact)[key] = port
    return exact, on_node


@dataclass(frozen=True, slots=True)
class _Redirects:
    """Makes the chains with redirects."""

    family: Family
    rule_factory: RuleFactory
    admitted: Mapping[Destination, tuple[str, ...]]
    """The value of `RuleSet.admitted`. Other clients are not redirected; table filter drops them, because table nat
    cannot drop."""

    def rules(self, chain: str, redirects: Mapping[Destination, int], to: Address | None) -> Rules:
        """Return the redirects to proxy ports at the address `to`, or at the address of the incoming interface if it is
        None."""
        items = {key: (port, self.admitted.get(key, _ANY_SOURCE)) for key, port in redirects.items()}

        def make(key: Destination, way: tuple[int, tuple[str | None, ...]]) -> list[Entry]:
            port, sources = way
            return [
                iptables_entry.rule(
                    self.family,
                    iptables_entry.dnat(to, port) if to else iptables_entry.redirect(self.family, port),
                    iptables_entry.match_port(key.protocol, key.port),
                    protocol=key.protocol,
                    destination=None if key.address == NODE_PORTS[self.family] else key.address,
                    source=source,
                )
                for source in sources
            ]

        return self.rule_factory.make(self.family, chain, items, make, to=to)


@dataclass(frozen=True, slots=True)
class _Pods:
    """Makes the jumps for packets from this node's pods. Pods on other nodes count as clients on other hosts."""

    family: Family
    internal: Iterable[str]
    uplinks: Iterable[str]

    def jumps(self, chain: str, others: str | None) -> list[Entry]:
        """Return the jumps to the chain for pods. `others` is the chain for all other clients, if there is one."""
        return [
            *(
                _jumps(self.family, others, _INTERNAL_COMMENT, sources=self.internal, interfaces=self.uplinks)
                if others
                else ()
            ),
            *_jumps(self.family, chain, _INTERNAL_COMMENT, sources=self.internal),
        ]


def _jumps(
    family: Family,
    chain: str,
    comment: str,
    *matches: bytes,
    sources: Iterable[str | None] = _ANY_SOURCE,
    interfaces: Iterable[str] = ("",),
) -> list[Entry]:
    all_matches = (*matches, iptables_entry.match_comment(comment))
    return [
        iptables_entry.rule(family, iptables_entry.jump(chain), *all_matches, source=source, interface=interface)
        for source in sources
        for interface in interfaces
    ]


def _to_addresses(family: Family, addresses: Iterable[Address], chain: str) -> Rules:
    return frozenset(
        iptables_entry.rule(family, iptables_entry.jump(chain), destination=address) for address in addresses
    )


def reach(have: Chains, ours: RuleSet, family: Family) -> Reach:
    """Return how many redirects in table nat belong to a rule set, and how many do not."""
    wanted = nat(ours, family, RuleFactory())
    mine = others = 0
    for name in (PORTALS_CONTAINER, PORTALS_HOST, PORTALS_INTERNAL, PORTS_CONTAINER, PORTS_HOST, PORTS_INTERNAL):
        same = frozenset(wanted.get(name, ()))
        for entry in have.get(name, ()):
            if iptables_entry.target_of(family, entry) in ("DNAT", "REDIRECT"):
                mine, others = (mine + 1, others) if entry in same else (mine, others + 1)
    return Reach(mine, others)
