"""The facts about this node, from configuration, Node object and kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.node_facts import node_facts, node_of
from kubeproxy.model import Address, Node
from kubeproxy.netfilter.local_addresses import LocalAddress
from kubeproxy.proxier.node import Preserve
from tests.config.files import of_flags

OWN = ("127.0.0.1", "10.2.0.1", "192.0.2.7", "::1", "fd00:2::1", "fe80::1")
LOCAL = [LocalAddress(Address(text), "eth0", is_global=True, usable=True) for text in OWN]
NODE = Node("here", addresses=(Address("192.0.2.7"), Address("fd00:2::1"), Address("203.0.113.9")), zone="z1")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"127.0.0.1", "::1", "10.2.0.1", "192.0.2.7", "fd00:2::1"}),
        (["all"], {"127.0.0.1", "::1", "10.2.0.1", "192.0.2.7", "fd00:2::1"}),
        (["primary"], {"192.0.2.7", "fd00:2::1"}),
        (["primary", "localhost"], {"192.0.2.7", "fd00:2::1", "127.0.0.1", "::1"}),
        (["10.0.0.0/8"], {"10.2.0.1"}),
        (["127.0.0.0/8", "fd00::/8"], {"127.0.0.1", "fd00:2::1"}),
        (["198.51.100.0/24"], set()),
    ],
)
def test_addresses_that_serve_node_ports(words: list[str], expected: set[str]) -> None:
    configuration = of_flags(nodeport_addresses=",".join(words)).configuration if words else Configuration()
    facts = node_facts(configuration, NODE, LOCAL, can_preserve=True)
    assert facts.node_addresses == expected
    assert facts.own_addresses == set(OWN) - {"fe80::1"}


def test_a_host_without_ipv6_has_no_address_of_it() -> None:
    local = [it for it in LOCAL if ":" not in it.address]
    facts = node_facts(Configuration(), NODE, local, can_preserve=True)
    assert facts.node_addresses == {"127.0.0.1", "10.2.0.1", "192.0.2.7"}


def test_localhost_can_be_excluded() -> None:
    configuration = of_flags(iptables_localhost_nodeports="false").configuration
    assert not {"127.0.0.1", "::1"} & node_facts(configuration, NODE, LOCAL, can_preserve=True).node_addresses


def test_pods_of_this_node_are_known_by_its_own_blocks_if_the_mode_says_so() -> None:
    node = replace(NODE, pod_cidrs=("10.3.1.0/24", "fd00:3:1::/64"))
    whole = {"cluster_cidr": "10.3.0.0/16"}
    by_node = of_flags(detect_local_mode="NodeCIDR", **whole).configuration
    by_cluster = of_flags(detect_local_mode="ClusterCIDR", **whole).configuration
    assert node_facts(by_node, node, LOCAL, can_preserve=True).internal_sources == {*node.pod_cidrs}
    assert node_facts(by_node, NODE, LOCAL, can_preserve=True).internal_sources == {"10.3.0.0/16"}
    assert node_facts(by_cluster, node, LOCAL, can_preserve=True).internal_sources == {"10.3.0.0/16"}
    assert node_of(by_node, "here", node).pod_cidrs == node.pod_cidrs


def test_without_a_node_object_the_first_address_of_each_family_is_primary() -> None:
    configuration = of_flags(nodeport_addresses="primary").configuration
    facts = node_facts(configuration, node_of(configuration, "here", None), LOCAL, can_preserve=True)
    assert facts.node_addresses == {"10.2.0.1", "fd00:2::1"}
    assert (facts.name, facts.zone) == ("here", "")


def test_the_configuration_replaces_a_missing_node_object() -> None:
    configuration = of_flags(node_addresses="198.51.100.1", node_zone="z2").configuration
    node = node_of(configuration, "here", None)
    assert (node.addresses, node.zone, node.eligible) == (("198.51.100.1",), "z2", True)
    assert node_of(configuration, "here", NODE) == NODE


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param("10.3.0.0/16", {"eth0"}, id="a network of their own"),
        pytest.param("10.2.0.0/16", set(), id="addresses of the node's network"),
        pytest.param("10.0.0.0/8,fd00:3::/32", {"eth1"}, id="of one of two networks"),
        pytest.param("", set(), id="unknown"),
    ],
)
def test_pods_of_other_nodes_come_by_the_links_that_know_this_node(pods: str, expected: set[str]) -> None:
    local = [
        LocalAddress(Address(address), interface, is_global=True, usable=True, network=network)
        for address, interface, network in (
            ("10.2.0.1", "eth0", "10.2.0.0/24"),
            ("192.0.2.7", "eth1", "192.0.2.0/24"),
            ("10.3.0.1", "cni0", "10.3.0.0/24"),
            ("127.0.0.1", "lo", None),
        )
    ]
    configuration = of_flags(**({"cluster_cidr": pods} if pods else {})).configuration
    node = Node("here", addresses=(Address("192.0.2.7"),)) if expected == {"eth1"} else Node("here")
    facts = node_facts(configuration, node, local, landing=[Address("10.2.0.1")], can_preserve=True)
    assert facts.uplinks == expected


def test_addresses_are_preserved_only_if_the_kernel_allows_it() -> None:
    configuration = of_flags(preserve_client_address="local", cluster_cidr="10.0.0.0/8,fd00::/8").configuration
    able = node_facts(configuration, NODE, LOCAL, can_preserve=True)
    assert able.preserve is Preserve.LOCAL
    assert able.internal_sources == {"10.0.0.0/8", "fd00::/8"}
    assert node_facts(configuration, NODE, LOCAL, can_preserve=False).preserve is Preserve.NEVER
