"""From which clients' addresses an endpoint can be dialed, by the kernel's own routes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kubeproxy.dataplane.sockets.routes import Routes
from kubeproxy.dataplane.sockets.transparent_dial import can_preserve
from tests.support.lab import Host

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def routes() -> Iterator[Routes]:
    """The routes of a node with pods on a bridge, a pod behind a link of its own, and an uplink."""
    with Host("node") as node:
        for name, addresses in {
            "cni0": ("10.3.0.1/24", "fd00:3::1/64"),
            "eth0": ("10.2.0.1/24", "fd00:2::1/64"),
            "cali1": (),
        }.items():
            node.ip(f"link add {name} type veth peer name {name}p", f"link set {name} up", f"link set {name}p up")
            node.ip(*(f"addr add {address} dev {name}" for address in addresses), "link show lo")
        node.ip(
            "route add 10.2.0.40/32 dev cali1",
            "route add default via 10.2.0.254",
            "route add 10.8.0.0/16 via 10.3.0.254",
            "route add fd00:2::40/128 dev cali1",
            "route add default via fd00:2::254",
        )
        with node.entered():
            made = Routes()
        yield made
        made.close()


@pytest.mark.parametrize(
    ("client", "endpoint", "can"),
    [
        pytest.param("10.3.0.7", "10.3.0.8", False, id="on one bridge"),
        pytest.param("fd00:3::7", "fd00:3::8", False, id="on one bridge, IPv6"),
        pytest.param("10.2.0.2", "10.3.0.8", True, id="on another link"),
        pytest.param("fd00:2::2", "fd00:3::8", True, id="on another link, IPv6"),
        pytest.param("192.0.2.7", "10.3.0.8", True, id="behind a router"),
        pytest.param("2001:db8::7", "fd00:3::8", True, id="behind a router, IPv6"),
        pytest.param("10.8.0.7", "10.3.0.8", True, id="behind a router on the endpoint's link"),
        pytest.param("10.3.0.7", "10.8.0.8", False, id="an endpoint behind a router on the client's link"),
        pytest.param("10.2.0.2", "10.2.0.40", True, id="a pod with an address of the network"),
        pytest.param("fd00:2::2", "fd00:2::40", True, id="a pod with an address of the network, IPv6"),
        pytest.param("10.3.0.1", "10.3.0.8", True, id="this node"),
        pytest.param("fd00:3::1", "fd00:3::8", True, id="this node, IPv6"),
        pytest.param("127.0.0.1", "10.3.0.8", False, id="loopback"),
        pytest.param("::1", "fd00:3::8", False, id="loopback, IPv6"),
        pytest.param("10.3.0.8", "10.3.0.8", False, id="itself"),
        pytest.param("fe80::1", "fd00:3::8", True, id="without a way back"),
    ],
)
def test_a_client_keeps_its_address_unless_the_answer_would_pass_this_node(
    routes: Routes, client: str, endpoint: str, can: bool
) -> None:
    assert can_preserve(client, endpoint, routes) is can
