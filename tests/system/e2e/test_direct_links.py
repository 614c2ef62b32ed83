"""Clients and endpoints on one link, on the kernel path: an endpoint's answer must come back by the node."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Daemon, Host, join, write_manifest
from tests.system.e2e import address_echo
from tests.system.e2e.stage import until

pytestmark = pytest.mark.netns

PORT = 9090
AF = {4: socket.AF_INET, 6: socket.AF_INET6}
VIPS = {4: "10.96.0.10", 6: "fd00:96::10"}
NODE = {4: "10.9.0.1", 6: "fd00:9::1"}
HOSTS = ({4: "10.9.0.2", 6: "fd00:9::2"}, {4: "10.9.0.3", 6: "fd00:9::3"}, {4: "10.9.0.4", 6: "fd00:9::4"})
"""The first two are endpoints, the third is a client."""
MANY = 24
"""That both of two endpoints are asked all but certainly happens with so many connections."""


@dataclass
class Switched:
    """A node and three hosts that share a link."""

    node: Host
    hosts: list[Host]
    endpoints: list[subprocess.Popen[Any]]


@pytest.fixture(params=["bridge of the node", "network of the node"])
def switched(request: pytest.FixtureRequest) -> Iterator[Switched]:
    """Hosts on a bridge of the node, as pods; or hosts and node on a switch."""
    with ExitStack() as stack:
        node, hosts = stack.enter_context(Host("node")), [stack.enter_context(Host(f"host{at}")) for at in range(3)]
        if request.param == "bridge of the node":
            switch, link = node, "cni0"
            node.ip("link add cni0 type bridge", "link set cni0 up")
        else:
            switch, link = stack.enter_context(Host("switch")), "eth0"
            switch.ip("link add br0 type bridge", "link set br0 up")
            join(node, switch, left_name="eth0", right_name="to-node")
            switch.ip("link set to-node master br0")
        for at, host in enumerate(hosts):
            join(host, switch, left_name="eth0", right_name=f"port{at}")
            switch.ip(f"link set port{at} master {'cni0' if switch is node else 'br0'}")
            host.ip(f"addr add {HOSTS[at][4]}/24 dev eth0", f"addr add {HOSTS[at][6]}/64 dev eth0 nodad")
            host.ip(f"route add default via {NODE[4]}", f"route add ::/0 via {NODE[6]}")
        node.ip(f"addr add {NODE[4]}/24 dev {link}", f"addr add {NODE[6]}/64 dev {link} nodad")
        node.sysctl("net.ipv4.ip_forward", 1)
        node.sysctl("net.ipv6.conf.all.forwarding", 1)
        echo = [sys.executable, "-S", "-E", address_echo.__file__]
        endpoints = [hosts[at].popen([*echo, f"host-{at}", str(PORT)]) for at in (0, 1)]
        for host in hosts[:2]:
            listening = f":{PORT} "
            until(lambda: host.run(["ss", "-Hltn"]).stdout.count(listening) == len(VIPS), "an endpoint")  # noqa: B023
        yield Switched(node, hosts, endpoints)


def manifests(directory: Path, protocol: str) -> Path:
    """A Service of both families, with the two endpoints."""
    made: list[dict[str, object]] = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "clusterIP": VIPS[4],
                "clusterIPs": list(VIPS.values()),
                "ipFamilies": ["IPv4", "IPv6"],
                "ports": [{"name": "p", "port": 80, "targetPort": PORT, "protocol": protocol}],
            },
        }
    ]
    made += [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"web-{family}",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": f"IPv{family}",
            "ports": [{"name": "p", "port": PORT, "protocol": protocol}],
            "endpoints": [{"addresses": [host[family]], "nodeName": "here"} for host in HOSTS[:2]],
        }
        for family in VIPS
    ]
    directory.mkdir()
    write_manifest(directory / "web.yaml", "\n---\n".join(map(json.dumps, made)))
    return directory


def asked(client: Host, family: int) -> Counter[tuple[str, str]]:
    """Which hosts answer a client, and which client they see."""
    seen: Counter[tuple[str, str]] = Counter()
    for _ in range(MANY):
        with client.connect((VIPS[family], 80), timeout=5) as sock:
            name, address, _ = sock.recv(100).decode().split(" ")
            seen[name, address] += 1
    return seen


def start(stack: ExitStack, node: Host, directory: Path, protocol: str = "TCP") -> Daemon:
    options = ["--data-path=kernel", "--workers=1", "--hostname-override=here"]
    return stack.enter_context(Daemon(node, manifests=manifests(directory / "manifests", protocol), options=options))


def filters_frames(host: Host, on: bool) -> None:
    for name in ("iptables", "ip6tables"):
        host.sysctl(f"net.bridge.bridge-nf-call-{name}", int(on))


@pytest.mark.parametrize("family", VIPS)
def test_a_client_beside_its_endpoint(switched: Switched, family: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        filters_frames(switched.node, on=False)
        start(stack, switched.node, tmp_path)
        both = {("host-0", NODE[family]), ("host-1", NODE[family])}
        assert set(asked(switched.hosts[2], family)) == both
        assert set(asked(switched.hosts[0], family)) == both, "an endpoint, too, which may be led to itself"


@pytest.mark.parametrize("family", VIPS)
@pytest.mark.parametrize("seen", [False, True], ids=["frames are not seen", "frames are seen"])
def test_a_client_beside_a_dead_endpoint(switched: Switched, family: int, seen: bool, tmp_path: Path) -> None:
    """What is sent again for it is masqueraded likewise."""
    with ExitStack() as stack:
        filters_frames(switched.node, on=seen)
        daemon = start(stack, switched.node, tmp_path)
        until(lambda: "rescue of failed connections working=true" in daemon.log(), "the rescue works")
        assert len(asked(switched.hosts[2], family)) == 2
        switched.endpoints[0].kill()
        switched.endpoints[0].wait()
        got: Counter[tuple[str, int]] = Counter()
        for _ in range(MANY):
            with switched.hosts[2].connect((VIPS[family], 80), timeout=20) as sock:
                name, *_ = sock.recv(100).decode().split(" ")
                got[name, retransmissions(sock)] += 1
        assert set(got) == {("host-1", 0)}, "no client has had to send its first packet again"
        assert " reason=refused" in daemon.log()


def retransmissions(sock: socket.socket) -> int:
    """Of a connection's packets so far: tcpi_total_retrans of struct tcp_info (linux/tcp.h)."""
    number: int = struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]
    return number


