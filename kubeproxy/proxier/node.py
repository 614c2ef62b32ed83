"""The facts about this node on which frontends and rules depend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.model import Address, Family
from kubeproxy.netfilter.ruleset import DirectLink


class Preserve(StrEnum):
    """Which endpoints are dialed from the client's own address (`--preserve-client-address`)."""

    NEVER = "never"
    EXTERNAL_LOCAL = "external-local"
    """Endpoints of Services with externalTrafficPolicy Local, which promises to preserve the client's address."""
    LOCAL = "local"
    """All endpoints on this node, with any policy."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts about this node. Facts that are not known are empty. Without them nothing counts as local."""

    name: str = ""
    zone: str = ""
    node_addresses: frozenset[Address] = frozenset()
    """The addresses that serve node ports (`--nodeport-addresses`), possibly with loopback addresses."""
    own_addresses: frozenset[Address] = frozenset()
    """All addresses of this node. A Service with such an address takes its ports from the processes of this host."""
    internal_sources: frozenset[str] = frozenset()
    """The CIDRs of the cluster's pods, or empty if they are not known."""
    uplinks: frozenset[str] = frozenset()
    """The interfaces by which packets of pods on other nodes arrive."""
    direct_links: frozenset[DirectLink] = frozenset()
    """The links on which hosts reach one another without passing through this node."""
    forwarding: frozenset[Family] = frozenset()
    """The families for which this node's kernel forwards packets."""
    preserve: Preserve = Preserve.EXTERNAL_LOCAL

    def is_own(self, address: Address) -> bool:
        """Return whether an address belongs to this host."""
        return (
            address in self.own_addresses
            or address in self.node_addresses
            or address.startswith("127.")
            or address == "::1"
        )


UNKNOWN_NODE = NodeFacts()
"""The facts of a node about which nothing is known."""
