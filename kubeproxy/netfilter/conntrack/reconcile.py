"""Flows that the kernel goes on translating as rules of yesterday said: which they are. Pure.

Only a flow's first packet meets the redirects; what they said then is kept for as long as the client goes on sending.
A TCP client is told by a reset and comes again, a UDP client that keeps its socket stays in a black hole. So after the
rules have changed, the UDP flows that contradict them are deleted, and their next packets meet the rules as they are.

A TCP client that asked for a connection when there was no rule yet asks again and again, and the kernel remembers for
two minutes that this flow is not translated. It is deleted when the rule is there, and the next time it asks it is led
to us.

Any other TCP flow that contradicts them is as a rule a connection that goes on, and is left alone. But those of an
earlier process may be left behind: it was cut off by a reset that the kernel did not take for the end, as something was
still on its way, and the flow stays for a day, or five. A client that comes by the same port again is then led to a
port that is nobody's, or another's. These are deleted, once at start: flows to another port than the rules', without a
socket.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from kubeproxy.model import NODE_PORTS, Address, Destination, Family, Protocol, family_of
from kubeproxy.netfilter.cidr import hold, is_loopback
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet


class Conntrack(typing.Protocol):
    """The kernel's table of flows. Its calls are made one at a time."""

    async def reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        """Delete every UDP flow that contradicts the rules `now` in force, every TCP flow to a new destination that is
        not answered, and with `before` None every TCP flow that contradicts them and is nobody's; how many that were.

        `before` are the rules that flows were last reconciled with; with None that is unknown (at start, or when
        somebody else had changed our rules). Nothing is asked of the kernel when no difference between the two could
        have left a stale flow behind. KernelError when the kernel refuses: flows may be left, so the next call is to
        be given the same `before` again.
        """


class NoConntrack:
    """For ``--netfilter none``: who brings the packets looks after their flows."""

    async def reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        """See `Conntrack.reconcile`."""
        return 0


class Flow(NamedTuple):
    """A flow that the kernel tracks: where its client sent to, and where that leads."""

    source: Address
    source_port: int
    address: Address
    port: int
    target: Address
    """Where the answers are to come from: the destination itself, or what it was translated to."""
    target_port: int
    record: bytes = b""
    """The kernel's own, by which it knows the flow again."""

    @property
    def is_translated(self) -> bool:
        """Whether it leads elsewhere than the client wanted."""
        return self.target != self.address or self.target_port != self.port


Key = tuple[Address, int]
"""A destination of the protocol in question."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """What a rule set says about one protocol."""

    redirects: Mapping[Key, int] = field(default_factory=dict)
    own_redirects: Mapping[Key, int] = field(default_factory=dict)
    internal_sources: frozenset[str] = frozenset()
    node_addresses: frozenset[Address] = frozenset()
    allowed_sources: Mapping[Key, frozenset[str]] = field(default_factory=dict)
    landing: Mapping[Family, Address] = field(default_factory=dict)
    bind: Mapping[Family, Address] = field(default_factory=dict)
    proxy_ports: frozenset[int] = frozenset()
    guarded: frozenset[int] = frozenset()
    """Those that nobody reaches directly."""
    closed: frozenset[int] = frozenset()
    """Refused or dropped."""

    @classmethod
    def of(cls, rules: RuleSet, protocol: Protocol) -> _Rules:
        """The part of that protocol."""
        return cls(
            redirects=_part(rules.redirects, protocol),
            own_redirects=_part(rules.own_redirects, protocol),
            internal_sources=rules.internal_sources,
            node_addresses=rules.node_addresses,
            allowed_sources=_part(rules.allowed_sources, protocol),
            landing=rules.landing,
            bind=rules.bind,
            proxy_ports=_ports(rules.guarded, protocol),
            guarded=_ports(rules.guarded - rules.undisguised, protocol),
            closed=_ports(rules.refused | rules.dropped, protocol),
        )

    @property
    def steering(self) -> tuple[Any, ...]:
        """All that decides where a flow is to lead; the rest says nothing where there is no redirect."""
        if not self.redirects and not self.own_redirects:
            return ()
        return (
            self.redirects,
            self.own_redirects,
            self.internal_sources,
            self.node_addresses,
            self.allowed_sources,
            self.landing,
            self.bind,
        )

    @property
    def families(self) -> frozenset[Family]:
        """Those of the destinations."""
        addresses = {address for address, _ in (*self.redirects, *self.own_redirects)}
        return frozenset(map(family_of, addresses))

    def destination(self, flow: Flow, local: frozenset[Address]) -> tuple[Key, int] | None:
        """The destination by which a flow's first packet would be redirected, and its proxy port."""
        keys: tuple[Key, ...] = ((flow.address, flow.port),)
        if flow.address in self.node_addresses:
            keys = (*keys, (NODE_PORTS[family_of(flow.address)], flow.port))
        for key in keys:
            port = self.own_redirects.get(key)
            if port is not None and self._is_own(flow.source, local):
                return key, port
            port = self.redirects.get(key)
            if port is not None:
                return key, port
        return None

    def listens_on(self, address: Address, local: frozenset[Address]) -> bool:
        """Whether proxy ports are served on an address."""
        family = family_of(address)
        bind = self.bind.get(family)
        return address == bind if bind else address in local or address == self.landing.get(family)

    def _is_own(self, source: Address, local: frozenset[Address]) -> bool:
        return source in local or is_loopback(source) or hold(self.internal_sources, source)


