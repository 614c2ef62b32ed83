"""Routes that are taken away: from the kernel's notifications to destinations."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address, ip_network
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.model import Address
from kubeproxy.netfilter.netlink.messages import encode, frame
from kubeproxy.netfilter.routing.lookup import has_route, link_to, without_route
from kubeproxy.netfilter.routing.route_watch import RouteWatch, lost_ways, within
from tests.support.lab import Host

NEW, DELETED = 24, 25
UNICAST, BLACKHOLE = 1, 6


def message(kind: int, to: str, type_: int = UNICAST) -> bytes:
    """A notification about a route."""
    network = ip_network(to)
    inet = {4: 2, 6: 10}[network.version]
    header = struct.pack("=BBBBBBBBI", inet, network.prefixlen, 0, 0, 254, 3, 0, type_, 0)
    destination = [(1, network.network_address.packed)] if network.prefixlen else []
    return frame(kind, header + encode([*destination, (15, b"\xfe\0\0\0")]), flags=0, sequence=0)


@pytest.mark.parametrize("to", ["10.3.0.2/32", "10.3.0.0/24", "0.0.0.0/0", "fd00:3::2/128", "::/0"])
def test_a_deleted_route_is_a_way_lost(to: str) -> None:
    assert list(lost_ways(message(DELETED, to))) == [ip_network(to)]
    assert list(lost_ways(message(NEW, to, BLACKHOLE))) == [ip_network(to)]
    assert list(lost_ways(message(NEW, to))) == []


def test_several_messages_of_one_read() -> None:
    data = message(DELETED, "10.3.0.2/32") + message(NEW, "10.3.1.2/32") + message(DELETED, "10.3.2.2/32")
    assert list(lost_ways(data)) == [ip_network("10.3.0.2/32"), ip_network("10.3.2.2/32")]


def test_odd_lengths_are_left_out() -> None:
    for length, size in product((33, 255), (0, 4, 5)):
        header = struct.pack("=BBBBBBBBI", 2, length, 0, 0, 254, 3, 0, 1, 0)
        assert list(lost_ways(frame(DELETED, header + encode([(1, b"x" * size)]), flags=0, sequence=0))) == []


@given(
    addresses=st.sets(
        st.one_of(st.ip_addresses(v=4, network="10.0.0.0/24"), st.ip_addresses(v=6, network="fd00::/120"))
    ),
    prefixes=st.lists(
        st.tuples(
            st.sampled_from(["10.0.0.0", "10.0.0.64", "fd00::", "fd00::80"]), st.sampled_from([0, 1, 2, 6, 8, 13, 24])
        ),
        max_size=4,
    ),
)
def test_addresses_within_prefixes(addresses: set[IPv4Address | IPv6Address], prefixes: list[tuple[str, int]]) -> None:
    networks = [ip_network(f"{ip}/{(128 if ':' in ip else 32) - bits}", strict=False) for ip, bits in prefixes]
    found = within(networks)
    for it in addresses:
        assert (Address(str(it)) in found) is any(it in network for network in networks)


def test_a_default_route_has_all() -> None:
    for route, address, other in (("0.0.0.0/0", "10.3.0.2", "fd00::1"), ("::/0", "fd00::1", "10.3.0.2")):
        found = within([ip_network(route), ip_network("192.0.2.7/32")])
        assert Address(address) in found
        assert Address(other) not in found
        assert Address("192.0.2.7") in found


@pytest.fixture
def watch() -> Iterator[tuple[Host, RouteWatch]]:
    """A host with two pods on links of their own, and a watch."""
    with Host("node") as host:
        for pod in ("pod0", "pod1"):
            host.ip(f"link add {pod} type veth peer name {pod}-peer", f"link set {pod}-peer up", f"link set {pod} up")
        host.ip("addr add 10.3.255.1/32 dev lo", "link set lo up")
        host.ip("route add 10.3.0.2/32 dev pod0 src 10.3.255.1", "route add 10.3.1.2/32 dev pod1 src 10.3.255.1")
        with host.entered(), closing(RouteWatch()) as it:
            it.look()
            yield host, it


LOSSES = {
    "link down": ("link set pod0 down", ["10.3.0.2"]),
    "link deleted": ("link del pod0", ["10.3.0.2"]),
    "source address": ("addr del 10.3.255.1/32 dev lo", ["10.3.0.2", "10.3.1.2"]),
}


@pytest.mark.netns
@pytest.mark.parametrize("loss", LOSSES)
def test_routes_that_go_without_a_notification(watch: tuple[Host, RouteWatch], loss: str) -> None:
    host, it = watch
    command, gone = LOSSES[loss]
    pods = [Address("10.3.0.2"), Address("10.3.1.2")]
    assert all(map(has_route, pods))
    host.ip(command)
    assert it.look().more
    assert [pod for pod in pods if not has_route(pod)] == gone
    assert not it.look().more


@pytest.mark.netns
def test_the_source_address_of_one_route_has_no_effect_on_the_next_one() -> None:
    with Host("node") as host, host.entered():
        host.ip("link set lo up", "link add pod0 type veth peer name peer", "link set peer up", "link set pod0 up")
        for number in (1, 2):
            host.ip(
                f"addr add 10.3.255.{number}/32 dev lo",
                f"route add 10.3.{number}.0/24 dev pod0 src 10.3.255.{number}",
                f"addr add fd00:255::{number}/128 dev lo nodad",
                f"route add fd00:{number}::/64 dev pod0 src fd00:255::{number}",
            )
        host.ip("rule add from 10.3.255.1 to 10.3.2.0/24 prohibit")
        host.ip("-6 rule add from fd00:255::1 to fd00:2::/64 prohibit")
        there = [Address(it) for it in ("10.3.1.1", "fd00:1::1", "10.3.2.1", "fd00:2::1", "10.3.1.2")]
        nowhere = Address("10.4.0.1")
        assert without_route([*there, nowhere, *there]) == {nowhere}


@pytest.mark.netns
def test_the_link_that_leads_to_an_address(watch: tuple[Host, RouteWatch]) -> None:
    host, _ = watch
    pod0 = json.loads(host.ip("-j link show dev pod0"))[0]["ifindex"]
    assert link_to(Address("10.3.0.2")) == pod0
    assert link_to(Address("10.3.255.1")) == link_to(Address("::1")) == 0, "this host's own"
    host.ip("route add blackhole 10.8.0.0/16", "route add unreachable fd00:8::/64")
    assert [link_to(Address(it)) for it in ("10.8.0.1", "fd00:8::1", "192.0.2.1")] == [None] * 3


@pytest.mark.netns
def test_a_next_hop_takes_its_routes_along(watch: tuple[Host, RouteWatch]) -> None:
    host, it = watch
    host.ip("nexthop add id 7 dev pod0", "route add 10.4.0.0/16 nhid 7")
    assert has_route(Address("10.4.0.2"))
    assert it.look() == (set(), False)
    host.ip("nexthop del id 7")
    assert it.look().more
    assert not has_route(Address("10.4.0.2"))


@pytest.mark.netns
def test_a_link_that_is_made_takes_no_route_away(watch: tuple[Host, RouteWatch]) -> None:
    host, it = watch
    host.ip("addr add 10.3.0.9/32 dev pod0", "link set pod0 mtu 1400")
    host.ip("link add pod2 type veth peer name pod2-peer", "link set pod2 up")
    assert it.look() == (set(), False)


@pytest.mark.netns
def test_lost_notifications_may_be_of_anything(watch: tuple[Host, RouteWatch]) -> None:
    host, it = watch
    with socket.socket(fileno=socket.dup(it._socket.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    host.ip(*(f"route add 10.4.{number}.0/24 dev pod0" for number in range(64)))
    assert it.look().more
    assert not it.look().more


@pytest.mark.netns
@pytest.mark.parametrize("kind", ["unreachable", "blackhole", "prohibit"])
@pytest.mark.parametrize("to", ["10.4.0.0/16", "fd00:4::/64"])
def test_a_route_that_leads_nowhere_is_none(kind: str, to: str) -> None:
    with Host("node") as host, host.entered():
        host.ip("link set lo up", f"route add {kind} {to}")
        assert not has_route(Address(to.replace("0.0/16", "0.2").replace("::/64", "::2")))
        assert has_route(Address("127.0.0.1"))
        assert not has_route(Address("10.9.0.1"))
