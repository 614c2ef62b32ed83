"""Endpoints dialed from clients' addresses: answers find their way back, and cleanup leaves nothing."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from kubeproxy.dataplane.sockets.transparent_dial import bind_as
from kubeproxy.model import MARK, Family, Protocol
from kubeproxy.netfilter.routing import rules as routing_rules
from kubeproxy.netfilter.ruleset import RuleSet
from tests.netfilter.stage import (
    ANSWERED,
    IP_PKTINFO,
    REFUSED,
    SILENT,
    Adapter,
    KernelRefusal,
    attempt,
    destination,
    dump,
    from_where_asked,
    rule_set,
    settled,
)
from tests.netfilter.test_packets import NODE, VIP
from tests.support.lab import Host, Network

pytestmark = pytest.mark.netns

CLIENT = {Family.IPV4: "10.2.0.2", Family.IPV6: "fd00:2::2"}
POD = {Family.IPV4: "10.3.0.2", Family.IPV6: "fd00:3::2"}
INET = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
BOTH = (Protocol.TCP, Protocol.UDP)


def rules(*, transparent: bool = True) -> RuleSet:
    redirects = {destination(VIP[family], protocol): 7001 for family in Family for protocol in BOTH}
    made = rule_set(redirects, landing=tuple(NODE.values()))
    return replace(made, transparent=transparent)


def listening(host: Host, protocol: Protocol, port: int, family: Family) -> socket.socket:
    sock = host.make_socket(INET[family], socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM)
    if family is Family.IPV6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", port))
    sock.settimeout(0.1)
    if protocol is Protocol.TCP:
        sock.listen(64)
    return sock


def ask_as(node: Host, client: str, target: tuple[str, int], protocol: Protocol) -> bytes:
    """The answer of an endpoint to a client with a preserved address; or how it failed."""
    inet = socket.AF_INET6 if ":" in client else socket.AF_INET
    with node.make_socket(inet, socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.4)
        bind_as(sock, client)
        try:
            sock.connect(target)
            if protocol is Protocol.UDP:
                sock.send(b"ping")
            return sock.recv(100)
        except ConnectionRefusedError:
            return REFUSED.encode()
        except TimeoutError:
            return SILENT.encode()


@contextlib.contextmanager
def answering(sock: socket.socket, protocol: Protocol, answer: object) -> Iterator[None]:
    """A thread that answers each client with what `answer` (a callable) makes of its address."""
    assert callable(answer)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                if protocol is Protocol.TCP:
                    connection, peer = sock.accept()
                    with connection:
                        connection.sendall(answer(peer[0]))
                else:
                    _, ancillary, _, peer = sock.recvmsg(100, 100)
                    sock.sendmsg([answer(peer[0])], [from_where_asked(ancillary)], 0, peer)
            except TimeoutError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sock.close()


@contextlib.contextmanager
def service(network: Network) -> Iterator[None]:
    """A pod that answers with the address that it sees, and a proxy that dials it from its clients' addresses."""
    with ExitStack() as stack:
        for family in Family:
            for protocol in BOTH:
                endpoint = listening(network.pods[0], protocol, 8080, family)
                stack.enter_context(answering(endpoint, protocol, lambda peer: f"pong {peer}.".encode()))
                proxy = listening(network.node, protocol, 7001, family)

                def pass_on(peer: str, family: Family = family, protocol: Protocol = protocol) -> bytes:
                    return ask_as(network.node, peer, (POD[family], 8080), protocol)

                stack.enter_context(answering(proxy, protocol, pass_on))
        yield


def strict(node: Host, *, src_valid_mark: int) -> None:
    """Strict reverse path filtering."""
    for interface in ("all", "default", "to-client", "pod0"):
        node.sysctl(f"net.ipv4.conf.{interface}.rp_filter", 1)
        node.sysctl(f"net.ipv4.conf.{interface}.src_valid_mark", src_valid_mark)


def routes(node: Host) -> str:
    """All rules and tables of both families."""
    commands = (
        "-4 rule",
        "-6 rule",
        f"-4 route show table {routing_rules.TABLE}",
        f"-6 route show table {routing_rules.TABLE}",
    )
    found = [node.run(["ip", *command.split()], check=False).stdout for command in commands]
    return "\n".join(line.strip() for text in found for line in text.splitlines())


