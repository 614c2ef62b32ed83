"""The network between the nodes: one switch, which is also the host of the control plane."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.lab import Host, join
from tests.system.cluster.layout import OUTSIDE, SWITCH, Place


class Wires:
    """The switch, a client outside of the cluster, and the wires to the nodes; a context manager closes all."""

    def __init__(self, nodes: Sequence[Place]) -> None:
        self._nodes = nodes
        self.switch = Host("switch")
        # What the bridge forwards between the nodes is none of the switch's own rules.
        self.switch.sysctl("net.bridge.bridge-nf-call-iptables", 0)
        self.switch.sysctl("net.ipv4.ip_forward", 1)
        self.switch.ip("link add br0 type bridge", f"addr add {SWITCH}/24 dev br0", "link set br0 up")
        self.outside = Host("outside")
        self._plug(self.outside, "outside", OUTSIDE)
        self._hosts: dict[str, Host] = {}
        for node in nodes:
            self.switch.ip(f"route add {node.pods} via {node.address}")

    def new_node(self, node: Place) -> Host:
        """A node without any network state: as after switching it on. The previous one of that place is gone."""
        if (before := self._hosts.pop(node.name, None)) is not None:
            self.switch.ip(f"link del {node.name}")
            before.close()
        host = self._hosts[node.name] = Host(node.name)
        host.sysctl("net.ipv4.ip_forward", 1)
        host.sysctl("net.bridge.bridge-nf-call-iptables", 1)
        self._plug(host, node.name, node.address)
        host.ip(*(f"route add {it.pods} via {it.address}" for it in self._nodes if it != node))
        return host

    def close(self) -> None:
        """Close all hosts."""
        for host in (*self._hosts.values(), self.outside, self.switch):
            host.close()

    def _plug(self, host: Host, port: str, address: str) -> None:
        join(self.switch, host, left_name=port, right_name="eth0")
        self.switch.ip(f"link set {port} master br0")
        host.ip(f"addr add {address}/24 dev eth0", f"route add default via {SWITCH}")
