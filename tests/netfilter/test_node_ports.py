"""Node ports, addresses of the node itself, and redirects of pods: the same with both adapters."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from kubeproxy.model import Destination, Family, Protocol
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from tests.netfilter.stage import (
    ANSWERED,
    REFUSED,
    Adapter,
    attempt,
    destination,
    node_port,
    rule_set,
    serving,
)
from tests.netfilter.test_packets import NODE, POD_SIDE, VIP
from tests.support.lab import Host, Network

pytestmark = pytest.mark.netns

BOTH = (Protocol.TCP, Protocol.UDP)
LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
FAR = {Family.IPV4: "198.51.100.7", Family.IPV6: "2001:db8:7::7"}
PODS = {Family.IPV4: "10.3.0.0/16", Family.IPV6: "fd00:3::/32"}
NODE_PORT = 30080


def addresses(family: Family) -> tuple[str, ...]:
    return (NODE[family], POD_SIDE[family], LOOPBACK[family])


def everything(family: Family) -> dict[Destination, int]:
    """A service with all the addresses that one can have."""
    return {
        key: 7001
        for protocol in BOTH
        for key in (
            destination(VIP[family], protocol),
            destination(FAR[family], protocol),
            destination(NODE[family], protocol, 8080),
            node_port(family, protocol, NODE_PORT),
        )
    }


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("landing", [True, False])
def test_every_address_of_a_service(network: Network, adapter: Adapter, family: Family, landing: bool) -> None:
    node, pod_side, home = addresses(family)
    rules = rule_set(everything(family), node_addresses=addresses(family), landing=(NODE[family],) if landing else ())
    outside: tuple[Host, ...] = (network.client, network.pods[0])
    with ExitStack() as stack:
        for protocol in BOTH:
            stack.enter_context(serving(network.node, protocol, 7001, family))
        adapter.apply(rules, verify=True)
        assert not adapter.apply(rules, verify=True)
        reached = [(VIP[family], 80), (FAR[family], 80), (node, 8080), (node, NODE_PORT), (pod_side, NODE_PORT)]
        for protocol in BOTH:
            for host in (*outside, network.node):
                for address, port in reached:
                    assert attempt(host, address, protocol, port) == ANSWERED, (host, protocol, address, port)
            assert attempt(network.node, home, protocol, NODE_PORT) == ANSWERED
            # Only what was asked for: neither the external address on node ports, nor the node port at a service IP.
            assert attempt(network.client, pod_side, protocol, 8080) == REFUSED
            assert attempt(network.node, home, protocol, 8080) == REFUSED
            assert attempt(network.client, node, protocol, NODE_PORT + 1) == REFUSED
        adapter.apply(rule_set({}))
        for protocol in BOTH:
            for address in (node, home):
                assert attempt(network.node, address, protocol, NODE_PORT) == REFUSED
            assert attempt(network.client, node, protocol, NODE_PORT) == REFUSED


@pytest.mark.parametrize("family", Family)
def test_node_ports_on_chosen_addresses_only(network: Network, adapter: Adapter, family: Family) -> None:
    redirects = {node_port(family, protocol, NODE_PORT): 7001 for protocol in BOTH}
    with ExitStack() as stack:
        for protocol in BOTH:
            stack.enter_context(serving(network.node, protocol, 7001, family))
        adapter.apply(rule_set(redirects, node_addresses=(POD_SIDE[family],), landing=(NODE[family],)), verify=True)
        for protocol in BOTH:
            for host in (network.client, network.node, network.pods[0]):
                assert attempt(host, POD_SIDE[family], protocol, NODE_PORT) == ANSWERED
                assert attempt(host, NODE[family], protocol, NODE_PORT) == REFUSED
            assert attempt(network.node, LOOPBACK[family], protocol, NODE_PORT) == REFUSED
        # An address more is an element, or a rule, more.
        adapter.apply(rule_set(redirects, node_addresses=(POD_SIDE[family], NODE[family]), landing=(NODE[family],)))
        assert attempt(network.client, NODE[family], Protocol.TCP, NODE_PORT) == ANSWERED


def test_loopback_addresses_do_not_serve_other_hosts(network: Network, adapter: Adapter) -> None:
    # A neighbour that routes 127.0.0.1 to us: a martian, which must not become an ordinary packet by the redirect.
    network.client.sysctl("net.ipv4.conf.eth0.route_localnet", 1)
    network.client.ip("addr del 127.0.0.1/8 dev lo", "route add 127.0.0.1/32 via 10.2.0.1 src 10.2.0.2")
    network.client.ip("rule add pref 5 lookup main")
    network.client.ip("rule del pref 0")
    network.client.ip("rule add pref 6 lookup local")
    rules = rule_set(
        {node_port(Family.IPV4, Protocol.UDP, NODE_PORT): 7001},
        node_addresses=("10.2.0.1", "127.0.0.1"),
        landing=("10.2.0.1",),
    )
    adapter.apply(rules, verify=True)
    with (
        network.client.make_socket(kind=socket.SOCK_DGRAM) as client,
        network.node.make_socket(kind=socket.SOCK_DGRAM) as proxy,
    ):
        proxy.bind(("0.0.0.0", 7001))
        proxy.settimeout(2)
        client.sendto(b"in by the window", ("127.0.0.1", NODE_PORT))
        client.sendto(b"in by the door", ("10.2.0.1", NODE_PORT))
        assert proxy.recv(100) == b"in by the door"
    with serving(network.node, Protocol.UDP, 7001, Family.IPV4):
        assert attempt(network.node, "127.0.0.1", Protocol.UDP, NODE_PORT) == ANSWERED


@pytest.mark.parametrize("family", Family)
def test_bound_to_one_address(network: Network, adapter: Adapter, family: Family) -> None:
    bound = POD_SIDE[family]
    redirects = {node_port(family, Protocol.TCP, NODE_PORT): 7001}
    with serving(network.node, Protocol.TCP, 7001, family, address=bound):
        adapter.apply(rule_set(redirects, node_addresses=addresses(family), bind=(bound,)), verify=True)
        for host in (network.client, network.node, network.pods[0]):
            assert attempt(host, NODE[family], Protocol.TCP, NODE_PORT) == ANSWERED
        assert attempt(network.node, LOOPBACK[family], Protocol.TCP, NODE_PORT) == ANSWERED


@pytest.mark.parametrize("family", Family)
def test_redirects_of_pods(network: Network, adapter: Adapter, family: Family) -> None:
    node = NODE[family]
    general = {
        key: 7001
        for protocol in BOTH
        for key in (destination(VIP[family], protocol), node_port(family, protocol, NODE_PORT))
    }
    own = dict.fromkeys(general, 7002) | {destination(VIP[family], protocol, 81): 7002 for protocol in BOTH}

    def expect(host: Host, answer: str) -> None:
        for protocol in BOTH:
            assert attempt(host, VIP[family], protocol, 80, answer=answer) == ANSWERED
            assert attempt(host, node, protocol, NODE_PORT, answer=answer) == ANSWERED

    with ExitStack() as stack:
        for protocol in BOTH:
            for port in (7001, 7002):
                stack.enter_context(serving(network.node, protocol, port, family))
        rules = rule_set(general, own=own, internal=(PODS[family],), node_addresses=addresses(family), landing=(node,))
        adapter.apply(rules, verify=True)
        assert not adapter.apply(rules, verify=True)
        expect(network.client, "pong 7001")
        expect(network.node, "pong 7002")
        expect(network.pods[0], "pong 7002")
        assert attempt(network.node, VIP[family], Protocol.TCP, 81, answer="pong 7002") == ANSWERED
        assert attempt(network.pods[0], VIP[family], Protocol.TCP, 81, answer="pong 7002") == ANSWERED
        assert attempt(network.client, VIP[family], Protocol.TCP, 81, patience_s=0.2) != ANSWERED
        # Where the pods' addresses are not known, only the node itself is known to be of the cluster.
        adapter.apply(rule_set(general, own=own, node_addresses=addresses(family), landing=(node,)))
        expect(network.node, "pong 7002")
        expect(network.pods[0], "pong 7001")
        adapter.apply(rule_set(general, node_addresses=addresses(family), landing=(node,)))
        expect(network.node, "pong 7001")


@pytest.mark.parametrize("family", Family)
def test_a_proxy_port_with_the_services_own_number(network: Network, adapter: Adapter, family: Family) -> None:
    # An external address that is the node's own, on the very port that the data plane happened to get: the redirect
    # changes nothing, and so the packet does not look redirected.
    same = {destination(NODE[family], protocol, 7001): 7001 for protocol in BOTH}
    ports = frozenset(ProxyPort(protocol, 7001) for protocol in BOTH)
    with ExitStack() as stack:
        for protocol in BOTH:
            stack.enter_context(serving(network.node, protocol, 7001, family))
        for refused, met in ((frozenset[ProxyPort](), ANSWERED), (ports, REFUSED)):
            adapter.apply(rule_set(same, refused=refused, landing=(NODE[family],)), verify=True)
            for protocol in BOTH:
                assert attempt(network.client, NODE[family], protocol, 7001) == met
                assert attempt(network.node, NODE[family], protocol, 7001) == met


def test_thousands_of_node_ports(network: Network) -> None:
    adapter = Adapter(network.node, "nftables")
    redirects = {
        key: 10000 + i
        for i in range(10000)
        for key in (
            destination(f"10.{100 + (i >> 8)}.{i & 255}.1", Protocol.TCP),
            node_port(Family.IPV4, Protocol.TCP, 20000 + i),
        )
    }
    full = rule_set(redirects, node_addresses=("10.2.0.1", "127.0.0.1"))
    times = {}
    adapter.apply(full, verify=True)
    times["applied"] = adapter.ms
    adapter.apply(rule_set(dict(list(redirects.items())[2:]), node_addresses=("10.2.0.1", "127.0.0.1")))
    times["one removed"] = adapter.ms
    adapter.apply(full)
    times["one added"] = adapter.ms
    assert not adapter.apply(full, verify=True)
    times["verified"] = adapter.ms
    print({what: f"{ms:.1f} ms" for what, ms in times.items()})
    assert adapter.apply(RuleSet())
    assert adapter.cleanup()
