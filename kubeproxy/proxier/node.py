"""What is decided by where we are: the facts about this node that resolving a Service needs. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.model import Address


class Preserve(StrEnum):
    """Whose endpoints are dialed from the client's own address (`--preserve-client-address`)."""

    NEVER = "never"
    EXTERNAL_LOCAL = "external-local"
    """Those behind externalTrafficPolicy Local, which promises it."""
    LOCAL = "local"
    """All on this node, whichever the policy."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """This node, as far as frontends and rules depend on it. What is unknown is empty, and then nothing is local."""

    name: str = ""
    zone: str = ""
    node_addresses: frozenset[Address] = frozenset()
    """The addresses that take node ports (`--nodeport-addresses`), loopback included where it does."""
    own_addresses: frozenset[Address] = frozenset()
    """All addresses of this node: a Service that has one of them takes its ports away from this host's processes."""
    internal_sources: frozenset[str] = frozenset()
    """CIDRs of the cluster's pods, if known."""
    preserve: Preserve = Preserve.EXTERNAL_LOCAL

    def is_own(self, address: Address) -> bool:
        """Whether this host itself answers at an address."""
        return (
            address in self.own_addresses
            or address in self.node_addresses
            or address.startswith("127.")
            or address == "::1"
        )


NOWHERE = NodeFacts()
"""Nothing is known."""
