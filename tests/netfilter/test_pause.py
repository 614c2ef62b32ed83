"""The pause between two proxies: clients wait instead of being refused, and nothing is left of it."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import replace

import pytest

from kubeproxy.model import Address, Family, Protocol, Target, Traffic
from kubeproxy.netfilter.nftables.declarations import PAUSE_SETS
from kubeproxy.netfilter.ruleset import RuleSet, Spread
from tests.netfilter.stage import (
    ANSWERED,
    REFUSED,
    SILENT,
    Adapter,
    attempt,
    destination,
    dump,
    node_port,
    rule_set,
    serving,
    settled,
)
from tests.netfilter.test_packets import NODE, VIP
from tests.support.lab import Host, Network

pytestmark = pytest.mark.netns

BOTH = (Protocol.TCP, Protocol.UDP)
NODE_PORT = 30080


def rules(port: int = 7001) -> RuleSet:
    """Each family's service address and node port, and one that is for this node and pods only."""
    all_clients = {
        it: port
        for family in Family
        for protocol in BOTH
        for it in (destination(VIP[family], protocol), node_port(family, protocol, NODE_PORT))
    }
    own = {destination(VIP[family], protocol, 81): port for family in Family for protocol in BOTH}
    return rule_set(
        all_clients,
        own=own,
        internal=("10.3.0.0/16", "fd00:3::/32"),
        node_addresses=(*NODE.values(), "127.0.0.1", "::1"),
        allowed={destination(VIP[family], Protocol.TCP): ("10.2.0.0/16", "fd00:2::/32") for family in Family},
        landing=tuple(NODE.values()),
    )


def without_empty_tables(text: str) -> str:
    """The rules, without the empty tables that are loaded with them and stay."""
    return "\n".join(line for line in settled(text).splitlines() if not re.match(r"[*]|COMMIT|:[A-Z]+ ACCEPT|$", line))


def meets(
    host: Host, family: Family, protocol: Protocol, port: int, *, on_node: bool = False, patience_s: float = 0.25
) -> str:
    try:
        return attempt(host, (NODE if on_node else VIP)[family], protocol, port, patience_s=patience_s)
    except PermissionError:  # the error of a sender on this host after a dropped datagram
        return SILENT


@pytest.mark.parametrize("family", Family)
def test_clients_wait_and_running_connections_go_on(network: Network, adapter: Adapter, family: Family) -> None:
    adapter.apply(rules(), verify=True)
    with serving(network.node, Protocol.TCP, 7001, family), serving(network.node, Protocol.UDP, 7001, family):
        clients = [host.connect((VIP[family], 80)) for host in (network.client, network.node)]
        assert all(client.recv(100) for client in clients)
        kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        session = network.client.make_socket(kind, socket.SOCK_DGRAM)
        session.settimeout(1)
        session.connect((VIP[family], 80))
        session.send(b"ping")
        assert session.recv(100)
        assert adapter.pause()
        assert not adapter.pause(), "it is paused already"
        for protocol in BOTH:
            for host in (network.client, network.node, network.pods[0]):
                assert meets(host, family, protocol, 80) == SILENT, (protocol, host)
                assert meets(host, family, protocol, NODE_PORT, on_node=True) == SILENT, (protocol, host)
            assert meets(network.node, family, protocol, 81) == SILENT
            assert meets(network.client, family, protocol, 22, on_node=True) == REFUSED, "not ours"
        for client in clients:
            client.settimeout(1)
            client.send(b"still here")
            client.shutdown(socket.SHUT_WR)
            client.close()
        session.send(b"still here")
        assert session.recv(100)
        session.close()
    # A client that connects now is answered by the next proxy, as soon as it has rules.
    with serving(network.node, Protocol.TCP, 7002, family):
        patient = network.client.make_socket(kind)
        patient.setblocking(False)
        with pytest.raises(BlockingIOError):
            patient.connect((VIP[family], 80))
        assert adapter.apply(rules(7002))
        patient.settimeout(5)
        assert patient.recv(100) == b"pong 7002"
        patient.close()
        assert meets(network.client, family, Protocol.TCP, NODE_PORT, on_node=True, patience_s=5) == ANSWERED
    fresh = settled(dump(network.node))
    assert "PAUSE" not in fresh
    assert not adapter.apply(rules(7002), verify=True)


def test_after_its_time_a_pause_has_no_effect(network: Network, adapter: Adapter) -> None:
    hosts = (network.client, network.node)
    network.node.sysctl("net.ipv4.icmp_ratelimit", 0)
    network.node.sysctl("net.ipv6.icmp.ratelimit", 0)
    before = {
        (host, family, protocol, port): meets(host, family, protocol, port, on_node=port != 80)
        for host in hosts
        for family in Family
        for protocol in BOTH
        for port in (80, NODE_PORT, 7001)
    }
    adapter.apply(rules(), verify=True)
    assert adapter.pause(1.0)
    assert meets(network.client, Family.IPV4, Protocol.TCP, NODE_PORT, on_node=True) == SILENT
    deadline = time.monotonic() + 10
    while meets(network.client, Family.IPV4, Protocol.TCP, NODE_PORT, on_node=True) == SILENT:
        assert time.monotonic() < deadline
    time.sleep(0.1)
    for (host, family, protocol, port), met in before.items():
        assert meets(host, family, protocol, port, on_node=port != 80) == met, (host, family, protocol, port)


