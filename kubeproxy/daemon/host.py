"""This host, as far as serving depends on it, and as it changes under us: families, addresses, the Node object."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.node_facts import node_facts, node_of
from kubeproxy.dataplane.sockets.client_address import why_not
from kubeproxy.dataplane.sockets.outgoing import why_not_marked
from kubeproxy.model import Address, Family, Node
from kubeproxy.netfilter import foreign_rules
from kubeproxy.netfilter.conntrack import usage
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.local_addresses import landing_addresses, local_addresses
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.runtime import privileges
from kubeproxy.runtime.threads import in_thread

log = structlog.get_logger(__name__)

ADDRESS_LOOK_S = 5.0
"""How often we look whether this node's addresses have changed: a few system calls."""
LEFTOVERS_LOOK = 10
"""How many full sync periods pass from one look for what kube-proxy left to the next, since a look runs a program or
more. While there is something we look in each period, so as to be quick to say no more of it once it is gone."""


class HostState:
    """What is so here. `node` gives the Node object as it was last described."""

    def __init__(self, configuration: Configuration, *, node: Callable[[], Node | None]) -> None:
        self._configuration = configuration
        self._node = node
        self._can_preserve = False
        self._conntrack_room: usage.ConntrackRoom | None = None
        self._leftovers_complaint: str | None = None
        # As kube-proxy has it: trimmed and in lower case.
        self.node_name = (configuration.hostname_override or socket.gethostname()).strip().lower()
        self.families = _families()
        self.landing = landing_addresses()
        bind = configuration.bind_address
        self.bind = {} if bind in ("0.0.0.0", "::") else {bind.family: bind.address}

    def facts(self) -> NodeFacts:
        """What the proxier has to know, as of now."""
        node = node_of(self._configuration, self.node_name, self._node())
        return node_facts(self._configuration, node, local_addresses(), can_preserve=self._can_preserve)

    def _reasons_not_to_preserve(self) -> list[str]:
        """Why clients' addresses cannot be preserved, as far as privileges go. It is the workers that dial, and the one
        capability that they may keep for it is CAP_NET_RAW; without workers this process may use CAP_NET_ADMIN."""
        reasons = [f"{family}: {reason}" for family in self.families if (reason := why_not(family)) is not None]
        has_workers = self._configuration.kubeproxy.workers.number != 0
        if not reasons and has_workers and not privileges.held() >> privileges.Capability.NET_RAW & 1:
            reasons.append("workers cannot be given CAP_NET_RAW, which this process has not")
        return reasons

    async def look_whether_addresses_can_be_preserved(self, netfilter: Netfilter) -> None:
        """Ask the kernel, and say so where it will not do what is configured."""
        if self._configuration.kubeproxy.preserve_client_address == "never":
            return
        reasons = self._reasons_not_to_preserve()
        if not reasons and (reason := await netfilter.why_not_transparent()) is not None:
            reasons.append(f"{netfilter.name}: {reason}")
        self._can_preserve = not reasons
        if reasons:
            log.warning(
                "cannot dial endpoints from clients' addresses; they will see this node's",
                reason="; ".join(reasons),
                remedy="CAP_NET_RAW, or --preserve-client-address=never",
            )

    async def can_guard_sockets(self, netfilter: Netfilter) -> bool:
        """Whether netfilter can tell our listening sockets from others'."""
        reasons = [f"{family}: {reason}" for family in self.families if (reason := why_not(family)) is not None]
        if not reasons and (reason := await netfilter.why_not_guarding_sockets()) is not None:
            reasons.append(f"{netfilter.name}: {reason}")
        if reasons and netfilter.name != "none":
            log.info(
                "the packet filter does not look whose socket listens at a proxy port; goes on without",
                reason="; ".join(reasons),
            )
        return not reasons

    async def look_whether_dials_are_marked(self, netfilter: Netfilter) -> None:
        """Ask the kernel, and warn where a dial of ours that meets our own rules is not spared by them."""
        if netfilter.name != "none" and (reason := await in_thread(why_not_marked)) is not None:
            log.warning(
                "cannot mark dials; loops end later",
                reason=reason,
                effect="an endpoint that is a service address unknown to this node is dialed up to 8 times",
                remedy="CAP_NET_RAW and Linux 5.17",
            )

    @property
    def complaints(self) -> Mapping[str, Callable[[], str | None]]:
        """Who says what is wrong here, by name."""
        return {"conntrack": self._complain_of_conntrack, "leftovers": lambda: self._leftovers_complaint}

    def _complain_of_conntrack(self) -> str | None:
        """Of what went wrong since this was last asked."""
        before, now = self._conntrack_room, usage.look()
        self._conntrack_room = now
        return None if now is None else now.complaint(before)

    async def follow(self, *, on_landing: Callable[[], None], on_facts: Callable[[NodeFacts], None]) -> None:
        """Tell of what changes about this node's own addresses, until cancelled."""
        known = self.facts()
        while True:
            await asyncio.sleep(ADDRESS_LOOK_S)
            landing, facts = landing_addresses(), self.facts()
            if landing != self.landing:
                log.info("this node's address has changed", before=_words(self.landing), now=_words(landing))
                self.landing = landing
                on_landing()
            if facts != known:
                known = facts
                on_facts(facts)

    async def follow_leftovers(self, ours: str) -> None:
        """Look whether kube-proxy's rules are still here, until cancelled. `ours` names the adapter in use: beside one
        that makes no rules kube-proxy may well be the one who serves, and there is nothing to tell."""
        period_s = self._configuration.sync_period_s
        while ours != "none":
            self._leftovers_complaint = foreign_rules.complaint(await foreign_rules.look())
            await asyncio.sleep(period_s if self._leftovers_complaint else LEFTOVERS_LOOK * period_s)


def _families() -> tuple[Family, ...]:
    """Those that this kernel has: IPv6 may be built out, or switched off at boot."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return (Family.IPV4,)
    return tuple(Family)


def _words(addresses: Mapping[Family, Address]) -> str:
    return ", ".join(addresses.values()) or "none"
