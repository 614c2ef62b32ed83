"""Finds the frontend of a translated flow, if the flow is ours.

A flow is on the kernel path if its original destination has a spread and the flow leads to an endpoint of that spread.
It is on the userspace path if it leads to a proxy port of ours. Any other translated flow belongs to another program.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from kubeproxy.model import NODE_PORTS, Address, Destination, FrontendName, Origin, Target, Traffic, family_of
from kubeproxy.netfilter.cidr import contains, is_loopback
from kubeproxy.netfilter.conntrack.flow_records import PROTOCOLS, FlowRecord, Route
from kubeproxy.netfilter.ruleset import RuleSet

ROUTES_MAX: Final = 1 << 16
"""The largest number of routes whose frontends are cached. Beyond that the cache is cleared."""

Holder = Callable[[Traffic], FrontendName | None]
"""A function that returns the frontend that gets certain traffic, or None if none does."""


class _Owners(NamedTuple):
    """The frontends of a route, by the origin of the client. None means that there is no frontend for that origin."""

    anywhere: FrontendName | None
    node: FrontendName | None


_NONE: Final = _Owners(None, None)


class FlowOwners:
    """Finds the frontends of flows by the rules in use. Flows to an endpoint that has left its Service are still
    found."""

    def __init__(self, holder: Holder, local: Callable[[], frozenset[Address]]) -> None:
        """`local` returns the addresses of this node. It is called only if a result depends on them."""
        self._holder = holder
        self._list_local = local
        self._rules: RuleSet | None = None
        self._service_changes = 0
        self._local: frozenset[Address] | None = None
        """This node's addresses, or None if they have not been read since the last `use`."""
        self._found: dict[Route, _Owners] = {}
        """The frontends found by the present rules."""
        self._before: dict[Route, _Owners] = {}
        """The frontends found by earlier rules. They are kept because connections outlive endpoints and Services."""

    def use(self, rules: RuleSet) -> None:
        """Use these rules from now on. This node's addresses are read again when they are needed."""
        self._local = None
        if rules is self._rules and rules.service_changes == self._service_changes:
            return
        self._rules, self._service_changes = rules, rules.service_changes
        self._before.update((route, owners) for route, owners in self._found.items() if owners is not _NONE)
        if len(self._before) > ROUTES_MAX:
            self._before.clear()
        self._found.clear()

    def forget_unused(self) -> None:
        """Forget the routes of earlier rules to which no flow belonged since the last `use`. Call this after a complete
        reading of the kernel's flows."""
        self._before = {route: owners for route, owners in self._before.items() if route in self._found}

    def of(self, flow: FlowRecord) -> FrontendName | None:
        """Return the frontend of a flow, or None if the flow is not on the kernel path."""
        owners = self._found.get(flow.route)
        if owners is None:
            if len(self._found) >= ROUTES_MAX:
                self._found.clear()
            owners = self._found[flow.route] = self._look_up(flow.route)
        if owners.node is None:
            return owners.anywhere
        if owners.anywhere is None or owners.anywhere == owners.node:
            return owners.node
        return owners.node if self._is_own(text(flow.source)) else owners.anywhere

    def _look_up(self, route: Route) -> _Owners:
        rules = self._rules
        if rules is None:
            return _NONE
        number, address, port, target, target_port = route
        protocol, its = PROTOCOLS[number], text(address)
        endpoint = Target(text(target), int.from_bytes(target_port, "big"))
        places = [its, *([NODE_PORTS[family_of(its)]] if its in rules.node_addresses else ())]
        holders: dict[Origin, FrontendName | None] = dict.fromkeys(Origin)
        for place in places:
            destination = Destination(place, protocol, int.from_bytes(port, "big"))
            for traffic in (Traffic(destination, origin) for origin in Origin):
                spread = rules.spreads.get(traffic)
                if spread is not None and endpoint in spread.endpoints and holders[traffic.origin] is None:
                    holders[traffic.origin] = self._holder(traffic)
        owners = _Owners(anywhere=holders[Origin.ANYWHERE], node=holders[Origin.NODE])
        return self._before.get(route, _NONE) if owners == _NONE else owners

    def _is_own(self, source: Address) -> bool:
        if self._local is None:
            self._local = self._list_local()
        internal = self._rules.internal_sources if self._rules is not None else frozenset()
        return source in self._local or is_loopback(source) or contains(internal, source)


@lru_cache(maxsize=8192)
def text(packed: bytes) -> Address:
    """Return a binary address of a record as text."""
    return Address(str(ipaddress.ip_address(packed)))
