"""The rules of the static chains of our nftables table. ``docs/netfilter.md`` and ``docs/data-paths.md`` show them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kubeproxy.model import MARK, Family, Origin
from kubeproxy.netfilter.nftables import rescue
from kubeproxy.netfilter.nftables.declarations import DIVERT, IP, PREFIX, place
from kubeproxy.netfilter.ruleset import DirectLink, Masquerade, RuleSet

_LOOPBACK = {Family.IPV4: "127.0.0.0/8", Family.IPV6: "::1"}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and the comment by which it is recognized."""

    text: str
    why: str

    @property
    def comment(self) -> str:
        """Return the rule's reason with a digest of its text. Rules are compared by this comment, because versions of
        nft print them differently."""
        return f"{self.why} #{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"


class Content(NamedTuple):
    """The properties of a rule set that decide which rules exist."""

    spreads: bool
    """Whether there are any spreads."""
    sticky: bool
    """Whether any spread has session affinity."""
    rescued: bool
    """Whether failed connections of the spreads are reported."""
    filled: frozenset[str]
    """The maps, among those with redirects of own clients and with masquerading, that have a destination. They change
    only with Services, and only by whole rule sets. (The rule for source ranges always exists. If a transaction is sent
    in parts, this rule must not come after a redirect or be removed before one.)"""
    uplinks: frozenset[str]
    """The value of `RuleSet.uplinks`."""
    hook_port: int
    """The value of `RuleSet.hook_port`, or 0 without hooks."""

    @classmethod
    def of(cls, wanted: RuleSet) -> Content:
        """Return these properties of a rule set."""
        own = {place(to, "redirects", origin) for to, origin in wanted.redirects if origin is Origin.NODE}
        masqueraded = {place(destination, "masquerades") for destination in wanted.masquerades}
        return cls(
            spreads=bool(wanted.spreads),
            sticky=any(spread.affinity_timeout_s is not None for spread in wanted.spreads.values()),
            rescued=wanted.rescue is not None,
            filled=frozenset(own | masqueraded),
            uplinks=wanted.uplinks,
            hook_port=wanted.hook_port if wanted.hooks else 0,
        )


def rules_of(wanted: RuleSet, content: Content | None = None) -> dict[str, tuple[Rule, ...]]:
    """Return the rules of each static chain. `content` is that of the rule set, if it is known already.

    The rules depend only on the landing addresses, the bind addresses, the direct links, `transparent` and
    `guard_sockets` of the rule set, and on its `Content`."""
    remote = {family: wanted.bind.get(family) or wanted.landing.get(family) for family in Family}
    content = content or Content.of(wanted)
    return {
        **(_diverting() if wanted.transparent else {}),
        "prerouting": tuple(
            rule
            for family in Family
            for rule in _FirstPackets(content, family, remote[family], from_this_host=False).rules()
        ),
        "output": tuple(
            rule
            for family in Family
            for rule in _FirstPackets(content, family, wanted.bind.get(family), from_this_host=True).rules()
        ),
        # Packets of running connections pass only this rule, because they match it and leave the chain.
        "input": (
            Rule(
                "ct state new,invalid,untracked meta l4proto . th dport @guarded goto guard",
                "first packets to proxy ports",
            ),
        ),
        "guard": (
            # The next rule would not match an untracked packet, because it has no ct status.
            Rule("ct state invalid,untracked drop", "belongs to no connection"),
            Rule("ct status & dnat == 0 meta l4proto . th dport != @unguarded drop", "came to a proxy port directly"),
            Rule("meta l4proto . th dport @dropped drop", "no local endpoint"),
            Rule("meta l4proto . th dport @refused goto refuse", "no endpoint"),
            *(
                (
                    Rule("socket transparent 1 return", "a listener of ours"),
                    # The packet's socket belongs to another program, or there is none. It is dropped, so that the next
                    # instance can answer the client's next attempt.
                    Rule("meta l4proto . th dport != @unguarded drop", "no listener of ours"),
                )
                if wanted.guard_sockets
                else ()
            ),
        ),
        "refuse": (
            Rule("meta l4proto tcp reject with tcp reset", "by a reset"),
            Rule("reject with icmpx port-unreachable", "by an ICMP error"),
        ),
        "postrouting": tuple(_leaving(content, wanted.direct_links)),
        "arrived": tuple(_arriving(content)),
        **_masquerading(content, wanted.direct_links),
        **_rescuing(wanted),
    }


def _diverting() -> dict[str, tuple[Rule, ...]]:
    """Return the chain that recognizes answers to connections that we began from clients' addresses.

    Looking up the socket takes time for each packet, so the chain exists only while it is needed. An ICMP packet, such
    as an endpoint's refusal, belongs to the socket of the packet that it quotes.
    """
    rule = Rule(
        # Packets addressed to this host are excluded: accepted sockets are transparent like their listeners, but their
        # clients' packets need no special routing.
        "meta l4proto { tcp, udp, icmp, icmpv6 } socket transparent 1 socket wildcard 0 "
        f"fib daddr type != local meta mark set meta mark | {MARK:#x}",
        "answers to connections from clients' addresses",
    )
    return {DIVERT: (rule,)}


