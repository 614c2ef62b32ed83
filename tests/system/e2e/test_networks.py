"""Networks of clusters beyond one node: endpoints behind another one, tunnels, small packets, other programs' rules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import pytest

from kubeproxy.model import Family, Protocol
from tests.netfilter.stage import ANSWERED, attempt, serving
from tests.support.lab import Host, Network, join
from tests.support.lab.node import NODE_V4, NODE_V6
from tests.system.e2e import backend
from tests.system.e2e.conftest import PATHS
from tests.system.e2e.stage import (
    KERNEL,
    QUICK,
    TARGET,
    VIP,
    Stage,
    ask,
    ask_often,
    endpoints,
    exchange,
    make_stage,
    service,
    until,
)

pytestmark = pytest.mark.netns

OTHER_NODE, OTHER_POD = "10.5.0.2", "10.4.0.2"
BYTES = 2_000_000
DNS = 53


@pytest.fixture(params=["nftables", KERNEL])
def path(request: pytest.FixtureRequest) -> str:
    """Each data path."""
    return str(request.param)


@contextmanager
def another_node(stage: Stage, *, tunnel: bool, mtu: int = 1500) -> Iterator[Host]:
    """A pod on another node, which is reached as with flannel's host-gw, or by VXLAN."""
    node = stage.node
    with Host("node-2") as other, Host("pod-b") as pod:
        join(node, other, left_name="to-node-2", right_name="eth0")
        join(other, pod, left_name="pod", right_name="eth0")
        node.ip("addr add 10.5.0.1/24 dev to-node-2")
        other.ip(f"addr add {OTHER_NODE}/24 dev eth0", "addr add 10.4.0.1/24 dev pod")
        pod.ip(f"addr add {OTHER_POD}/24 dev eth0", "route add default via 10.4.0.1", f"link set eth0 mtu {mtu}")
        other.ip(f"link set pod mtu {mtu}", "route add 10.2.0.0/24 via 10.5.0.1")
        other.sysctl("net.ipv4.ip_forward", 1)
        if tunnel:
            for host, link, mine, its, inner in (
                (node, "to-node-2", "10.5.0.1", OTHER_NODE, "10.6.0.1"),
                (other, "eth0", OTHER_NODE, "10.5.0.1", "10.6.0.2"),
            ):
                host.ip(
                    f"link add tunnel type vxlan id 7 dstport 4789 dev {link} local {mine} remote {its}",
                    f"addr add {inner}/24 dev tunnel",
                    f"link set tunnel mtu {min(mtu, 1450)} up",
                )
            node.ip("route add 10.4.0.0/24 via 10.6.0.2")
            other.ip("route add 10.3.0.0/16 via 10.6.0.1")
        else:
            node.ip(f"route add 10.4.0.0/24 via {OTHER_NODE}", f"link set to-node-2 mtu {mtu}")
            other.ip("route add 10.3.0.0/16 via 10.5.0.1", f"link set eth0 mtu {mtu}")
        pod.popen([sys.executable, "-S", "-E", backend.__file__, "pod-b", OTHER_POD, str(TARGET)])
        try:
            until(lambda: _name(node, (OTHER_POD, TARGET)) == "pod-b", "the other node's pod answers")
            yield pod
        finally:
            node.ip("link del tunnel" if tunnel else "link show lo", "link del to-node-2")


def _name(host: Host, address: tuple[str, int]) -> str:
    try:
        return ask(host, address, timeout_s=2.0)
    except OSError as error:
        return type(error).__name__


@pytest.mark.parametrize("tunnel", [False, True], ids=["host-gw", "VXLAN"])
def test_endpoints_behind_another_node(stage: Stage, path: str, tunnel: bool) -> None:
    with another_node(stage, tunnel=tunnel):
        stage.write_service([OTHER_POD])
        stage.daemon(QUICK, "--cluster-cidr=10.3.0.0/16", netfilter=path)
        for host in (stage.network.pods[0], stage.client, stage.node):
            until(lambda: _name(host, (VIP, 80)) == "pod-b", f"{host} is answered")  # noqa: B023
            exchange(host, (VIP, 80), BYTES, seed=host.name)


