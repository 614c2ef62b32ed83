"""The usual network: a node that forwards, a client host in front of it, pods behind it. IPv4 and IPv6.

Pods have a link each, or all of them a port of one bridge, as with CNI's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum

from tests.support.lab.host import Host, join

NODE_V4, NODE_V6 = "10.2.0.1", "fd00:2::1"
CLIENT_V4, CLIENT_V6 = "10.2.0.2", "fd00:2::2"
BRIDGE = "cni0"


class PodLinks(StrEnum):
    """The way from the node to its pods, and between them."""

    ROUTED = "routed links"
    BRIDGE = "a bridge"
    """Netfilter does not see what passes from one pod to another."""
    SEEN_BRIDGE = "a bridge with br_netfilter"
    """It does (bridge-nf-call-iptables), as on most nodes."""


@dataclass(frozen=True, slots=True)
class Network:
    """The hosts; pods are reached from the node, service addresses through it."""

    node: Host
    client: Host
    pods: tuple[Host, ...]

    @staticmethod
    def pod_v4(index: int) -> str:
        """The IPv4 address of the index-th pod (from 0)."""
        return f"10.3.{index}.2"

    @staticmethod
    def pod_v6(index: int) -> str:
        """The IPv6 address of the index-th pod (from 0)."""
        return f"fd00:3:{index:x}::2"


@contextmanager
def make_network(pods: int = 1, *, links: PodLinks = PodLinks.ROUTED) -> Iterator[Network]:
    """Build it, and take it down again.

    The node is 10.2.0.1 / fd00:2::1 towards the client (10.2.0.2 / fd00:2::2), and 10.3.i.1 / fd00:3:i::1 towards
    pod i (10.3.i.2 / fd00:3:i::2); towards a bridge it is 10.3.0.1 / fd00:3::1. The client's and the pods' default
    routes lead to the node; the node's own default route leads to the client, so that packets of the node to service
    addresses have a route, as on any real node.
    """
    with ExitStack() as stack:
        node = stack.enter_context(Host("node"))
        client = stack.enter_context(Host("client"))
        node.sysctl("net.ipv4.ip_forward", 1)
        node.sysctl("net.ipv6.conf.all.forwarding", 1)
        join(node, client, left_name="to-client", right_name="eth0")
        node.ip(
            f"addr add {NODE_V4}/24 dev to-client",
            f"addr add {NODE_V6}/64 dev to-client nodad",
            f"route add default via {CLIENT_V4}",
            f"route add default via {CLIENT_V6}",
        )
        client.ip(
            f"addr add {CLIENT_V4}/24 dev eth0",
            f"addr add {CLIENT_V6}/64 dev eth0 nodad",
            f"route add default via {NODE_V4}",
            f"route add default via {NODE_V6}",
        )
        made = tuple(stack.enter_context(Host(f"pod{index}")) for index in range(pods))
        for index, pod in enumerate(made):
            join(node, pod, left_name=f"pod{index}", right_name="eth0")
        if links is PodLinks.ROUTED:
            _route(node, made)
        else:
            _bridge(node, made, seen=links is PodLinks.SEEN_BRIDGE)
        yield Network(node, client, made)


def _route(node: Host, pods: Sequence[Host]) -> None:
    for index, pod in enumerate(pods):
        node.ip(f"addr add 10.3.{index}.1/24 dev pod{index}", f"addr add fd00:3:{index:x}::1/64 dev pod{index} nodad")
        _address(pod, index, prefixes=(24, 64), gateways=(f"10.3.{index}.1", f"fd00:3:{index:x}::1"))


def _bridge(node: Host, pods: Sequence[Host], *, seen: bool) -> None:
    node.ip(
        f"link add {BRIDGE} type bridge",
        f"link set {BRIDGE} up",
        f"addr add 10.3.0.1/16 dev {BRIDGE}",
        f"addr add fd00:3::1/32 dev {BRIDGE} nodad",
    )
    for index, pod in enumerate(pods):
        # hairpin: CNI's hairpinMode.
        node.ip(f"link set pod{index} master {BRIDGE}", f"link set pod{index} type bridge_slave hairpin on")
        _address(pod, index, prefixes=(16, 32), gateways=("10.3.0.1", "fd00:3::1"))
    for family in ("ip", "ip6"):
        node.sysctl(f"net.bridge.bridge-nf-call-{family}tables", int(seen))


def _address(pod: Host, index: int, *, prefixes: tuple[int, int], gateways: tuple[str, str]) -> None:
    pod.ip(
        f"addr add {Network.pod_v4(index)}/{prefixes[0]} dev eth0",
        f"addr add {Network.pod_v6(index)}/{prefixes[1]} dev eth0 nodad",
        *(f"route add default via {gateway}" for gateway in gateways),
    )