def test_a_pause_of_another_run_ends_with_the_first_apply(
    network: Network, adapter: Adapter, environment: dict[str, str]
) -> None:
    before = without_empty_tables(dump(network.node))
    adapter.apply(rules(), verify=True)
    whole = without_empty_tables(dump(network.node))
    assert adapter.pause()
    next_instance = Adapter(network.node, adapter.name, env=environment)
    assert not next_instance.pause()
    assert next_instance.apply(rules(), verify=True)
    assert without_empty_tables(dump(network.node)) == whole
    assert next_instance.pause()
    assert next_instance.cleanup()
    assert without_empty_tables(dump(network.node)) == before


def test_stale_rules_are_paused_and_their_clients_wait(
    network: Network, adapter: Adapter, environment: dict[str, str]
) -> None:
    adapter.apply(rules(), verify=True)
    with serving(network.node, Protocol.TCP, 7001, Family.IPV4):  # of another process by now
        assert meets(network.client, Family.IPV4, Protocol.TCP, 80, patience_s=5) == ANSWERED
        next_instance = Adapter(network.node, adapter.name, env=environment)
        assert next_instance.call({"do": "pause_stale_rules", "for_s": 30.0}) == [adapter.name]
        assert meets(network.client, Family.IPV4, Protocol.TCP, 80) == SILENT
        assert next_instance.call({"do": "pause_stale_rules", "for_s": 30.0}) == []


def test_without_rules_there_is_no_pause(network: Network, adapter: Adapter) -> None:
    before = dump(network.node)
    assert not adapter.pause()
    assert dump(network.node) == before
    adapter.apply(RuleSet(), verify=True)
    before = dump(network.node)
    assert not adapter.pause()
    assert dump(network.node) == before


@pytest.mark.parametrize("family", Family)
def test_the_kernel_leads_clients_to_endpoints_during_a_pause_and_after_it(
    network: Network, environment: dict[str, str], family: Family
) -> None:
    """Only the redirects are paused; source ranges and affinity stay in force, too."""
    adapter = Adapter(network.node, "nftables", env=environment)
    pod = {Family.IPV4: Network.pod_v4, Family.IPV6: Network.pod_v6}[family](0)
    spread, redirected, ranged = (destination(VIP[family], Protocol.TCP, port) for port in (80, 81, 82))
    at_node = node_port(family, Protocol.TCP, NODE_PORT)
    targets = (Target(Address(pod), 8080),)
    whole = replace(
        rule_set(
            dict.fromkeys((spread, redirected, ranged, at_node), 7001),
            node_addresses=(NODE[family],),
            allowed={ranged: ("192.0.2.0/24", "2001:db8::/32")},
        ),
        spreads=dict.fromkeys(
            map(Traffic, (spread, ranged, at_node)), Spread("default/web:http", targets, targets, 60)
        ),
    )
    with serving(network.pods[0], Protocol.TCP, 8080, family):
        adapter.apply(whole, verify=True)
        assert adapter.pause(1.0)
        for over in (False, True):
            for host in (network.client, network.node):
                assert meets(host, family, Protocol.TCP, 80, patience_s=5) == ANSWERED
                assert meets(host, family, Protocol.TCP, NODE_PORT, on_node=True, patience_s=5) == ANSWERED
            assert meets(network.client, family, Protocol.TCP, 82) == SILENT
            if not over:
                assert meets(network.client, family, Protocol.TCP, 81) == SILENT
                deadline = time.monotonic() + 10
                while any("elements" in network.node.run([*LIST_SET, name]).stdout for name in PAUSE_SETS):
                    assert time.monotonic() < deadline
        next_instance = Adapter(network.node, adapter.name, env=environment)
        # The client stays where it was: slots, chains and clients are as they were.
        assert next_instance.apply(whole, verify=True)
        assert not next_instance.apply(whole, verify=True)
        assert meets(network.client, family, Protocol.TCP, 80, patience_s=5) == ANSWERED
        assert "paused4 drop" not in dump(network.node)


LIST_SET = ("nft", "list", "set", "inet", "kubeproxy")


def test_redirects_of_a_table_of_another_version_are_paused_too(network: Network, environment: dict[str, str]) -> None:
    adapter = Adapter(network.node, "nftables", env=environment)
    adapter.apply(rules(), verify=True)
    network.node.run(["nft", "add", "set", "inet", "kubeproxy", "novelty", "{ type ipv4_addr; }"])
    assert adapter.pause()
    for family in Family:
        assert meets(network.client, family, Protocol.TCP, 80) == SILENT
        assert meets(network.client, family, Protocol.TCP, NODE_PORT, on_node=True) == SILENT
    assert "novelty" not in dump(network.node)


def test_routing_of_answers_stays_for_running_connections(network: Network, adapter: Adapter) -> None:
    adapter.apply(replace(rules(), transparent=True), verify=True)
    assert adapter.pause()
    assert "0x00001000" in dump(network.node) or "0x1000" in dump(network.node)
    assert "27504" in network.node.run(["ip", "rule"]).stdout
