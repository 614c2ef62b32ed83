"""Links on which hosts reach one another without this node."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from kubeproxy.model import Address, Family
from kubeproxy.netfilter.direct_links import SETTINGS, bridged_families, direct_links
from kubeproxy.netfilter.local_addresses import LocalAddress
from kubeproxy.netfilter.ruleset import DirectLink


def address(text: str, prefix: int, interface: str = "eth0") -> LocalAddress:
    network = str(ip_network(f"{text}/{prefix}", strict=False))
    number = {"eth0": 2, "cni0": 4}[interface]
    return LocalAddress(Address(text), interface, is_global=True, usable=True, network=network, number=number)


@pytest.mark.parametrize(
    ("local", "found"),
    [
        (address("10.2.0.7", 24), {DirectLink(2, "eth0", "10.2.0.0/24")}),
        (address("10.2.0.1", 29), {DirectLink(2, "eth0", "10.2.0.0/29")}),
        (address("10.2.0.1", 30), set()),
        (address("10.2.0.1", 32), set()),
        (address("fd00:2::7", 64), {DirectLink(2, "eth0", "fd00:2::/64")}),
        (address("fd00:2::7", 127), set()),
        (address("fd00:2::7", 128), set()),
        (address("fe80::1", 64), set()),
        (replace(address("10.2.0.7", 24), network=None), set()),
        (replace(address("10.2.0.7", 24), usable=False), {DirectLink(2, "eth0", "10.2.0.0/24")}),
    ],
)
def test_a_link_with_several_hosts(local: LocalAddress, found: set[DirectLink]) -> None:
    assert direct_links([local], frozenset()) == found


def test_a_bridge_with_frames_that_netfilter_sees() -> None:
    four, six = address("10.9.0.1", 24, "cni0"), address("fd00:9::1", 64, "cni0")
    plain = [replace(it, bridge=frozenset()) for it in (four, six)]
    on4, on6 = DirectLink(4, "cni0", "10.9.0.0/24"), DirectLink(4, "cni0", "fd00:9::/64")
    assert direct_links(plain, frozenset()) == {on4, on6}
    assert direct_links(plain, frozenset({Family.IPV4})) == {on6}
    own = [replace(it, bridge=frozenset({Family.IPV6})) for it in plain]
    assert direct_links(own, frozenset()) == {on4}
    assert direct_links(own, frozenset({Family.IPV4})) == set()
    assert direct_links([four], frozenset(Family)) == {on4}, "no bridge"


def test_settings_of_all_bridges(tmp_path: Path) -> None:
    assert bridged_families(directory=tmp_path) == frozenset(), "the module is not loaded"
    (tmp_path / "bridge").mkdir()
    for name in SETTINGS.values():
        (tmp_path / name).write_text("0\n")
    assert bridged_families(directory=tmp_path) == frozenset()
    (tmp_path / SETTINGS[Family.IPV6]).write_text("1\n")
    assert bridged_families(directory=tmp_path) == {Family.IPV6}