@pytest.mark.parametrize("switched", ["bridge of the node"], indirect=True)
def test_where_netfilter_sees_the_frames_the_client_keeps_its_address(switched: Switched, tmp_path: Path) -> None:
    """As with kube-proxy; and it is noticed when the setting changes."""
    with ExitStack() as stack:
        filters_frames(switched.node, on=True)
        start(stack, switched.node, tmp_path)
        for family, client in HOSTS[2].items():
            assert set(asked(switched.hosts[2], family)) == {("host-0", client), ("host-1", client)}
        filters_frames(switched.node, on=False)
        command = ["nft", "list", "chain", "inet", "kubeproxy", "postrouting"]
        until(lambda: "jump masquerade_links" in switched.node.run(command).stdout, "rules for the bridge")
        for family in VIPS:
            assert {seen for _, seen in asked(switched.hosts[2], family)} == {NODE[family]}


@pytest.mark.parametrize("switched", ["network of the node"], indirect=True)
def test_a_pod_with_an_address_of_the_network_keeps_it(switched: Switched, tmp_path: Path) -> None:
    """As with the network plugins of cloud providers: the node answers for its pods there, so answers come to it."""
    address = "10.9.0.40"
    with ExitStack() as stack:
        pod = stack.enter_context(Host("pod"))
        join(switched.node, pod, left_name="pod", right_name="eth0")
        switched.node.ip("addr add 169.254.1.1/32 dev pod scope link", f"route add {address}/32 dev pod")
        switched.node.sysctl("net.ipv4.conf.eth0.proxy_arp", 1)
        switched.node.sysctl("net.ipv4.neigh.eth0.proxy_delay", 0)
        pod.ip(f"addr add {address}/32 dev eth0", "route add 169.254.1.1 dev eth0 scope link")
        pod.ip("route add default via 169.254.1.1")
        start(stack, switched.node, tmp_path)
        assert set(asked(pod, 4)) == {("host-0", address), ("host-1", address)}
        assert {seen for _, seen in asked(switched.hosts[2], 4)} == {NODE[4]}


@pytest.mark.parametrize("switched", ["bridge of the node"], indirect=True)
def test_what_others_translate_is_left_alone(switched: Switched, tmp_path: Path) -> None:
    with ExitStack() as stack:
        filters_frames(switched.node, on=False)
        start(stack, switched.node, tmp_path)
        rule = f"ip daddr 10.99.0.1 tcp dport 80 dnat to {HOSTS[0][4]}:{PORT}"
        hook = "type nat hook prerouting priority -90;"
        switched.node.run(["nft", f"add table ip other; add chain ip other c {{ {hook} }}; add rule ip other c {rule}"])
        seen = stack.enter_context(
            switched.hosts[0].popen(
                [sys.executable, "-c", SNIFF], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        assert seen.stdout is not None
        assert seen.stdout.readline() == "ready\n"
        with switched.hosts[2].make_socket() as sock:
            sock.setblocking(False)
            sock.connect_ex(("10.99.0.1", 80))
            assert seen.stdout.readline() == f"{HOSTS[2][4]}\n"
        seen.kill()


SNIFF = f"""
import socket
sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
print("ready", flush=True)
while True:
    packet, (_, _, kind, *_) = sock.recvfrom(100)
    if kind == 0 and packet[9] == 6 and int.from_bytes(packet[22:24]) == {PORT}:
        print(socket.inet_ntoa(packet[12:16]), flush=True)
"""
"""Prints the senders of TCP packets to the endpoint."""


@pytest.mark.parametrize("family", VIPS)
def test_datagrams_of_a_client_beside_a_dead_endpoint(switched: Switched, family: int, tmp_path: Path) -> None:
    """What is sent again makes a flow for all that the client sends, so it is masqueraded, too."""
    with ExitStack() as stack:
        filters_frames(switched.node, on=False)
        daemon = start(stack, switched.node, tmp_path, protocol="UDP")
        until(lambda: "rescue of failed connections working=true" in daemon.log(), "the rescue works")
        sockets = (switched.hosts[2].make_socket(AF[family], socket.SOCK_DGRAM) for _ in range(MANY))
        clients = [stack.enter_context(sock) for sock in sockets]
        for client in clients:
            client.connect((VIPS[family], 80))
            assert answered(client)
        switched.endpoints[0].kill()
        switched.endpoints[0].wait()
        for client in clients:
            until(lambda: answered(client), "an answer", within_s=10)  # noqa: B023
        assert " reason=unreachable" in daemon.log()


def answered(client: socket.socket) -> bool:
    """Whether a datagram is answered."""
    client.settimeout(0.5)
    try:
        client.send(b"x")
        return client.recv(10) == b"x"
    except OSError:
        return False