@pytest.mark.parametrize("tunnel", [False, True], ids=["link", "VXLAN"])
def test_a_path_with_small_packets(stage: Stage, path: str, tunnel: bool) -> None:
    """Clients have an MTU of 1500, and only ICMP errors tell them that packets to the endpoint must be smaller."""
    with another_node(stage, tunnel=tunnel, mtu=1400):
        stage.write_service([OTHER_POD])
        stage.daemon(QUICK, "--cluster-cidr=10.3.0.0/16", netfilter=path)
        for host in (stage.network.pods[0], stage.client, stage.node):
            until(lambda: _name(host, (VIP, 80)) == "pod-b", f"{host} is answered")  # noqa: B023
            exchange(host, (VIP, 80), BYTES, seed=host.name)


PORTMAP = f"""
table ip portmap {{
  chain prerouting {{ type nat hook prerouting priority dstnat; fib daddr type local jump hostports; }}
  chain output {{ type nat hook output priority -100; fib daddr type local jump hostports; }}
  chain postrouting {{ type nat hook postrouting priority srcnat; meta mark & 0x2000 == 0x2000 masquerade; }}
  chain hostports {{ tcp dport 8081 meta mark set meta mark or 0x2000 dnat to 10.3.1.2:{TARGET}; }}
}}
"""
"""As of CNI's plugin portmap, which has hostPort of pods."""


def test_host_ports_of_another_program(stage: Stage, path: str) -> None:
    stage.node.run(["nft", "-f", "-"], input=PORTMAP)
    stage.write_service([0])
    daemon = stage.daemon(QUICK, netfilter=path)
    for host in (stage.client, stage.node, stage.network.pods[2]):
        until(lambda: _name(host, (VIP, 80)) == "pod-0", f"{host} is answered")  # noqa: B023
        assert _name(host, (NODE_V4, 8081)) == "pod-1"
    assert " warning " not in daemon.log(), daemon.log()
    stage.node.run(["nft", "delete", "table", "ip", "portmap"])


CACHE = f"""
table ip nodelocal {{
  chain prerouting {{
    type filter hook prerouting priority raw;
    ip daddr {{ {VIP}, 169.254.20.10 }} meta l4proto {{ tcp, udp }} th dport {DNS} notrack
  }}
  chain output {{
    type filter hook output priority raw;
    ip daddr {{ {VIP}, 169.254.20.10 }} meta l4proto {{ tcp, udp }} th dport {DNS} notrack
    ip saddr {{ {VIP}, 169.254.20.10 }} meta l4proto {{ tcp, udp }} th sport {DNS} notrack
  }}
}}
"""
"""As of NodeLocal DNSCache, which has the address of the cluster's DNS on the node, without connection tracking."""


def test_a_cache_with_the_address_of_a_service(stage: Stage, path: str) -> None:
    """It answers at its port; the other ports are served. (The stage drops what the node sends to such an address.)"""
    node, here = stage.node, "169.254.20.10"
    stage.write_service([0])
    daemon = stage.daemon(QUICK, netfilter=path)
    stage.await_answers(0)
    node.run(["nft", "-f", "-"], input=CACHE)
    node.ip(f"addr add {VIP}/32 dev lo", f"addr add {here}/32 dev lo")
    try:
        with ExitStack() as cache:
            for protocol, address in product((Protocol.TCP, Protocol.UDP), (VIP, here)):
                cache.enter_context(serving(node, protocol, DNS, Family.IPV4, address=address))
            for host in (stage.network.pods[0], stage.client):
                for protocol, address in product((Protocol.TCP, Protocol.UDP), (VIP, here)):
                    assert attempt(host, address, protocol, DNS) == ANSWERED, (host, protocol, address)
        for host in (stage.network.pods[1], stage.client):
            assert _name(host, (VIP, 80)) == "pod-0", host
        assert " error " not in daemon.log(), daemon.log()
    finally:
        node.ip(f"addr del {VIP}/32 dev lo", f"addr del {here}/32 dev lo")
        node.run(["nft", "delete", "table", "ip", "nodelocal"])


