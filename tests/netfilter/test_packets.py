"""The fate of client packets, the same with both adapters."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from kubeproxy.model import Family, Origin, Protocol
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from tests.netfilter.stage import (
    ANSWERED,
    REFUSED,
    SILENT,
    Adapter,
    attempt,
    destination,
    rule_set,
    serving,
)
from tests.support.lab import Host, Network, PodLinks
from tests.support.traffic import of

pytestmark = pytest.mark.netns

VIP = {Family.IPV4: "10.96.7.7", Family.IPV6: "fd96::7"}
NODE = {Family.IPV4: "10.2.0.1", Family.IPV6: "fd00:2::1"}
POD_SIDE = {Family.IPV4: "10.3.0.1", Family.IPV6: "fd00:3:0::1"}


@pytest.mark.parametrize("links", PodLinks)
@pytest.mark.parametrize("family", Family)
def test_the_fate_of_a_first_packet(network: Network, adapter: Adapter, family: Family) -> None:
    vip, node = VIP[family], NODE[family]
    pod = network.pods[0]
    everywhere: tuple[Host, ...] = (network.client, network.node, pod)
    with ExitStack() as stack:
        for protocol in (Protocol.TCP, Protocol.UDP):
            for port in (7001, 7002, 7003):
                stack.enter_context(serving(network.node, protocol, port, family))
        both = (Protocol.TCP, Protocol.UDP)
        rules = rule_set(
            {
                destination(vip, protocol, port): 7001 + index
                for protocol in both
                for index, port in enumerate((80, 81, 82))
            },
            refused=frozenset(ProxyPort(protocol, 7002) for protocol in both),
            dropped=frozenset(ProxyPort(protocol, 7003) for protocol in both),
            landing=(node,),
        )
        assert adapter.apply(rules, verify=True)
        for protocol in both:
            for host in everywhere:
                case = (protocol, host)
                assert attempt(host, vip, protocol, 80, answer="pong 7001") == ANSWERED, case
                assert attempt(host, vip, protocol, 81) == REFUSED, case
                assert attempt(host, vip, protocol, 82, patience_s=0.2) == SILENT, case
                assert attempt(host, node, protocol, 7001, patience_s=0.2) == SILENT, case
                assert attempt(host, node, protocol, 7002, patience_s=0.2) == SILENT, case
        # Back to serving: one element less.
        assert adapter.apply(rule_set(of(Origin.ANYWHERE, rules.redirects), landing=(node,)))
        for protocol in both:
            assert attempt(network.client, vip, protocol, 81, answer="pong 7002") == ANSWERED
            assert attempt(network.client, vip, protocol, 82, answer="pong 7003") == ANSWERED
        # After a cleanup, no rule of the proxy affects a packet.
        assert adapter.cleanup()
        for protocol in both:
            assert attempt(network.client, node, protocol, 7001) == ANSWERED


def link_local(host: Host, interface: str) -> str:
    """The link-local address of an interface, once it is usable."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for line in host.ip(f"-6 -o addr show dev {interface} scope link -tentative").splitlines():
            return line.split()[3].partition("/")[0]
        time.sleep(0.05)
    raise AssertionError(f"{interface} has no link-local address")


