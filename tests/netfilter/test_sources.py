"""Destinations that only some clients may reach: the same with both adapters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from kubeproxy.model import Family, Origin, Protocol
from kubeproxy.netfilter.ruleset import RuleSet
from tests.netfilter.stage import ANSWERED, SILENT, Adapter, attempt, destination, dump, rule_set, serving
from tests.netfilter.test_packets import NODE, VIP
from tests.support.lab import Host, Network
from tests.support.traffic import of

pytestmark = pytest.mark.netns

LB = {Family.IPV4: "203.0.113.5", Family.IPV6: "2001:db8:5::5"}
CLIENTS = {Family.IPV4: "10.2.0.2/32", Family.IPV6: "fd00:2::2/128"}
NODES = {Family.IPV4: "10.2.0.1/32", Family.IPV6: "fd00:2::1/128"}
PODS = {Family.IPV4: "10.3.0.0/16", Family.IPV6: "fd00:3::/32"}
OVERLAPPING = {Family.IPV4: ("10.3.0.0/24", "10.2.0.0/15"), Family.IPV6: ("fd00:3::/64", "fd00:2::/31")}
BOTH = (Protocol.TCP, Protocol.UDP)


def rules(family: Family, *cidrs: str) -> RuleSet:
    """A service with an address for clients of these ranges, and one for all clients. (Also ranges of the other family,
    which have no effect on this one.)"""
    other = CLIENTS[Family.IPV6 if family is Family.IPV4 else Family.IPV4]
    return rule_set(
        {destination(address[family], protocol): 7001 for address in (LB, VIP) for protocol in BOTH},
        allowed={destination(LB[family], protocol): (*cidrs, other) for protocol in BOTH},
        landing=(NODE[family],),
    )


@pytest.mark.parametrize("family", Family)
def test_admitted_sources(network: Network, adapter: Adapter, family: Family) -> None:
    hosts = {"client": network.client, "node": network.node, "pod": network.pods[0]}

    def expect(*admitted: str) -> None:
        with ThreadPoolExecutor() as threads:
            for protocol in BOTH:
                silent = {
                    name: threads.submit(meet, host, LB[family], protocol)
                    for name, host in hosts.items()
                    if name not in admitted
                }
                for name, host in hosts.items():
                    assert attempt(host, VIP[family], protocol, 80) == ANSWERED
                    if name in admitted:
                        assert attempt(host, LB[family], protocol, 80) == ANSWERED, (name, protocol, admitted)
                    else:
                        assert silent[name].result() == SILENT, (name, protocol, admitted)

    with ExitStack() as stack:
        for protocol in BOTH:
            stack.enter_context(serving(network.node, protocol, 7001, family))
        adapter.apply(rules(family, CLIENTS[family]), verify=True)
        assert not adapter.apply(rules(family, CLIENTS[family]), verify=True)
        expect("client")
        adapter.apply(rules(family, NODES[family]))
        expect("node")
        adapter.apply(rules(family, PODS[family], CLIENTS[family]))
        expect("client", "pod")
        adapter.apply(rules(family, *OVERLAPPING[family]))
        expect("client", "node", "pod")
        assert not adapter.apply(rules(family, *OVERLAPPING[family]), verify=True)
        adapter.apply(rules(family))
        expect()
        all_clients = "0.0.0.0/0" if family is Family.IPV4 else "::/0"
        adapter.apply(rules(family, all_clients))
        expect("client", "node", "pod")
        before = rules(family)
        adapter.apply(rule_set(of(Origin.ANYWHERE, before.redirects), landing=(NODE[family],)))
        expect("client", "node", "pod")
    assert adapter.cleanup()
    assert "KUBE" not in dump(network.node)


def meet(host: Host, address: str, protocol: Protocol) -> str:
    """The outcome for a client; a datagram that its own host drops is dropped like any other."""
    try:
        return attempt(host, address, protocol, 80, patience_s=0.3)
    except PermissionError:
        return SILENT


@pytest.mark.parametrize("family", Family)
def test_a_load_balancers_address_that_is_the_nodes_too(network: Network, adapter: Adapter, family: Family) -> None:
    """The node then speaks to it from that address, and others reach it without being forwarded."""
    length = "32" if family is Family.IPV4 else "128"
    network.node.ip(f"-{family.value} addr add {LB[family]}/{length} dev lo")
    with serving(network.node, Protocol.TCP, 7001, family), serving(network.node, Protocol.TCP, 80, family):
        adapter.apply(rules(family, NODES[family]), verify=True)
        assert attempt(network.node, LB[family], Protocol.TCP, 80, answer="pong 7001") == ANSWERED
        assert meet(network.client, LB[family], Protocol.TCP) == SILENT
        adapter.apply(rules(family, CLIENTS[family]))
        assert meet(network.node, LB[family], Protocol.TCP) == SILENT
        assert attempt(network.client, LB[family], Protocol.TCP, 80, answer="pong 7001") == ANSWERED


@pytest.mark.parametrize("family", Family)
def test_a_load_balancers_address_that_is_behind_the_node(network: Network, adapter: Adapter, family: Family) -> None:
    """Packets of clients that are not admitted are not forwarded to it either."""
    length, pod = ("32", "10.3.0.2") if family is Family.IPV4 else ("128", "fd00:3::2")
    network.pods[0].ip(f"-{family.value} addr add {LB[family]}/{length} dev lo")
    network.node.ip(f"-{family.value} route add {LB[family]}/{length} via {pod}")
    with ExitStack() as stack:
        for protocol in BOTH:
            stack.enter_context(serving(network.pods[0], protocol, 80, family))
            stack.enter_context(serving(network.node, protocol, 7001, family))
        adapter.apply(rules(family), verify=True)
        for protocol in BOTH:
            assert meet(network.client, LB[family], protocol) == SILENT
            assert meet(network.node, LB[family], protocol) == SILENT
        adapter.apply(RuleSet())
        for protocol in BOTH:
            assert attempt(network.client, LB[family], protocol, 80, answer="pong 80") == ANSWERED
            assert attempt(network.node, LB[family], protocol, 80, answer="pong 80") == ANSWERED


@pytest.mark.parametrize("family", Family)
def test_redirects_of_pods_are_restricted_too(network: Network, adapter: Adapter, family: Family) -> None:
    own = {destination(LB[family], Protocol.TCP): 7002}
    general = {destination(LB[family], Protocol.TCP): 7001}

    def made(*cidrs: str) -> RuleSet:
        allowed = {destination(LB[family], Protocol.TCP): cidrs}
        return rule_set(general, own=own, internal=(PODS[family],), allowed=allowed, landing=(NODE[family],))

    with serving(network.node, Protocol.TCP, 7001, family), serving(network.node, Protocol.TCP, 7002, family):
        adapter.apply(made(CLIENTS[family]), verify=True)
        assert attempt(network.client, LB[family], Protocol.TCP, 80, answer="pong 7001") == ANSWERED
        assert meet(network.pods[0], LB[family], Protocol.TCP) == SILENT
        assert meet(network.node, LB[family], Protocol.TCP) == SILENT
        adapter.apply(made(PODS[family], NODES[family]))
        assert attempt(network.pods[0], LB[family], Protocol.TCP, 80, answer="pong 7002") == ANSWERED
        assert attempt(network.node, LB[family], Protocol.TCP, 80, answer="pong 7002") == ANSWERED
        assert meet(network.client, LB[family], Protocol.TCP) == SILENT


def test_running_connections_stay(network: Network, adapter: Adapter) -> None:
    with network.node.listen(("0.0.0.0", 7001)) as listener:
        adapter.apply(rules(Family.IPV4, CLIENTS[Family.IPV4]), verify=True)
        with network.client.connect((LB[Family.IPV4], 80)) as client:
            server, _ = listener.accept()
            with server:
                server.settimeout(2)
                adapter.apply(rules(Family.IPV4, PODS[Family.IPV4]))
                client.sendall(b"still there?")
                assert server.recv(100) == b"still there?"
        assert meet(network.client, LB[Family.IPV4], Protocol.TCP) == SILENT
