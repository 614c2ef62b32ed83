"""A rule set as chains of the legacy tables, and the difference between two of them. Pure.

Names and comments are those of kube-proxy's userspace mode, so that one takes over what the other left. Our rules in a
chain exclude one another, so their order does not matter, and a chain is a set. ``docs/netfilter.md`` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kubeproxy.model import Address, Family
from kubeproxy.netfilter import xt_entry
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.netfilter.xt_entry import Entry

NAT, FILTER = "nat", "filter"

PORTALS_CONTAINER = "KUBE-PORTALS-CONTAINER"
PORTALS_HOST = "KUBE-PORTALS-HOST"
PROXY_PORTS = "KUBE-PROXY-PORTS"
PROXY_DIRECT = "KUBE-PROXY-DIRECT"
PROXY_CLOSED = "KUBE-PROXY-CLOSED"

OWN: Mapping[str, frozenset[str]] = {
    NAT: frozenset({PORTALS_CONTAINER, PORTALS_HOST, "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST"}),
    FILTER: frozenset({PROXY_PORTS, PROXY_DIRECT, PROXY_CLOSED, "KUBE-NODEPORT-NON-LOCAL"}),
}
"""Our chains in each table, those that kube-proxy's userspace mode had besides included: it left them on purpose."""

BUILTIN: Mapping[str, tuple[str, ...]] = {NAT: ("PREROUTING", "OUTPUT"), FILTER: ("INPUT",)}
"""Where those are jumped to from."""

_PORTALS_COMMENT = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
_PORTS_COMMENT = "guard proxy ports, refuse clients of services without endpoints"

Chains = Mapping[str, frozenset[Entry]]
"""Our chains with their rules, and the built-in ones with our jumps in them."""


def chains_of(wanted: RuleSet, family: Family) -> dict[str, Chains]:
    """What a rule set comes to in each table of a family. The chains and jumps are there also when they have nothing
    to do: with the last rule that needs connection tracking, the kernel would end it, and every running connection
    with it."""
    redirects = {key: port for key, port in wanted.redirects.items() if (":" in key.address) is (family == 6)}
    bind = wanted.bind.get(family)
    landing = bind or wanted.landing.get(family)

    def portals(to: Address | None) -> frozenset[Entry]:
        return frozenset(
            xt_entry.rule(
                family,
                xt_entry.dnat(to, port) if to else xt_entry.redirect(family, port),
                xt_entry.match_port(key.protocol, key.port),
                protocol=key.protocol,
                destination=key.address,
            )
            for key, port in redirects.items()
        )

    def jump(chain: str, *matches: bytes) -> Entry:
        return xt_entry.rule(family, xt_entry.jump(chain), *matches)

    first_packets = xt_entry.match_state(xt_entry.NEW | xt_entry.INVALID | xt_entry.UNTRACKED)
    return {
        NAT: {
            "PREROUTING": frozenset({jump(PORTALS_CONTAINER, xt_entry.match_comment(_PORTALS_COMMENT))}),
            "OUTPUT": frozenset({jump(PORTALS_HOST, xt_entry.match_comment(_PORTALS_COMMENT))}),
            PORTALS_CONTAINER: portals(landing),
            PORTALS_HOST: portals(bind),
        },
        FILTER: {
            "INPUT": frozenset({jump(PROXY_PORTS, first_packets, xt_entry.match_comment(_PORTS_COMMENT))}),
            PROXY_PORTS: frozenset(
                {
                    jump(PROXY_CLOSED, xt_entry.match_state(xt_entry.DNAT)),
                    jump(PROXY_DIRECT, xt_entry.match_state(xt_entry.DNAT, invert=True)),
                }
            ),
            PROXY_DIRECT: frozenset(
                xt_entry.rule(family, xt_entry.jump("DROP"), xt_entry.match_port(*port), protocol=port.protocol)
                for port in wanted.guarded
            ),
            PROXY_CLOSED: frozenset(
                xt_entry.rule(
                    family,
                    xt_entry.jump("DROP") if port in wanted.dropped else xt_entry.reject(family, port.protocol),
                    xt_entry.match_port(*port),
                    protocol=port.protocol,
                )
                for port in wanted.refused | wanted.dropped
            ),
        },
    }


def is_needed(wanted: RuleSet, family: Family) -> bool:
    """Whether a family's tables have to be touched if there is nothing of ours in them. Touching loads them into the
    kernel, so IPv6's are only for IPv6 addresses; an IPv4 listener's proxy port cannot be reached by IPv6 anyway."""
    return family is Family.IPV4 or any(":" in key.address for key in wanted.redirects)


def union(have: Chains, wanted: Chains) -> Chains:
    """What is there and what is wanted, together."""
    return {name: have.get(name, frozenset()) | wanted.get(name, frozenset()) for name in have.keys() | wanted.keys()}


@dataclass(frozen=True, slots=True)
class Difference:
    """What to do to a table, in this order."""

    create: tuple[str, ...]
    flush: tuple[str, ...]
    add: tuple[tuple[str, Entry], ...]
    delete: tuple[tuple[str, Entry], ...]
    drop: tuple[str, ...]

    def __bool__(self) -> bool:
        return any((self.create, self.flush, self.add, self.delete, self.drop))


def difference(have: Chains, wanted: Chains, *, table: str) -> Difference:
    """What turns one into the other."""
    nothing: frozenset[Entry] = frozenset()
    own = OWN[table]
    drop = [name for name in have if name not in wanted and name in own]
    flush, add, delete = [], [], []
    for name in {**have, **wanted}:
        if name in drop:
            continue
        old, new = have.get(name, nothing), wanted.get(name, nothing)
        gone = old - new
        # Finding a rule to delete takes a walk through its chain, so a chain that loses most is filled anew.
        if len(gone) > len(new) and name in own:
            flush.append(name)
            add += [(name, entry) for entry in new]
        else:
            add += [(name, entry) for entry in new - old]
            delete += [(name, entry) for entry in gone]
    return Difference(
        create=tuple(name for name in wanted if name not in have and name in own),
        flush=tuple(flush),
        add=tuple(add),
        delete=tuple(delete),
        drop=tuple(drop),
    )
