"""Rules that outlive their proxy lead no client to a socket of another program."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kubeproxy.dataplane.sockets.transparent_dial import IP_TRANSPARENT, IPV6_TRANSPARENT
from kubeproxy.model import MARK, Family, Protocol
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from tests.netfilter.routing.test_client_address import BOTH, expect_client_seen, listening, service, strict
from tests.netfilter.stage import (
    ANSWERED,
    REFUSED,
    SILENT,
    Adapter,
    attempt,
    attempts,
    destination,
    dump,
    node_port,
    rule_set,
    serving,
    settled,
)
from tests.netfilter.test_packets import NODE, VIP
from tests.support.lab import Daemon, Network, service_manifest, write_manifest

pytestmark = pytest.mark.netns


def rules(port: int = 7001) -> RuleSet:
    made = rule_set(
        {
            it: port
            for family in Family
            for protocol in BOTH
            for it in (destination(VIP[family], protocol), node_port(family, protocol, 30080))
        },
        node_addresses=tuple(NODE.values()),
        landing=tuple(NODE.values()),
    )
    return replace(made, guard_sockets=True)


@contextlib.contextmanager
def transparent() -> Iterator[None]:
    """Within this, servers have sockets with IP_TRANSPARENT."""
    bind = socket.socket.bind

    def bind_marked(self: socket.socket, address: object) -> None:
        if self.family == socket.AF_INET6:
            self.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
        else:
            self.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
        bind(self, address)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "bind", bind_marked)
        yield


@pytest.mark.parametrize("protocol", BOTH)
@pytest.mark.parametrize("family", Family)
def test_a_listener_of_ours_is_reached_and_no_other(
    network: Network, adapter: Adapter, family: Family, protocol: Protocol
) -> None:
    adapter.apply(rules(), verify=True)
    assert not adapter.apply(rules(), verify=True)
    hosts = (network.client, network.node, network.pods[0])
    ways = ((VIP[family], 80), (NODE[family], 30080))

    def met(patience_s: float) -> set[str]:
        return attempts(((host, way[0], protocol, way[1]) for host in hosts for way in ways), patience_s=patience_s)

    assert met(0.3) == {SILENT}, "nothing listens: the next proxy will answer"
    with serving(network.node, protocol, 7001, family):
        assert met(0.3) == {SILENT}, "not for them"
        assert attempt(network.client, NODE[family], protocol, 7001, patience_s=0.3) == SILENT
    with transparent(), serving(network.node, protocol, 7001, family):
        assert met(5.0) == {ANSWERED}
        assert attempt(network.client, NODE[family], protocol, 7001, patience_s=0.3) == SILENT
    with serving(network.node, protocol, 7001, family, address=NODE[family]):
        assert attempt(network.client, VIP[family], protocol, 80, patience_s=0.3) == SILENT
    with transparent(), serving(network.node, protocol, 7001, family, address=NODE[family]):
        assert attempt(network.client, VIP[family], protocol, 80) == ANSWERED


def test_packets_without_our_redirect_are_not_checked(network: Network, adapter: Adapter) -> None:
    before = settled(dump(network.node))
    adapter.apply(rules(), verify=True)
    # Another program's redirect to a port of its own, and its listener.
    network.node.run(["nft", "-f", "-"], input=FOREIGN)
    with serving(network.node, Protocol.TCP, 8080, Family.IPV4):
        assert attempt(network.client, "10.96.9.9", Protocol.TCP, 80) == ANSWERED
        assert attempt(network.client, NODE[Family.IPV4], Protocol.TCP, 8080) == ANSWERED
    # Without the guard everything is as it was before there was one.
    assert adapter.apply(replace(rules(), guard_sockets=False))
    with serving(network.node, Protocol.TCP, 7001, Family.IPV4):
        assert attempt(network.client, VIP[Family.IPV4], Protocol.TCP, 80) == ANSWERED
    assert adapter.apply(rules())
    assert adapter.cleanup()
    network.node.run(["nft", "delete", "table", "ip", "theirs"])
    assert "KUBE" not in dump(network.node)
    assert "inet kubeproxy" not in settled(dump(network.node)), before


FOREIGN = """
table ip theirs {
  chain pre { type nat hook prerouting priority dstnat; ip daddr 10.96.9.9 tcp dport 80 redirect to :8080; }
}
"""


def test_refused_and_dropped_stay_so(network: Network, adapter: Adapter) -> None:
    port = ProxyPort(Protocol.TCP, 7001)
    with transparent(), serving(network.node, Protocol.TCP, 7001, Family.IPV4):
        adapter.apply(replace(rules(), refused={port}), verify=True)
        assert attempt(network.client, VIP[Family.IPV4], Protocol.TCP, 80) == REFUSED
        adapter.apply(replace(rules(), dropped={port}))
        assert attempt(network.client, VIP[Family.IPV4], Protocol.TCP, 80, patience_s=0.3) == SILENT
        adapter.apply(rules())
        assert attempt(network.client, VIP[Family.IPV4], Protocol.TCP, 80) == ANSWERED


@pytest.mark.parametrize("src_valid_mark", [0, 1])
def test_transparent_listeners_and_transparent_dials_together(
    network: Network, adapter: Adapter, src_valid_mark: int
) -> None:
    """Strict reverse paths, and a policy route for what carries the bit that answers of endpoints get."""
    strict(network.node, src_valid_mark=src_valid_mark)
    network.node.run(["nft", "-f", "-"], input=COUNTERS)
    both = replace(rules(), transparent=True)
    adapter.apply(both, verify=True)
    with transparent(), service(network):
        expect_client_seen(network)
    counted = network.node.run(["nft", "list", "table", "inet", "counted"]).stdout
    answers, clients = (int(line.split()[-3]) for line in counted.splitlines() if "packets" in line)
    assert answers > 0, "answers of endpoints are marked"
    assert clients == 0, "packets of clients are not, whatever socket they are for"


COUNTERS = f"""
table inet counted {{
  chain input {{
    type filter hook input priority 10;
    iifname "pod0" meta l4proto {{ tcp, udp }} meta mark & {MARK:#x} != 0 counter
    iifname != "pod0" meta l4proto {{ tcp, udp }} meta mark & {MARK:#x} != 0 counter
  }}
}}
"""


@pytest.mark.parametrize("family", Family)
def test_packets_of_clients_without_preserved_address_keep_their_route(
    network: Network, adapter: Adapter, family: Family
) -> None:
    """The one case in which a client's packets are, where marks are given, already addressed as our accepted socket is:
    the service has its proxy port's number, on an address of this node."""
    network.node.run(["nft", "-f", "-"], input=COUNTERS)
    own = rule_set({destination(NODE[family], Protocol.TCP, 7001): 7001}, landing=tuple(NODE.values()))
    adapter.apply(replace(own, guard_sockets=True, transparent=True), verify=True)
    with transparent(), serving(network.node, Protocol.TCP, 7001, family):
        with network.client.connect((NODE[family], 7001)) as client:
            assert client.recv(100)
            client.send(b"more, for the accepted socket")
        assert attempt(network.client, NODE[family], Protocol.TCP, 7001) == ANSWERED
    counted = network.node.run(["nft", "list", "table", "inet", "counted"]).stdout
    assert [int(line.split()[-3]) for line in counted.splitlines() if "packets" in line] == [0, 0]


def test_a_sockets_connections_outlive_its_listener(network: Network, adapter: Adapter) -> None:
    adapter.apply(rules(), verify=True)
    with transparent():
        proxy = listening(network.node, Protocol.TCP, 7001, Family.IPV4)
    client = network.client.connect((VIP[Family.IPV4], 80))
    proxy.settimeout(5)
    accepted, _ = proxy.accept()
    proxy.close()
    client.send(b"ping")
    assert accepted.recv(100) == b"ping"
    accepted.send(b"pong")
    assert client.recv(100) == b"pong"
    accepted.close()
    client.close()


def test_whether_this_host_supports_it(network: Network, adapter: Adapter, environment: dict[str, str]) -> None:
    before = dump(network.node)
    assert adapter.call({"do": "why_not", "feature": "SOCKET_GUARD"}) is None
    adapter.apply(RuleSet(), verify=True)
    assert adapter.call({"do": "why_not", "feature": "SOCKET_GUARD"}) is None
    assert not adapter.apply(RuleSet(), verify=True)
    adapter.cleanup()
    assert "KUBE-PROXY-SOCKETS" not in before
    powerless = ["setpriv", "--inh-caps=-all", "--bounding-set=-net_admin,-net_raw"]
    without = Adapter(network.node, adapter.name, env=environment, prefix=powerless)
    assert "CAP_NET_ADMIN" in without.call({"do": "why_not", "feature": "SOCKET_GUARD"})


@pytest.mark.parametrize("netfilter", ["nftables", "iptables"])
def test_rules_of_a_killed_daemon_lead_no_client_to_a_new_owner_of_its_port(
    network: Network, tmp_path: Path, netfilter: str
) -> None:
    vip = VIP[Family.IPV4]
    manifest = service_manifest("web", cluster_ip=vip, ports={"http": (80, 8080)}, endpoints=[network.pod_v4(0)])
    write_manifest(tmp_path / "web.yaml", manifest)
    pod = partial(serving, network.pods[0], Protocol.TCP, 8080, Family.IPV4)
    with pod(), Daemon(network.node, manifests=tmp_path, netfilter=netfilter) as daemon:
        assert attempt(network.client, vip, Protocol.TCP, 80) == ANSWERED
        found = re.search(r"(?:tcp \. 80 : |to-destination 10\.2\.0\.1:)(\d+)", dump(network.node))
        assert found is not None
        os.killpg(daemon.process.pid, signal.SIGKILL)
        daemon.process.wait()
        with serving(network.node, Protocol.TCP, int(found[1]), Family.IPV4):
            assert attempt(network.client, vip, Protocol.TCP, 80, patience_s=0.4) == SILENT
    with pod(), Daemon(network.node, manifests=tmp_path, netfilter=netfilter):
        assert attempt(network.client, vip, Protocol.TCP, 80) == ANSWERED