def bare(host: Host) -> list[str]:
    """A dump without legacy tables that are there and empty."""
    return [line for line in dump(host).splitlines() if not re.match(r"[*]|COMMIT|:[A-Z]+ ACCEPT", line)]


def expect_client_seen(network: Network) -> None:
    for family in Family:
        for protocol in BOTH:
            seen = f"pong {CLIENT[family]}."
            assert attempt(network.client, VIP[family], protocol, 80, answer=seen, patience_s=1) == ANSWERED


@pytest.mark.parametrize("src_valid_mark", [0, 1])
def test_the_endpoint_sees_the_client(network: Network, adapter: Adapter, src_valid_mark: int) -> None:
    strict(network.node, src_valid_mark=src_valid_mark)
    before, untouched = bare(network.node), routes(network.node)
    with service(network):
        assert adapter.apply(rules(), verify=True)
        assert not adapter.apply(rules(), verify=True)
        assert not adapter.apply(rules())
        expect_client_seen(network)
        for family in Family:
            for protocol in BOTH:
                # An endpoint that is not there: its refusal, which for UDP is an ICMP packet, is for us too.
                met = ask_as(network.node, CLIENT[family], (POD[family], 8081), protocol)
                assert met == REFUSED.encode()
        # Off again: endpoints see the node, and the kernel's routing is as it was.
        assert adapter.apply(rules(transparent=False))
        assert routes(network.node) == untouched
        assert not re.search(r"mark set|set-xmark", dump(network.node))
        assert adapter.apply(rules())
        expect_client_seen(network)
    assert adapter.cleanup()
    assert routes(network.node) == untouched
    assert bare(network.node) == before
    assert not adapter.cleanup()


def test_without_it_the_answer_is_lost(network: Network, adapter: Adapter) -> None:
    adapter.apply(rules(transparent=False), verify=True)
    with service(network):
        for family in Family:
            for protocol in BOTH:
                assert ask_as(network.node, CLIENT[family], (POD[family], 8080), protocol) == SILENT.encode()