def test_an_answer_by_another_router(stage: Stage, path: str) -> None:
    """On the kernel path it comes from an address that the client does not know, unless clients are masqueraded."""
    node, pod = stage.node, stage.network.pods[0]
    join(pod, stage.client, left_name="aside", right_name="aside")
    pod.ip("addr add 10.7.0.1/24 dev aside", "route add 10.2.0.2/32 via 10.7.0.2")
    stage.client.ip("addr add 10.7.0.2/24 dev aside")
    for host, link in ((stage.client, "aside"), (stage.client, "all"), (pod, "all"), (node, "all")):
        host.sysctl(f"net/ipv4/conf/{link}/rp_filter", 0)
    stage.write_service([0])
    try:
        with stage.daemon(QUICK, netfilter=path):
            until(lambda: _name(node, (VIP, 80)) == "pod-0", "it is served")
            assert _name(stage.client, (VIP, 80)) == ("TimeoutError" if path == KERNEL else "pod-0")
        with stage.daemon(QUICK, "--masquerade-all", netfilter=path):
            until(lambda: _name(stage.client, (VIP, 80)) == "pod-0", "the answer comes back by the node")
    finally:
        pod.ip("link del aside")


VIP_V6 = "fd00:96::10"
NODE_PORT = 30080


@pytest.mark.parametrize("netfilter", PATHS)
def test_a_node_with_ipv6_alone(tmp_path: Path, netfilter: str) -> None:
    """No host has an IPv4 address beside that of its loopback."""
    with make_stage(tmp_path, pods=2) as stage:
        for host in (*stage.asking, *stage.network.pods):
            host.ip("-4 addr flush scope global")
        addresses = [Network.pod_v6(index) for index in range(2)]
        for index, pod in enumerate(stage.network.pods):
            pod.popen([sys.executable, "-S", "-E", backend.__file__, f"pod-{index}", addresses[index], str(TARGET)])
        web, listed = service(vip=VIP_V6), endpoints("web", addresses)
        web["spec"] |= {"ipFamilies": ["IPv6"], "type": "NodePort"}
        web["spec"]["ports"][0]["nodePort"] = NODE_PORT
        stage.write("web", web, {**listed, "addressType": "IPv6"})
        daemon = stage.daemon(QUICK, "--cluster-cidr=fd00:3::/32", netfilter=netfilter)
        for host in (*stage.asking, stage.network.pods[0]):
            for address in ((VIP_V6, 80), (NODE_V6, NODE_PORT)):
                until(lambda: _name(host, address).startswith("pod-"), f"{host} is answered by {address}")  # noqa: B023
                assert set(ask_often(host, address, 20)) == {"pod-0", "pod-1"}
        exchange(stage.client, (VIP_V6, 80), BYTES, seed="v6")
        assert " error " not in daemon.log(), daemon.log()
        assert " warning " not in daemon.log(), daemon.log()


SHIM = "10.2.0.10"
"""The node's own address among macvlan pods: without one, the kernel keeps them and their host apart."""


def test_macvlan_pods(stage: Stage, path: str) -> None:
    """Clients and endpoints on macvlan interfaces of the uplink, where the node has one, too. An endpoint answers
    its neighbours directly, so on the kernel path they must be masqueraded."""
    node, addresses = stage.node, ["10.2.0.21", "10.2.0.22"]
    with Host("macvlan-0") as first, Host("macvlan-1") as second:
        pods = (first, second)
        for index, (pod, address) in enumerate(zip(pods, addresses, strict=True)):
            node.ip(
                f"link add mv{index} link to-client type macvlan mode bridge",
                f"link set mv{index} netns /proc/{os.getpid()}/fd/{pod.fd}",
            )
            pod.ip(
                f"link set mv{index} up", f"addr add {address}/24 dev mv{index}", f"route add 10.96.0.0/16 via {SHIM}"
            )
            pod.popen([sys.executable, "-S", "-E", backend.__file__, f"pod-{index}", address, str(TARGET)])
        node.ip("link add shim link to-client type macvlan mode bridge", f"addr add {SHIM}/32 dev shim")
        node.ip("link set shim up", *(f"route add {address}/32 dev shim" for address in addresses))
        try:
            stage.write_service(addresses)
            stage.daemon(QUICK, *(["--masquerade-all"] if path == KERNEL else []), netfilter=path)
            for host in (*stage.asking, *pods):
                for name in ("pod-0", "pod-1"):
                    until(lambda: _name(host, (VIP, 80)) == name, f"{host} is answered by {name}")  # noqa: B023
        finally:
            node.ip("link del shim")
