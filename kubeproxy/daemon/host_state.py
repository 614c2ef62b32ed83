"""The state of this host: address families, addresses, the Node object, and what the kernel supports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.node_facts import node_facts, node_of
from kubeproxy.dataplane.sockets.loop_prevention import why_not_marked
from kubeproxy.dataplane.sockets.transparent_dial import why_not
from kubeproxy.model import Address, Family
from kubeproxy.model.conntrack_usage import ConntrackRoom
from kubeproxy.netfilter import kube_proxy_rules
from kubeproxy.netfilter.conntrack import usage
from kubeproxy.netfilter.direct_links import bridged_families
from kubeproxy.netfilter.interface import Feature, Netfilter
from kubeproxy.netfilter.ip_forwarding import forwarded_families
from kubeproxy.netfilter.local_addresses import landing_addresses, local_addresses
from kubeproxy.observability.health import Reason
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.tracker import Tracker
from kubeproxy.runtime import privileges
from kubeproxy.runtime.threads import in_thread

log = structlog.get_logger(__name__)

ADDRESS_LOOK_S = 5.0
"""How often to check whether the addresses of this node have changed, which takes a few system calls."""
LEFTOVERS_LOOK = 10
"""How many full sync periods pass between two searches for leftovers of kube-proxy, because a search runs programs.
While there are leftovers, every period has a search, so that the complaint ends soon after they are removed."""


def node_name_of(configuration: Configuration) -> str:
    """Return this node's name in kube-proxy's form: trimmed and in lower case."""
    return (configuration.hostname_override or socket.gethostname()).strip().lower()


class HostFacts:
    """The present state of the host."""

    def __init__(self, configuration: Configuration, tracker: Tracker) -> None:
        """`tracker` provides the latest Node object."""
        self._configuration = configuration
        self._tracker = tracker
        self._can_preserve = False
        self.conntrack_room: ConntrackRoom | None = None
        """The usage of connection tracking when it was last read."""
        self._leftovers_complaint: str | None = None
        self.node_name = node_name_of(configuration)
        self.families = _families()
        self.landing = landing_addresses()
        bind = configuration.bind_address
        self.bind = {} if bind in ("0.0.0.0", "::") else {bind.family: bind.address}

    def facts(self) -> NodeFacts:
        """Return the present facts for the proxier."""
        node = node_of(self._configuration, self.node_name, self._tracker.node)
        return node_facts(
            self._configuration,
            node,
            local_addresses(),
            can_preserve=self._can_preserve,
            landing=self.landing.values(),
            forwarding=forwarded_families(),
            bridged=bridged_families(),
        )

    def _reasons_not_to_preserve(self) -> list[str]:
        """Return why privileges do not allow preserving client addresses.

        Workers make the dials, and the only capability that they may keep for this is CAP_NET_RAW. Without workers,
        this process may use CAP_NET_ADMIN.
        """
        reasons = [f"{family}: {reason}" for family in self.families if (reason := why_not(family)) is not None]
        has_workers = self._configuration.kubeproxy.workers.number != 0
        if not reasons and has_workers and not privileges.held() >> privileges.Capability.NET_RAW & 1:
            reasons.append("this process has no CAP_NET_RAW to give to workers")
        return reasons

    async def look_whether_addresses_can_be_preserved(self, netfilter: Netfilter) -> None:
        """Probe whether the kernel can preserve client addresses as configured, and warn if it cannot."""
        if self._configuration.kubeproxy.preserve_client_address == "never":
            return
        reasons = self._reasons_not_to_preserve()
        if not reasons and (reason := await netfilter.why_not(Feature.TRANSPARENT)) is not None:
            reasons.append(f"{netfilter.name}: {reason}")
        self._can_preserve = not reasons
        if reasons:
            log.warning(
                "cannot preserve client addresses",
                reason="; ".join(reasons),
                effect="endpoints see this node's addresses",
                remedy="CAP_NET_RAW, or --preserve-client-address=never",
            )

    async def can_guard_sockets(self, netfilter: Netfilter) -> bool:
        """Return whether netfilter can tell our listening sockets from those of other processes."""
        reasons = [f"{family}: {reason}" for family in self.families if (reason := why_not(family)) is not None]
        if not reasons and (reason := await netfilter.why_not(Feature.SOCKET_GUARD)) is not None:
            reasons.append(f"{netfilter.name}: {reason}")
        if reasons and netfilter.name != "none":
            log.info(
                "cannot guard listening sockets",
                effect="netfilter does not check which process listens at a proxy port",
                reason="; ".join(reasons),
            )
        return not reasons

    async def look_whether_dials_are_marked(self, netfilter: Netfilter) -> None:
        """Probe whether our rules recognize our own dials, and warn if they would redirect them."""
        if netfilter.name != "none" and (reason := await in_thread(why_not_marked)) is not None:
            log.warning(
                "cannot mark dials; loops end later",
                reason=reason,
                effect="an endpoint that is a service address unknown to this node is dialed up to 8 times",
                remedy="CAP_NET_RAW and Linux 5.17",
            )

    @property
    def complaints(self) -> Mapping[Reason, Callable[[], str | None]]:
        """Return the functions that report problems of this host, by reason. Each returns a text, or None if there is
        no problem."""
        return {Reason.CONNTRACK: self._complain_of_conntrack, Reason.LEFTOVERS: lambda: self._leftovers_complaint}

    def _complain_of_conntrack(self) -> str | None:
        """Return the problem of connection tracking since the last call, or None."""
        before, now = self.conntrack_room, usage.look()
        self.conntrack_room = now
        return None if now is None else now.complaint(before)

    async def follow(self, *, on_landing: Callable[[], None], on_facts: Callable[[NodeFacts], None]) -> None:
        """Call `on_landing` and `on_facts` when this node's addresses change, until cancelled."""
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
        """Search for rules of kube-proxy until cancelled. `ours` is the name of the adapter in use.

        With the adapter ``none``, kube-proxy may be serving on purpose, so its rules are no problem.
        """
        period_s = self._configuration.sync_period_s
        while ours != "none":
            self._leftovers_complaint = kube_proxy_rules.complaint(await kube_proxy_rules.look())
            await asyncio.sleep(period_s if self._leftovers_complaint else LEFTOVERS_LOOK * period_s)


def _families() -> tuple[Family, ...]:
    """Return the families of this kernel. IPv6 may be missing, or disabled at boot."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return (Family.IPV4,)
    return tuple(Family)


def _words(addresses: Mapping[Family, Address]) -> str:
    return ", ".join(addresses.values()) or "none"