@pytest.mark.parametrize("family", Family)
def test_clients_behind_an_interface_without_an_address(network: Network, adapter: Adapter, family: Family) -> None:
    pod, vip = network.pods[0], VIP[family]
    flag, prefix, own = ("-4", 32, "10.3.0.2") if family is Family.IPV4 else ("-6", 128, "fd00:3:0::2")
    # Calico and the cloud CNIs do this: a host route to the pod, and the pod's default route has an address that the
    # node's end of the cable does not have (IPv6: has by itself, but link-local).
    gateway = NODE[family] if family is Family.IPV4 else link_local(network.node, "pod0")
    network.node.ip(f"{flag} addr flush dev pod0 scope global")
    network.node.ip(f"{flag} route replace {own}/{prefix} dev pod0")
    pod.ip(f"{flag} addr flush dev eth0 scope global")
    pod.ip(f"{flag} addr add {own}/{prefix} dev eth0{' nodad' if family is Family.IPV6 else ''}")
    pod.ip(f"{flag} route replace default via {gateway} dev eth0 onlink")
    with ExitStack() as stack:
        for protocol in (Protocol.TCP, Protocol.UDP):
            stack.enter_context(serving(network.node, protocol, 7001, family))
        redirects = {destination(vip, protocol): 7001 for protocol in (Protocol.TCP, Protocol.UDP)}
        adapter.apply(rule_set(redirects), verify=True)
        if family is Family.IPV4:
            assert attempt(pod, vip, Protocol.TCP, 80, patience_s=0.4) == SILENT, (
                "the redirect finds no address: why landing exists"
            )
        adapter.apply(rule_set(redirects, landing=(NODE[family],)))
        for protocol in (Protocol.TCP, Protocol.UDP):
            assert attempt(pod, vip, protocol, 80) == ANSWERED
            assert attempt(network.node, vip, protocol, 80) == ANSWERED


@pytest.mark.parametrize("family", Family)
def test_proxy_ports_bound_to_one_address(network: Network, adapter: Adapter, family: Family) -> None:
    bound = POD_SIDE[family]
    with serving(network.node, Protocol.TCP, 7001, family, address=bound):
        adapter.apply(
            rule_set({destination(VIP[family], Protocol.TCP): 7001}, landing=(NODE[family],), bind=(bound,)),
            verify=True,
        )
        for host in (network.client, network.node, network.pods[0]):
            assert attempt(host, VIP[family], Protocol.TCP, 80) == ANSWERED


def test_changes_do_not_affect_running_connections(network: Network, adapter: Adapter) -> None:
    vip, other = VIP[Family.IPV4], "10.96.7.8"
    mine, its = destination(vip, Protocol.TCP), destination(other, Protocol.TCP)
    with network.node.listen(("0.0.0.0", 7001)) as listener:
        adapter.apply(rule_set({mine: 7001, its: 7002}, landing=(NODE[Family.IPV4],)), verify=True)
        with network.client.connect((vip, 80)) as client:
            server, _ = listener.accept()
            with server:
                server.settimeout(2)
                refused = frozenset({ProxyPort(Protocol.TCP, 7001)})
                for rules in (
                    rule_set({mine: 7001, its: 7003}),
                    rule_set({mine: 7001}, landing=(POD_SIDE[Family.IPV4],)),
                    rule_set({mine: 7001}, refused=refused),
                    rule_set({mine: 7001}, dropped=refused),
                    rule_set({mine: 7004}),
                    RuleSet(),
                ):
                    assert adapter.apply(rules)
                    client.sendall(b"still there?")
                    assert server.recv(100) == b"still there?"
                    server.sendall(b"yes")
                    assert client.recv(100) == b"yes"


def test_other_ports_of_the_node_are_not_ours(network: Network, adapter: Adapter) -> None:
    with serving(network.node, Protocol.TCP, 22, Family.IPV4):
        adapter.apply(rule_set({destination(VIP[Family.IPV4], Protocol.TCP): 7001}), verify=True)
        assert attempt(network.client, NODE[Family.IPV4], Protocol.TCP, 22) == ANSWERED
        # Same port number, other protocol: nothing listens, and the kernel refuses.
        assert attempt(network.client, NODE[Family.IPV4], Protocol.UDP, 7001) == REFUSED


def test_a_packet_of_no_connection_does_not_reach_a_proxy_port(network: Network, adapter: Adapter) -> None:
    with serving(network.node, Protocol.TCP, 7001, Family.IPV4):
        adapter.apply(rule_set({destination(VIP[Family.IPV4], Protocol.TCP): 7001}), verify=True)
        network.node.run(["nft", "-f", "-"], input=UNTRACKED)
        assert attempt(network.client, NODE[Family.IPV4], Protocol.TCP, 7001, patience_s=0.2) == SILENT


UNTRACKED = """
table ip raw_by_hand {
  chain prerouting { type filter hook prerouting priority -300; notrack; }
  chain output { type filter hook output priority -300; notrack; }
}
"""
