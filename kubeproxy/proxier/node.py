"""Facts about this node on which frontends and rules depend. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.model import Address, Family
from kubeproxy.netfilter.ruleset import DirectLink


class Preserve(StrEnum):
    """Which endpoints are dialed from the client's own address (`--preserve-client-address`)."""

    NEVER = "never"
    EXTERNAL_LOCAL = "external-local"
    """Endpoints behind externalTrafficPolicy Local, which promises it."""
    LOCAL = "local"
    """All endpoints on this node, whatever the policy."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts about this node. An unknown one is empty, and then nothing is local."""

    name: str = ""
    zone: str = ""
    node_addresses: frozenset[Address] = frozenset()
    """The addresses that take node ports (`--nodeport-addresses`), loopback included where it does."""
    own_addresses: frozenset[Address] = frozenset()
    """All addresses of this node: a Service at one of them takes its ports from the processes of this host."""
    internal_sources: frozenset[str] = frozenset()
    """CIDRs of the cluster's pods, if known."""
    uplinks: frozenset[str] = frozenset()
    """Interfaces by which pods of other nodes come."""
    direct_links: frozenset[DirectLink] = frozenset()
    """Links on which hosts reach one another without this node."""
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
"""No fact is known."""