def test_other_packets_keep_their_route_and_mark(network: Network, adapter: Adapter) -> None:
    """Forwarded connections, connections to the node, and its own, also with our bit already in their mark."""
    adapter.apply(rules(), verify=True)
    for family in Family:
        with (
            answering(listening(network.pods[0], Protocol.TCP, 8080, family), Protocol.TCP, lambda peer: peer.encode()),
            answering(listening(network.node, Protocol.TCP, 22, family), Protocol.TCP, lambda peer: peer.encode()),
        ):
            client = CLIENT[family]
            assert attempt(network.client, POD[family], Protocol.TCP, 8080, answer=client) == ANSWERED
            assert attempt(network.client, NODE[family], Protocol.TCP, 22, answer=client) == ANSWERED
            with network.node.make_socket(INET[family]) as sock:
                sock.settimeout(1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
                sock.connect((POD[family], 8080))
                assert sock.recv(100)


def test_other_bits_of_the_mark_stay(network: Network, adapter: Adapter) -> None:
    network.node.run(["nft", "-f", "-"], input=MARKS)
    adapter.apply(rules(), verify=True)
    with service(network):
        expect_client_seen(network)
    counted = network.node.run(["nft", "list", "table", "inet", "marks"]).stdout
    packets = [int(number) for number in re.findall(r"packets (\d+)", counted)]
    assert packets[0] > 0
    assert packets[1] == 0


MARKS = f"""
table inet marks {{
  chain first {{ type filter hook prerouting priority -160; iifname "pod0" meta mark set 0x42; }}
  chain input {{
    type filter hook input priority 0;
    iifname "pod0" meta l4proto {{ tcp, udp }} meta mark {MARK | 0x42:#x} counter
    iifname "pod0" meta l4proto {{ tcp, udp }} meta mark != {MARK | 0x42:#x} counter
  }}
}}
"""


DAMAGES = [
    "rule del pref 108",
    "-6 rule del pref 107",
    "-6 rule del pref 109",
    f"route flush table {routing_rules.TABLE}",
    f"-6 route flush table {routing_rules.TABLE}",
    f"route add 10.2.0.2/32 dev pod0 table {routing_rules.TABLE}",
    f"rule add pref 5 from 10.9.9.9 lookup 9 protocol {routing_rules.PROTOCOL}",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_verifying_repairs_the_routing(network: Network, adapter: Adapter, damage: str) -> None:
    network.node.ip("rule add pref 108 from 10.9.9.9 lookup 9")
    network.node.ip("-6 rule add pref 300 fwmark 0x1 lookup 9")
    adapter.apply(rules(), verify=True)
    whole = routes(network.node)
    assert "108:\tfrom 10.9.9.9 lookup 9" in whole
    network.node.ip(damage if damage != "rule del pref 108" else f"{damage} fwmark {MARK}/{MARK}")
    assert routes(network.node) != whole
    assert not adapter.apply(rules()), "what is believed to be there is not looked at"
    assert adapter.apply(rules(), verify=True)
    assert sorted(routes(network.node).splitlines()) == sorted(whole.splitlines())
    assert adapter.cleanup()
    assert "from 10.9.9.9 lookup 9" in routes(network.node)
    assert str(routing_rules.TABLE) not in routes(network.node)


@pytest.mark.parametrize("how", ["the rule gone", "everything flushed"])
def test_verifying_repairs_the_marking(
    network: Network, adapter: Adapter, environment: dict[str, str], how: str
) -> None:
    adapter.apply(rules(), verify=True)
    whole = settled(dump(network.node))
    commands = {
        ("nftables", "the rule gone"): ["nft", "flush", "chain", "inet", "kubeproxy", "divert"],
        ("nftables", "everything flushed"): ["nft", "flush", "ruleset"],
        ("iptables", "the rule gone"): ["ip6tables-legacy", "-t", "mangle", "-F", "KUBE-PROXY-DIVERT"],
        ("iptables", "everything flushed"): ["iptables-legacy", "-t", "mangle", "-F"],
    }
    network.node.run(commands[adapter.name, how], env=environment)
    assert adapter.apply(rules(), verify=True)
    assert settled(dump(network.node)) == whole


def test_an_earlier_runs_routing_goes_with_the_first_apply(
    network: Network, adapter: Adapter, environment: dict[str, str]
) -> None:
    before = routes(network.node)
    adapter.apply(rules(), verify=True)
    next_instance = Adapter(network.node, adapter.name, env=environment)
    assert next_instance.apply(rules(transparent=False), verify=True)
    assert routes(network.node) == before


def test_a_host_without_ipv6(network: Network, adapter: Adapter) -> None:
    network.node.sysctl("net.ipv6.conf.all.disable_ipv6", 1)
    made = rule_set({destination(VIP[Family.IPV4], Protocol.TCP): 7001})
    assert adapter.apply(replace(made, transparent=True), verify=True)
    assert not adapter.apply(replace(made, transparent=True), verify=True)
    assert adapter.cleanup()


def test_whether_this_host_supports_it(network: Network, adapter: Adapter, environment: dict[str, str]) -> None:
    before = (routes(network.node), bare(network.node))
    assert adapter.call({"do": "why_not", "feature": "TRANSPARENT"}) is None
    assert (routes(network.node), bare(network.node)) == before
    powerless = ["setpriv", "--inh-caps=-all", "--bounding-set=-net_admin,-net_raw"]
    without = Adapter(network.node, adapter.name, env=environment, prefix=powerless)
    assert "CAP_NET_ADMIN" in without.call({"do": "why_not", "feature": "TRANSPARENT"})
    with pytest.raises(KernelRefusal, match="CAP_NET_ADMIN"):
        without.apply(rules(), verify=True)


def test_cleaning_up_leaves_the_routing_of_the_adapter_in_use(network: Network, adapter: Adapter) -> None:
    adapter.apply(rules(), verify=True)
    whole = routes(network.node)
    adapter.call({"do": "cleanup_all", "keep": adapter.name})
    assert routes(network.node) == whole
    removed = adapter.call({"do": "cleanup_all", "keep": None})
    assert "routing rules and table of transparent connections" in removed
    assert str(routing_rules.TABLE) not in routes(network.node)
