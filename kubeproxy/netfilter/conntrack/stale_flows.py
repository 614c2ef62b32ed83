"""Finds conntrack flows that contradict the rules in force.

Only the first packet of a flow passes through the redirects; the kernel keeps their result as long as packets follow.
If the result is outdated, a TCP client gets a reset and reconnects, but a UDP client that keeps its socket no longer
gets answers. So after a change of rules, the UDP flows that contradict them are deleted, and their next packets meet
the new rules.

A TCP client that sent its SYN before a rule existed retransmits it, and for two minutes the kernel remembers that this
flow is not translated. Such a flow is deleted when the rule exists, so that the next SYN is redirected.

Any other TCP flow that contradicts the rules is usually a running connection, and stays. But the kernel keeps the flow
after the connection has ended: for 10 s after a reset, for 2 minutes after a normal close, and for days if it missed
the end. A new connection from the same client port would follow this flow to the old proxy port, bypassing the rules,
and that port may be closed or belong to another Service by now. So TCP flows that have no socket and lead to other
ports than the rules are deleted at start, and as long as connections of an earlier process are ending. A process that
leaves deletes the flows to its own ports.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from kubeproxy.model import NODE_PORTS, Address, Family, Origin, Protocol, Target, Traffic, family_of
from kubeproxy.netfilter.cidr import contains, is_loopback
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet


class Conntrack(typing.Protocol):
    """The kernel's table of flows. Its methods are never called concurrently."""

    async def reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        """Delete the flows that contradict the rules `now` in force, and return their number.

        These are all UDP flows that contradict the rules, and all unanswered TCP flows to a new destination. If
        `before` is None, they also include TCP flows without a socket that contradict the rules. `before` has the rules
        at the last call, or None if these are unknown (at start, or after another process has changed our rules). If no
        flow can have become stale between the two rule sets, the kernel is not asked. Raise KernelError if the kernel
        refuses. Then stale flows may be left, so pass the same `before` to the next call.
        """

    async def forget_ended(self, rules: RuleSet, *, ours: bool) -> int:
        """Delete TCP flows that have no socket, and return their number. Raise KernelError if the kernel refuses.

        With `ours` these are flows to the proxy ports of `rules`, unless the present rules redirect there. Otherwise
        they are flows of ended connections to other ports of this node than those of `rules`."""


class NoConntrack:
    """The implementation for ``--netfilter none``, where no redirects are ours. It deletes nothing."""

    async def reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        """See `Conntrack.reconcile`."""
        return 0

    async def forget_ended(self, rules: RuleSet, *, ours: bool) -> int:
        """See `Conntrack.forget_ended`."""
        return 0


class TrackedFlow(NamedTuple):
    """A tracked flow with its source, its original destination, and its translated destination."""

    source: Address
    source_port: int
    address: Address
    port: int
    target: Address
    """The source of the replies: the translated destination, or the original one without translation."""
    target_port: int
    record: bytes = b""
    """The kernel's record of the flow, which identifies it."""

    @property
    def is_translated(self) -> bool:
        """Return whether the flow's destination was translated."""
        return self.target != self.address or self.target_port != self.port