class Transition:
    """From the rules `before` (None: unknown) to those in force `now`: which flows it leaves stale."""

    def __init__(self, before: RuleSet | None, now: RuleSet) -> None:
        self._before = None if before is None else _Rules.of(before, Protocol.UDP)
        self._now = _Rules.of(now, Protocol.UDP)
        self._tcp = _Rules.of(now, Protocol.TCP) if before is None else _Rules()
        self._new_tcp = self._tcp if before is None else _Rules.of(_added(before, now), Protocol.TCP)
        known = (self._now,) if self._before is None else (self._now, self._before)
        self._home = frozenset().union(*(each.values() for rules in known for each in (rules.landing, rules.bind)))
        """Addresses that we have redirected to, whether or not they are this node's still."""
        self._proxy_ports = frozenset().union(*(rules.proxy_ports for rules in known))

    @property
    def families(self) -> frozenset[Family]:
        """Those in which it can have left UDP flows; mostly none."""
        now, before = self._now, self._before or _Rules()
        if not (now.proxy_ports <= before.proxy_ports and now.guarded <= before.guarded):
            return frozenset(Family)  # whichever family somebody sent to that port by
        if now.steering == before.steering and now.closed <= before.closed:
            return frozenset()
        return now.families | before.families

    @property
    def tcp_families(self) -> frozenset[Family]:
        """Those in which TCP flows of an earlier process may be left; none unless `before` is unknown."""
        return self._tcp.families

    @property
    def new_tcp_families(self) -> frozenset[Family]:
        """Those of TCP destinations that are redirected only now."""
        return self._new_tcp.families

    def passed_by(self, flows: Iterable[Flow], *, local: frozenset[Address]) -> list[Flow]:
        """Of TCP flows, those that are not translated, to destinations that are redirected only now."""
        new = self._new_tcp
        return [flow for flow in flows if not flow.is_translated and new.destination(flow, local) is not None]

    def astray(self, flows: Iterable[Flow], *, local: frozenset[Address]) -> list[Flow]:
        """Of TCP flows, those to destinations that are redirected now which lead to another of this node's ports."""
        home = self._home | local
        return [
            flow
            for flow in flows
            if flow.is_translated
            and flow.target in home
            and (found := self._tcp.destination(flow, local)) is not None
            and found[1] != flow.target_port
        ]

    def stale(self, flows: Iterable[Flow], *, local: frozenset[Address]) -> list[Flow]:
        """Of UDP flows, those that contradict the rules in force, on a node with the `local` addresses.

        A flow to a destination that is redirected now is stale

        - if it is not translated: the client spoke before the Service existed;
        - if it leads to another of this node's ports or addresses than the rules: those of an earlier run or Service;
        - if its client may not reach the destination, or the proxy port refuses or drops: only first packets are told;
        - if it leads to another host, and the destination was not ours before. If it was, somebody's translation comes
          before ours, and would again.

        Any other flow is stale if it was translated to a proxy port of ours (its Service has gone), or was sent there
        directly (it is older than the guard). Everything else stays.
        """
        home = self._home | local
        return [flow for flow in flows if self._is_stale(flow, local, home)]

    def _is_stale(self, flow: Flow, local: frozenset[Address], home: frozenset[Address]) -> bool:
        now = self._now
        found = now.destination(flow, local)
        if found is None:
            if flow.is_translated:
                return flow.target_port in self._proxy_ports and flow.target in home
            return flow.port in now.guarded and flow.address in local
        if flow.is_translated and flow.target not in home:
            return self._before is None or self._before.destination(flow, local) is None
        key, port = found
        allowed = now.allowed_sources.get(key)
        return (
            port in now.closed
            or (allowed is not None and not hold(allowed, flow.source))
            or flow.target_port != port
            or not now.listens_on(flow.target, local)
        )


_Value = TypeVar("_Value")


def _added(before: RuleSet, now: RuleSet) -> RuleSet:
    """The redirects that were not there before."""
    return RuleSet(
        redirects={each: now.redirects[each] for each in now.redirects.keys() - before.redirects.keys()},
        own_redirects={
            each: now.own_redirects[each] for each in now.own_redirects.keys() - before.own_redirects.keys()
        },
        internal_sources=now.internal_sources,
        node_addresses=now.node_addresses,
    )


def _part(mapping: Mapping[Destination, _Value], protocol: Protocol) -> dict[Key, _Value]:
    return {(address, port): value for (address, its, port), value in mapping.items() if its is protocol}


def _ports(ports: Iterable[ProxyPort], protocol: Protocol) -> frozenset[int]:
    return frozenset(port for its, port in ports if its is protocol)
