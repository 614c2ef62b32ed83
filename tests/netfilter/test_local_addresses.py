"""The node's own addresses."""

from __future__ import annotations

import pytest

from kubeproxy.model import Address, Family
from kubeproxy.netfilter.local_addresses import LocalAddress, first_global, landing_addresses, local_addresses
from tests.support.lab import Host, make_network


def addresses_of(host: Host) -> list[LocalAddress]:
    with host.entered():
        return list(local_addresses())


@pytest.mark.netns
def test_the_default_route_decides_where_traffic_lands() -> None:
    with make_network(pods=1) as network:
        with network.node.entered():
            assert landing_addresses() == {Family.IPV4: "10.2.0.1", Family.IPV6: "fd00:2::1"}
        with network.pods[0].entered():
            assert landing_addresses() == {Family.IPV4: "10.3.0.2", Family.IPV6: "fd00:3::2"}


@pytest.mark.netns
def test_without_a_default_route_the_first_global_address_in_use() -> None:
    with Host("alone") as host:
        with host.entered():
            assert landing_addresses() == {}
        host.ip("link add d0 type veth peer name d1")
        host.ip("addr add 10.7.0.1/24 dev d0")
        host.ip("addr add 10.8.0.1/24 dev d1")
        host.ip("addr add fd07::1/64 dev d1 nodad")
        host.ip("link set d1 up")
        with host.entered():
            assert landing_addresses() == {Family.IPV4: "10.8.0.1", Family.IPV6: "fd07::1"}
        host.ip("link set d1 down")
        with host.entered():
            assert Family.IPV4 not in landing_addresses(), "d0 is down and so is d1"


@pytest.mark.netns
def test_every_address_with_its_interface() -> None:
    with Host("alone") as host:
        host.ip("link add d0 type veth peer name d1")
        host.ip("addr add 10.7.0.1/24 dev d0")
        host.ip("addr add 10.7.0.2 peer 10.9.9.9/32 dev d0")
        host.ip("addr add 169.254.1.1/16 scope link dev d0")
        host.ip("link set d0 up")
        found = {it.address: it for it in addresses_of(host)}
        assert found[Address("127.0.0.1")] == LocalAddress(
            address=Address("127.0.0.1"), interface="lo", is_global=False, usable=True, number=1
        )
        assert found[Address("10.7.0.1")].network == "10.7.0.0/24"
        assert found[Address("10.7.0.2")].network == "10.9.9.9/32", "the other end's"
        assert found[Address("169.254.1.1")].network == "169.254.0.0/16"
        assert found[Address("10.7.0.2")].interface == "d0", "not the other end's"
        assert found[Address("10.7.0.2")].is_global
        assert not found[Address("169.254.1.1")].is_global
        assert "10.9.9.9" not in found
        many = "".join(f"addr add 10.10.{index >> 8}.{index & 255}/32 dev d0\n" for index in range(600))
        host.run(["ip", "-batch", "-"], input=many)
        assert len([it for it in addresses_of(host) if it.address.startswith("10.10.")]) == 600


@pytest.mark.netns
def test_a_link_with_two_ends_has_no_other_hosts() -> None:
    with Host("alone") as host:
        host.ip("tuntap add t0 mode tun", "addr add 10.7.0.1/24 dev t0", "link set t0 up")
        host.ip("link add d0 type veth peer name d1", "link set d0 arp off", "addr add 10.8.0.1/24 dev d0")
        assert {it.network for it in addresses_of(host) if it.interface in ("t0", "d0")} == {None}


@pytest.mark.netns
def test_a_bridge_and_what_netfilter_sees_of_it() -> None:
    with Host("alone") as host:
        for number, settings in enumerate(("", "nf_call_iptables 1", "nf_call_iptables 1 nf_call_ip6tables 1")):
            host.ip(f"link add b{number} type bridge {settings}", f"addr add 10.7.{number}.1/24 dev b{number}")
        host.ip("link add d0 type veth peer name d1", "addr add 10.8.0.1/24 dev d0")
        found = {it.interface: it.bridge for it in addresses_of(host)}
        assert found == {
            "lo": None,
            "b0": frozenset(),
            "b1": frozenset({Family.IPV4}),
            "b2": frozenset(Family),
            "d0": None,
        }


def address(text: str, *, is_global: bool = True, usable: bool = True) -> LocalAddress:
    return LocalAddress(address=Address(text), interface="eth0", is_global=is_global, usable=usable)


def test_first_global() -> None:
    candidates = [
        address("127.0.0.1", is_global=False),
        address("10.0.0.1", usable=False),
        address("fd00::1"),
        address("10.0.0.2"),
    ]
    assert first_global(candidates, Family.IPV4) == "10.0.0.2"
    assert first_global(candidates, Family.IPV6) == "fd00::1"
    assert first_global(candidates[:2], Family.IPV4) is None