Key = tuple[Address, int]
"""An address and port, where the protocol is known from the context."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """The part of a rule set for one protocol."""

    redirects: Mapping[tuple[Key, Origin], int] = field(default_factory=dict)
    internal_sources: frozenset[str] = frozenset()
    uplinks: frozenset[str] = frozenset()
    node_addresses: frozenset[Address] = frozenset()
    allowed_sources: Mapping[Key, frozenset[str]] = field(default_factory=dict)
    landing: Mapping[Family, Address] = field(default_factory=dict)
    bind: Mapping[Family, Address] = field(default_factory=dict)
    spreads: Mapping[tuple[Key, Origin], tuple[Target, ...]] = field(default_factory=dict)
    """The endpoints of each destination on the kernel path, including ejected ones."""
    target_sets: dict[tuple[Key, Origin], frozenset[Target]] = field(default_factory=dict)
    """The same as sets, for the destinations of the flows seen so far. The sets of 250,000 endpoints would take 20
    MiB."""
    proxy_ports: frozenset[int] = frozenset()
    guarded: frozenset[int] = frozenset()
    """The proxy ports that can be reached only through a redirect."""
    closed: frozenset[int] = frozenset()
    """The proxy ports at which clients are refused or dropped."""

    @classmethod
    def of(cls, rules: RuleSet, protocol: Protocol) -> _Rules:
        """Return the part of a rule set for a protocol."""
        return cls(
            redirects=_part(rules.redirects, protocol),
            internal_sources=rules.internal_sources,
            uplinks=rules.uplinks,
            node_addresses=rules.node_addresses,
            allowed_sources={
                (to.address, to.port): cidrs for to, cidrs in rules.allowed_sources.items() if to.protocol is protocol
            },
            landing=rules.landing,
            bind=rules.bind,
            spreads={key: spread.endpoints for key, spread in _part(rules.spreads, protocol).items()},
            proxy_ports=_ports(rules.guarded, protocol),
            guarded=_ports(rules.guarded - rules.unguarded, protocol),
            closed=_ports(rules.refused | rules.dropped, protocol),
        )

    @property
    def steering(self) -> tuple[Any, ...]:
        """Return everything but endpoints that decides where a flow leads. It is empty if there are no redirects."""
        if not self.redirects:
            return ()
        return (
            self.redirects,
            self.internal_sources,
            self.uplinks,
            self.node_addresses,
            self.allowed_sources,
            self.landing,
            self.bind,
        )

    @property
    def families(self) -> frozenset[Family]:
        """Return the families of the destinations."""
        return frozenset(map(family_of, {address for (address, _), _ in self.redirects}))

    def is_endpoint(self, flow: TrackedFlow, local: frozenset[Address]) -> bool:
        """Return whether a flow leads to an endpoint of its destination."""
        target = Target(flow.target, flow.target_port)
        for key in self._keys(flow):
            if self._has(key, Origin.NODE, target) and self._is_own(flow.source, local):
                return True
            if self._has(key, Origin.ANYWHERE, target):
                return True
        return False

    def _has(self, key: Key, origin: Origin, target: Target) -> bool:
        """Return whether a destination has this endpoint for clients of this origin."""
        targets = self.target_sets.get((key, origin))
        if targets is None:
            if (key, origin) not in self.spreads:
                return False
            targets = self.target_sets[key, origin] = frozenset(self.spreads[key, origin])
        return target in targets

    def _keys(self, flow: TrackedFlow) -> tuple[Key, ...]:
        key: Key = (flow.address, flow.port)
        if flow.address in self.node_addresses:
            return key, (NODE_PORTS[family_of(flow.address)], flow.port)
        return (key,)

    def destination(self, flow: TrackedFlow, local: frozenset[Address]) -> tuple[Key, int] | None:
        """Return the redirect that would apply to the first packet of a flow, as the destination and the proxy port."""
        for key in self._keys(flow):
            of_node, of_all = self.redirects.get((key, Origin.NODE)), self.redirects.get((key, Origin.ANYWHERE))
            if of_node is not None and self._is_own(flow.source, local):
                if of_all == flow.target_port and self._may_be_of_another_node(flow.source, local):
                    return key, of_all
                return key, of_node
            if of_all is not None:
                return key, of_all
        return None

    def _may_be_of_another_node(self, source: Address, local: frozenset[Address]) -> bool:
        """Return whether a client may be a pod on another node. This is uncertain, because a flow does not show on
        which interface its packets arrived."""
        return bool(self.uplinks) and source not in local and not is_loopback(source)

    def listens_on(self, address: Address, local: frozenset[Address]) -> bool:
        """Return whether proxy ports listen on an address."""
        family = family_of(address)
        bind = self.bind.get(family)
        return address == bind if bind else address in local or address == self.landing.get(family)

    def _is_own(self, source: Address, local: frozenset[Address]) -> bool:
        return source in local or is_loopback(source) or contains(self.internal_sources, source)


class Transition:
    """A change from the rules `before` (None if they are unknown) to `now`. It finds the stale flows."""

    def __init__(self, before: RuleSet | None, now: RuleSet) -> None:
        self._before = None if before is None else _Rules.of(before, Protocol.UDP)
        self._now = _Rules.of(now, Protocol.UDP)
        self._new_tcp = _Rules.of(now if before is None else _added(before, now), Protocol.TCP)
        known = (self._now,) if self._before is None else (self._now, self._before)
        self._home = frozenset().union(*(each.values() for rules in known for each in (rules.landing, rules.bind)))
        """All addresses to which the rules redirect or redirected, even if they no longer belong to this node."""
        self._proxy_ports = frozenset().union(*(rules.proxy_ports for rules in known))
        self.left = self._left()
        """The addresses that endpoints have left, if all UDP flows that have become stale were translated to one of
        these; None if others may have become stale, too."""

    @property
    def families(self) -> frozenset[Family]:
        """Return the families in which UDP flows may be stale. Usually there are none."""
        now, before = self._now, self._before or _Rules()
        if self.left is not None:
            return frozenset(map(family_of, self.left))
        if not (now.proxy_ports <= before.proxy_ports and now.guarded <= before.guarded):
            return frozenset(Family)  # Clients of both families may have sent to that port.
        return now.families | before.families

    def _left(self) -> frozenset[Address] | None:
        """Return the value of `left`. If nothing but endpoints has changed, a flow that was not stale is so only if it
        leads to an endpoint that is gone."""
        now, before = self._now, self._before or _Rules()
        if not (
            now.proxy_ports <= before.proxy_ports
            and now.guarded <= before.guarded
            and now.closed <= before.closed
            and now.steering == before.steering
        ):
            return None
        changed = ((it, targets) for it, targets in before.spreads.items() if now.spreads.get(it) is not targets)
        gone = (frozenset(targets).difference(now.spreads.get(it, ())) for it, targets in changed)
        return frozenset(target.address for targets in gone for target in targets)

    @property
    def new_tcp_families(self) -> frozenset[Family]:
        """Return the IP families for which there are new TCP destinations."""
        return self._new_tcp.families

    def untranslated(self, flows: Iterable[TrackedFlow], *, local: frozenset[Address]) -> list[TrackedFlow]:
        """Return the TCP flows that are not translated although their destination is a new one of ours."""
        new = self._new_tcp
        return [flow for flow in flows if not flow.is_translated and new.destination(flow, local) is not None]

    def stale(self, flows: Iterable[TrackedFlow], local: frozenset[Address]) -> list[TrackedFlow]:
        """Return the UDP flows that contradict the rules in force. `local` has this node's addresses.

        A flow to a destination that is redirected now is stale

        - if it is not translated, because it began before the Service existed;
        - if it leads to another port or address of this node than the rules do, because it is from an earlier run or
          Service;
        - if its client may not reach the destination, or the proxy port refuses or drops, because these rules apply
          only to first packets;
        - if it leads to a former endpoint of the destination;
        - if it leads to another host, and we did not redirect the destination before. (If we did, another program's
          translation took precedence over ours, and would do so again.)

        A flow to a present endpoint of its destination stays, whatever the data path is now.

        Any other flow is stale if it was translated to a proxy port or an endpoint of ours (its Service is gone), or
        was sent directly to a proxy port (it is older than the guard). All remaining flows stay.
        """
        home = self._home | local
        return [flow for flow in flows if self._is_stale(flow, local, home)]

    def _is_stale(self, flow: TrackedFlow, local: frozenset[Address], home: frozenset[Address]) -> bool:
        now = self._now
        found = now.destination(flow, local)
        was_endpoint = self._before is not None and self._before.is_endpoint(flow, local)
        if found is not None and now.is_endpoint(flow, local):
            allowed = now.allowed_sources.get(found[0])
            return allowed is not None and not contains(allowed, flow.source)
        if was_endpoint:
            return True
        if found is None:
            if flow.is_translated:
                was = None if self._before is None else self._before.destination(flow, local)
                to_ours = flow.target_port in self._proxy_ports or (was is not None and was[1] == flow.target_port)
                return to_ours and flow.target in home
            return flow.port in now.guarded and flow.address in local
        if flow.is_translated and flow.target not in home:
            return self._before is None or self._before.destination(flow, local) is None
        key, port = found
        allowed = now.allowed_sources.get(key)
        return (
            port in now.closed
            or (allowed is not None and not contains(allowed, flow.source))
            or flow.target_port != port
            or not now.listens_on(flow.target, local)
        )


class Landings:
    """Finds the TCP flows of our destinations that lead to a port of this node."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = _Rules.of(rules, Protocol.TCP)
        self._home = frozenset((*rules.landing.values(), *rules.bind.values()))

    @property
    def families(self) -> frozenset[Family]:
        """Return the families of the destinations."""
        return self._rules.families

    def home(self, local: frozenset[Address]) -> frozenset[Address]:
        """Return the addresses to which the rules redirect, and those of this node."""
        return self._home | local

    def find(self, flows: Iterable[TrackedFlow], *, ours: bool, local: frozenset[Address]) -> list[TrackedFlow]:
        """Return the flows to the port to which the rules redirect them (`ours`), or those to any other port."""
        home = self.home(local)
        return [
            flow
            for flow in flows
            if flow.is_translated
            and flow.target in home
            and not self._rules.is_endpoint(flow, local)
            and (found := self._rules.destination(flow, local)) is not None
            and (found[1] == flow.target_port) is ours
        ]


_Value = TypeVar("_Value")


def _added(before: RuleSet, now: RuleSet) -> RuleSet:
    """Return the redirects that are in `now` but not in `before`."""
    return RuleSet(
        redirects={traffic: now.redirects[traffic] for traffic in now.redirects.keys() - before.redirects.keys()},
        internal_sources=now.internal_sources,
        uplinks=now.uplinks,
        node_addresses=now.node_addresses,
    )


def _part(mapping: Mapping[Traffic, _Value], protocol: Protocol) -> dict[tuple[Key, Origin], _Value]:
    return {
        ((to.address, to.port), origin): value for (to, origin), value in mapping.items() if to.protocol is protocol
    }


def _ports(ports: Iterable[ProxyPort], protocol: Protocol) -> frozenset[int]:
    return frozenset(port for its, port in ports if its is protocol)
