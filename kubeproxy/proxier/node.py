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
    """Endpoints behind externalTrafficPolicy Local, which promises the client's address."""
    LOCAL = "local"
    """All endpoints on this node, whatever the policy."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts about this node. An unknown fact is empty, and then nothing counts as local."""

    name: str = ""
    zone: str = ""
    node_addresses: frozenset[Address] = frozenset()
    """The addresses that take node ports (`--nodeport-addresses`), including loopback addresses if they do."""
    own_addresses: frozenset[Address] = frozenset()
    """All addresses of this node. A Service at one of them takes its ports from the processes of this host."""
    internal_sources: frozenset[str] = frozenset()
    """The CIDRs of the cluster's pods, if they are known."""
    uplinks: frozenset[str] = frozenset()
    """The interfaces by which packets of pods on other nodes arrive."""
    direct_links: frozenset[DirectLink] = frozenset()
    """The links on which hosts reach one another without this node."""
    forwarding: frozenset[Family] = frozenset()
    """The families that this node's kernel forwards."""
    preserve: Preserve = Preserve.EXTERNAL_LOCAL

    def is_own(self, address: Address) -> bool:
        """Return whether this host itself answers at an address."""
        return (
            address in self.own_addresses
            or address in self.node_addresses
            or address.startswith("127.")
            or address == "::1"
        )


UNKNOWN_NODE = NodeFacts()
"""The facts if nothing is known."""