def _rescuing(wanted: RuleSet) -> dict[str, tuple[Rule, ...]]:
    if wanted.rescue is None:
        return {}
    chains = rescue.rules(wanted.rescue, wanted.tcp_timeouts)
    return {chain: tuple(Rule(*each) for each in rules) for chain, rules in chains.items()}


@dataclass(frozen=True, slots=True)
class _FirstPackets:
    """Makes the rules for first packets of one family in one hook.

    The rules drop packets from sources that are not admitted. They send other packets to an endpoint or to a proxy
    port, by the first map that contains the destination.
    """

    content: Content
    family: Family
    to: str | None
    """The address to which packets are redirected, or None for the address of the incoming interface."""
    from_this_host: bool

    def rules(self) -> Iterator[Rule]:
        """Yield the rules in order."""
        number, ip = self.family.value, IP[self.family]
        address = f"{ip} daddr . meta l4proto . th dport"
        yield Rule(
            # A chain of type nat may drop packets. It sees only first packets, so this costs nothing for running
            # connections.
            f"{address} @restricted{number} {address} . {ip} saddr != @admitted{number} drop",
            f"{self._clients}, from ranges that are not admitted",
        )
        if self.from_this_host:
            # This comes before the maps: if a dial by the proxy is itself redirected to the proxy, it would be dialed
            # again.
            yield Rule(
                f"meta nfproto ipv{number} meta mark & {MARK:#x} == {MARK:#x} return",
                f"{self.family} dials of the proxy",
            )
            if self.content.hook_port:
                hook = f"meta l4proto tcp {address} @hooks{number} redirect to :{self.content.hook_port}"
                yield Rule(hook, f"{self.family} preStop hooks")
        for at_node in (False, True):
            for origin in Origin:
                redirects = f"{PREFIX[origin]}{'node_ports' if at_node else 'redirects'}{number}"
                if origin is Origin.ANYWHERE or redirects in self.content.filled:
                    prefix = f"{PREFIX[origin]}{'node_port_' if at_node else ''}"
                    key = "meta l4proto . th dport" if at_node else address
                    condition, why = self._condition(origin, at_node=at_node), self._why(origin, at_node=at_node)
                    yield from self._spread(prefix, key, condition, why)
                    yield from self._refusal(prefix, key, condition, why)
                    yield self._redirect(redirects, key, condition, why)

    def _spread(self, prefix: str, key: str, condition: str, why: str) -> Iterator[Rule]:
        if not self.content.spreads:
            return
        if self.from_this_host:
            # Packets from or to a loopback address cannot leave this host. For them only the redirect below applies,
            # which keeps them here.
            ip, loopback = IP[self.family], _LOOPBACK[self.family]
            condition = f"{ip} saddr != {loopback} {ip} daddr != {loopback} {condition}"
        for what, of_kind in (("affinities", "known to an endpoint"), ("spreads", "straight to an endpoint")):
            if what == "spreads" or self.content.sticky:
                # A jump, and no goto, so that the redirect below applies if no slot is found.
                vmap = f"{prefix}{what}{self.family.value}"
                yield Rule(f"{condition}{key} vmap @{vmap}", f"{self._clients}{why}, {of_kind}")

    def _refusal(self, prefix: str, key: str, condition: str, why: str) -> Iterator[Rule]:
        # For a client behind a bridge port the kernel sends a reset past NAT, so the reset has to come from the address
        # that the client dialed. Clients on this host are refused after the redirect (chain guard), because a verdict
        # here would be an error in the sender's system call.
        if not self.from_this_host:
            refusals = f"{prefix}refusals{self.family.value}"
            yield Rule(f"{condition}{key} @{refusals} goto refuse", f"{self._clients}{why}, no endpoint")

    def _redirect(self, redirects: str, key: str, condition: str, why: str) -> Rule:
        port = f"{key} map @{redirects}"
        action = f"redirect to :{port}" if self.to is None else f"dnat {IP[self.family]} to {self.to} : {port}"
        matches = f"meta nfproto ipv{self.family.value} {condition}meta l4proto {{ tcp, udp }}"
        return Rule(f"{matches} {action}", f"{self._clients}{why}")

    def _condition(self, origin: Origin, *, at_node: bool) -> str:
        """Return the matches for packets of an origin. Packets for a node port must be addressed to the node."""
        ip, of_pods = IP[self.family], origin is Origin.NODE and not self.from_this_host
        condition = from_own_pods(f"{ip} saddr", self.family, self.content.uplinks) if of_pods else ""
        if at_node:
            condition += f"{ip} daddr @node_addresses{self.family.value} "
            if not self.from_this_host:
                # Without a redirect the kernel drops such packets as martians.
                condition += f"{ip} daddr != {_LOOPBACK[self.family]} "
        return condition

    def _why(self, origin: Origin, *, at_node: bool) -> str:
        if origin is Origin.ANYWHERE:
            return ", node ports" if at_node else ""
        own = "own way" if self.from_this_host else "pods' own way"
        return f", {own} to node ports" if at_node else f", {own}"

    @property
    def _clients(self) -> str:
        return f"{self.family} clients on {'this host' if self.from_this_host else 'other hosts'}"


