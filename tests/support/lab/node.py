"""The usual network: a node that forwards, a client host in front of it, pods behind it. IPv4 and IPv6."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.lab.host import Host, join

NODE_V4, NODE_V6 = "10.2.0.1", "fd00:2::1"
CLIENT_V4, CLIENT_V6 = "10.2.0.2", "fd00:2::2"


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
def make_network(pods: int = 1) -> Iterator[Network]:
    """Build it, and take it down again.

    The node is 10.2.0.1 / fd00:2::1 towards the client (10.2.0.2 / fd00:2::2), and 10.3.i.1 towards pod i (10.3.i.2 /
    fd00:3:i::2). The client's and the pods' default routes lead to the node; the node's own default route leads to
    the client, so that packets of the node to service addresses have a route, as on any real node.
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
        made = []
        for index in range(pods):
            pod = stack.enter_context(Host(f"pod{index}"))
            join(node, pod, left_name=f"pod{index}", right_name="eth0")
            node.ip(
                f"addr add 10.3.{index}.1/24 dev pod{index}",
                f"addr add fd00:3:{index:x}::1/64 dev pod{index} nodad",
            )
            pod.ip(
                f"addr add {Network.pod_v4(index)}/24 dev eth0",
                f"addr add {Network.pod_v6(index)}/64 dev eth0 nodad",
                f"route add default via 10.3.{index}.1",
                f"route add default via fd00:3:{index:x}::1",
            )
            made.append(pod)
        yield Network(node, client, tuple(made))
