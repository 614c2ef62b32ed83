"""preStop hooks: what the node itself sends to the hook's port of its pods is led to our socket, and nothing else."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from kubeproxy.model import Family, Protocol
from kubeproxy.netfilter.ruleset import RuleSet
from tests.netfilter.stage import ANSWERED, REFUSED, SILENT, Adapter, attempt, destination, dump, serving
from tests.netfilter.test_packets import NODE
from tests.support.lab import Host, Network

pytestmark = pytest.mark.netns

HOOK = 10258
SOCKET = 7001
LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}


def pod_of(family: Family) -> str:
    return (Network.pod_v4 if family is Family.IPV4 else Network.pod_v6)(0)


def hooks(*addresses: str, port: int = SOCKET) -> RuleSet:
    return RuleSet(hooks={destination(address, Protocol.TCP, HOOK) for address in addresses}, hook_port=port)


ALL = hooks(*map(pod_of, Family))


def meets(host: Host, address: str, port: int = HOOK, *, answer: str = f"pong {SOCKET}") -> str:
    return attempt(host, address, Protocol.TCP, port, answer=answer, patience_s=1)


@pytest.mark.parametrize("family", Family)
def test_only_the_node_itself_is_led_to_the_socket(network: Network, adapter: Adapter, family: Family) -> None:
    pod = pod_of(family)
    with ExitStack() as stack:
        stack.enter_context(serving(network.node, Protocol.TCP, SOCKET, family, address=LOOPBACK[family]))
        assert meets(network.node, pod) == REFUSED
        assert adapter.apply(ALL, verify=True)
        assert meets(network.node, pod) == ANSWERED
        assert meets(network.client, pod) == REFUSED, "the pod itself"
        assert meets(network.pods[0], NODE[family]) == REFUSED, "a pod is no node"
        assert meets(network.node, NODE[family]) == REFUSED, "no pod of an endpoint"
        assert meets(network.node, pod, HOOK + 1) == REFUSED, "another port"
        assert meets(network.node, LOOPBACK[family], SOCKET) == SILENT, "no rule has led it there"
        stack.enter_context(serving(network.pods[0], Protocol.TCP, HOOK, family))
        assert meets(network.client, pod, answer=f"pong {HOOK}") == ANSWERED
        assert not adapter.apply(ALL, verify=True)
        assert adapter.apply(hooks())
        assert meets(network.node, pod, answer=f"pong {HOOK}") == ANSWERED


@pytest.mark.parametrize("family", Family)
def test_hooks_wait_during_a_pause(network: Network, adapter: Adapter, family: Family) -> None:
    adapter.apply(ALL, verify=True)
    assert adapter.pause()
    try:
        assert meets(network.node, pod_of(family)) == SILENT
    except PermissionError:
        pytest.fail("a hook would end")
    adapter.apply(hooks(*map(pod_of, Family), port=7002))
    with serving(network.node, Protocol.TCP, 7002, family, address=LOOPBACK[family]):
        assert meets(network.node, pod_of(family), answer="pong 7002") == ANSWERED


def test_a_host_firewall_that_admits_redirected_packets_lets_hooks_pass(network: Network, adapter: Adapter) -> None:
    network.node.run(
        ["nft", "-f", "-"],
        input="""
        table inet strict {
            chain input { type filter hook input priority 0; policy drop; ct state established accept; iif lo accept; }
            chain output { type filter hook output priority 0; policy drop; ct state established accept
                           ct status dnat accept; oif lo accept; }
        }
        """,
    )
    adapter.apply(ALL, verify=True)
    for family in Family:
        with serving(network.node, Protocol.TCP, SOCKET, family, address=LOOPBACK[family]):
            assert meets(network.node, pod_of(family)) == ANSWERED


def test_nothing_is_left(network: Network, adapter: Adapter) -> None:
    adapter.apply(ALL, verify=True)
    assert str(HOOK) in dump(network.node)
    adapter.apply(RuleSet(), verify=True)
    assert str(HOOK) not in dump(network.node)