def from_own_pods(source: str, family: Family, uplinks: Iterable[str]) -> str:
    """Return the condition for packets from this node's pods. `source` is the expression for the client's address."""
    elsewhere = "".join(f'iifname != "{name}" ' for name in sorted(uplinks))
    return f"{source} @internal_sources{family.value} {elsewhere}"


def _leaving(content: Content, links: frozenset[DirectLink]) -> Iterator[Rule]:
    """Yield the rules for first packets to an endpoint that leave this host, or that reach the endpoint through
    loopback."""
    if not content.spreads:
        return
    yield Rule("ct status & dnat == 0 return", "not translated")
    if content.sticky or content.rescued:
        # The match on lo restricts this to this host's own proxy ports, because an endpoint may have the same port
        # number.
        yield Rule("oif lo meta l4proto . th dport @guarded return", "redirected to a proxy port")
    if content.rescued:
        yield Rule(*rescue.asking())
    if content.sticky:
        yield from (rule for _, rule in _by_original_destination("learned", "clients that stay with their endpoint"))
    yield Rule("oif lo return", "stays on this host")
    masquerades = _by_original_destination("masquerades", "answers are to come back here")
    yield from (rule for name, rule in masquerades if name in content.filled)
    for family in Family:
        ip = IP[family]
        yield Rule(
            f"{ip} saddr . {ip} daddr @hairpins{family.value} masquerade fully-random",
            f"{family} endpoints that reach themselves",
        )
    # Interfaces are compared by number, because comparing names takes several times as long.
    for number in sorted({link.number for link in links}):
        yield Rule(f"iif {number} oif {number} jump masquerade_links", "the endpoint is where the client came from")


def _arriving(content: Content) -> Iterator[Rule]:
    """Yield the rules for first packets that arrive at an endpoint on this host itself."""
    if not (content.spreads and (content.sticky or content.rescued)):
        return
    yield Rule("ct status & dnat == 0 return", "not translated")
    yield Rule("meta l4proto . th dport @guarded return", "redirected to a proxy port")
    if content.rescued:
        yield Rule(*rescue.asking())
    if content.sticky:
        yield from (rule for _, rule in _by_original_destination("learned", "clients that stay with their endpoint"))


def _by_original_destination(name: str, why: str) -> Iterator[tuple[str, Rule]]:
    """Yield the jumps of each map by the destination that the client chose. There is one per protocol, because nft can
    give the port's type for only one protocol at a time."""
    for family in Family:
        number, ip = family.value, IP[family]
        for protocol in ("tcp", "udp"):
            original = "meta l4proto . ct original proto-dst"
            addressed, at_node = f"{name}{number}", f"node_port_{name}{number}"
            yield (
                addressed,
                Rule(
                    f"meta l4proto {protocol} ct original {ip} daddr . {original} vmap @{addressed}",
                    f"{family} {protocol}, {why}",
                ),
            )
            yield (
                at_node,
                Rule(
                    f"meta l4proto {protocol} ct original {ip} daddr @node_addresses{number} {original} "
                    f"vmap @{at_node}",
                    f"{family} {protocol} node ports, {why}",
                ),
            )


def _masquerading(content: Content, links: frozenset[DirectLink]) -> dict[str, tuple[Rule, ...]]:
    if not content.spreads:
        return dict.fromkeys(MASQUERADE_CHAINS, ())
    action = "masquerade fully-random"
    return {
        "masquerade_always": (Rule(action, "every client"),),
        "masquerade_node": (Rule(f"fib saddr type local {action}", "clients on this host"),),
        **{
            f"masquerade_outside{family.value}": (
                Rule(f"{IP[family]} saddr != @internal_sources{family.value} {action}", "clients outside the cluster"),
            )
            for family in Family
        },
        "masquerade_links": tuple(
            Rule(f"{IP[it.family]} saddr {it.cidr} goto masquerade_link{it.family.value}", f"{it.family} clients there")
            for it in sorted(links)
        ),
        # Only our own destinations are masqueraded, because other programs also translate packets on such links.
        **{
            f"masquerade_link{family.value}": tuple(
                Rule(f"meta l4proto {protocol} {original} {action}", f"{family} {protocol} {why}, answers pass by")
                for protocol in ("tcp", "udp")
                for original, why in rescue.originals(family, "meta l4proto")
            )
            for family in Family
        },
    }


MASQUERADE_CHAINS = (
    "masquerade_always",
    "masquerade_node",
    "masquerade_links",
    *(f"masquerade_{clients}{family.value}" for clients in ("outside", "link") for family in Family),
)


def masquerade_chain(masquerade: Masquerade, family: Family) -> str:
    """Return the name of the chain that masquerades these clients."""
    suffix = str(family.value) if masquerade is Masquerade.OUTSIDE else ""
    return f"masquerade_{masquerade}{suffix}"
