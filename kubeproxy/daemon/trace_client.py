"""The client of a traced connection."""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.dataplane.sockets.routes import way_to
from kubeproxy.model import Address, family_of
from kubeproxy.netfilter.cidr import contains
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.observability.status.trace_report import TraceRequest
from kubeproxy.proxier.node import NodeFacts


@dataclass(frozen=True, slots=True)
class Client:
    """The client, as netfilter sees it."""

    address: Address | None
    """The client's address, or None if the client is this node and its address is not known."""
    is_this_node: bool
    is_pod: bool

    @property
    def words(self) -> str:
        """Return the client in words: ``this node``, ``a pod`` or ``another host``."""
        return "this node" if self.is_this_node else "a pod" if self.is_pod else "another host"

    @property
    def hook(self) -> str:
        """Return the netfilter hook that the client's packet enters first."""
        return "output" if self.is_this_node else "prerouting"


def client_of(asked: TraceRequest, rules: RuleSet, facts: NodeFacts) -> Client:
    """Return the client of a trace request. It is this node if the request names no address.

    A packet of this node has the destination address as its source if that address is the node's own, and otherwise the
    node's landing address.
    """
    if asked.source is None:
        here = asked.to.address if facts.is_own(asked.to.address) else rules.landing.get(family_of(asked.to.address))
        return Client(here, True, False)
    own = facts.is_own(asked.source)
    is_pod = not own and contains(rules.internal_sources, asked.source)
    # The trace does not know on which interface the packet arrives. But pods of other nodes are behind a gateway, and
    # pods of this node are not.
    if is_pod and rules.uplinks and (way := way_to(asked.source)) is not None:
        is_pod = way.direct
    return Client(asked.source, own, is_pod)
