"""Ranges of addresses."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.model import Address, Family, Protocol
from kubeproxy.netfilter.cidr import contains, disjoint, is_loopback, of_family
from tests.netfilter.stage import destination, rule_set

cidrs = st.frozensets(
    st.builds(
        lambda bits, length: str(ipaddress.ip_network((bits << 24, length), strict=False)),
        st.integers(0, 255),
        st.integers(0, 8),
    )
    | st.sampled_from(["fd00::/16", "::/0", "fd00::1/128"]),
    max_size=6,
)


@given(cidrs=cidrs, first=st.integers(0, 255))
def test_disjoint_ranges_hold_the_same_addresses_and_none_twice(cidrs: frozenset[str], first: int) -> None:
    address = Address(f"{first}.0.0.1")
    made = disjoint(cidrs, Family.IPV4)
    assert sum(contains(frozenset({it}), address) for it in made) == contains(cidrs, address)


def test_disjoint_ranges_by_example() -> None:
    mixed = frozenset({"10.0.0.0/9", "10.128.0.0/9", "10.3.0.0/16", "192.0.2.7/32", "fd00::1/128", "10.0.0.1/8"})
    assert disjoint(mixed, Family.IPV4) == ("10.0.0.0/8", "192.0.2.7")
    assert disjoint(mixed, Family.IPV6) == ("fd00::1",)
    assert disjoint(frozenset({"0.0.0.0/1", "128.0.0.0/1"}), Family.IPV4) == ("0.0.0.0/0",)
    with pytest.raises(ValueError):
        disjoint(frozenset({"10.0.0.0/33"}), Family.IPV4)


def test_addresses() -> None:
    assert is_loopback(Address("127.0.0.53"))
    assert is_loopback(Address("::1"))
    assert not is_loopback(Address("12.7.0.0"))
    assert of_family(map(Address, ("fd00::1", "10.0.0.2", "10.0.0.1")), Family.IPV4) == ["10.0.0.1", "10.0.0.2"]


def test_an_admitted_node_may_have_the_service_address_itself() -> None:
    lb, lb6 = destination("203.0.113.5", Protocol.TCP), destination("fd11::5", Protocol.TCP)
    allowed = {lb: ("10.2.0.0/24",), lb6: ("10.2.0.0/24", "fd00::/16")}
    assert rule_set({}, allowed=allowed).admitted == {lb: ("10.2.0.0/24",), lb6: ("fd00::/16",)}
    at_node = rule_set({}, allowed=allowed, landing=("10.2.0.1",), node_addresses=("fd00:2::1", "127.0.0.1"))
    assert at_node.admitted == {lb: ("10.2.0.0/24", "203.0.113.5"), lb6: ("fd00::/16", "fd11::5")}
    elsewhere = rule_set({}, allowed={lb: ("10.9.0.0/16", "127.0.0.0/8")}, node_addresses=("10.2.0.1", "127.0.0.1"))
    assert elsewhere.admitted == {lb: ("10.9.0.0/16", "127.0.0.0/8")}
