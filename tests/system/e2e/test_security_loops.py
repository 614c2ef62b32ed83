"""Security finding 1: endpoints that lead back to the proxy, on one node and over two, for all protocols."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.support.lab import Daemon, Host, join, write_manifest
from tests.support.lab.daemon import KUBEPROXY, METRICS
from tests.support.lab.node import NODE_V4, NODE_V6
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import PATHS
from tests.system.e2e.stage import QUICK, Object, Stage, adapter_and_path, ask, until
from tests.system.e2e.test_faults import OTHER, OTHER_VIP, cpu_s, descriptors

pytestmark = pytest.mark.netns

LIMIT = "--nofile=1024:1024"
HOPS = 8
"""The largest number of proxies in a row for a client."""
LEADS_BACK = "leads back to this proxy"
FAMILIES = (4, 6)
PROTOCOLS = ("TCP", "UDP")


class Loop(NamedTuple):
    """A Service with an endpoint that is a destination of the proxy: its own, or of another Service."""

    name: str
    number: int
    node_port: int
    leads_to: dict[int, tuple[str, int]]
    """Address and port of the endpoint, for each family."""

    def vip(self, family: int) -> str:
        """The cluster IP of a family."""
        return f"10.96.9.{self.number}" if family == 4 else f"fd00:96::9:{self.number}"

    def objects(self) -> list[Object]:
        """The Service with its EndpointSlices."""
        return looping(self.name, [self.vip(family) for family in FAMILIES], self.node_port, self.leads_to)


def looping(name: str, vips: list[str], node_port: int, leads_to: dict[int, tuple[str, int]]) -> list[Object]:
    """A Service for TCP and UDP with one endpoint for each family."""
    ports = [
        {"name": protocol.lower(), "protocol": protocol, "port": 80, "nodePort": node_port} for protocol in PROTOCOLS
    ]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "type": "NodePort",
                "clusterIP": vips[0],
                "clusterIPs": vips,
                "ipFamilies": ["IPv4", "IPv6"],
                "externalIPs": [f"192.0.2.{node_port % 100}", f"2001:db8:2::{node_port % 100}"],
                "ports": ports,
            },
        },
        *(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": f"{name}-{family}",
                    "namespace": "default",
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": f"IPv{family}",
                "ports": [{"name": it.lower(), "protocol": it, "port": port} for it in PROTOCOLS],
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            }
            for family, (address, port) in leads_to.items()
        ),
    ]


ITSELF = Loop("itself", 1, 30081, {4: ("10.96.9.1", 80), 6: ("fd00:96::9:1", 80)})
THERE = Loop("there", 2, 30082, {4: ("10.96.9.3", 80), 6: ("fd00:96::9:3", 80)})
BACK = Loop("back", 3, 30083, {4: ("10.96.9.2", 80), 6: ("fd00:96::9:2", 80)})
NODE_PORT = Loop("node-port", 4, 30084, {4: (NODE_V4, 30084), 6: (NODE_V6, 30084)})
EXTERNAL = Loop("external", 5, 30085, {4: ("192.0.2.85", 80), 6: ("2001:db8:2::85", 80)})
LOOPS = (ITSELF, THERE, BACK, NODE_PORT, EXTERNAL)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("netfilter", PATHS)
def test_a_service_with_a_service_address_as_endpoint_takes_nothing_from_others(
    stage: Stage, netfilter: str, workers: int
) -> None:
    """Clients of loops use no resources for long. A loop by allocated addresses is a reported problem."""
    stage.write_service([0, 1], name="other", vip=OTHER_VIP)
    daemon = stage.daemon(QUICK, f"--workers={workers}", netfilter=netfilter, command=["prlimit", LIMIT, KUBEPROXY])
    stage.await_answers(0, 1, address=OTHER)
    for loop in LOOPS:
        stage.write(loop.name, *loop.objects())
    for loop in LOOPS:
        until(lambda: (loop.vip(4), 80) in kernel_state.redirects(stage.node), f"{loop.name} is served")  # noqa: B023
    before, used = descriptors(daemon), cpu_s(daemon)
    with ExitStack() as clients:
        for loop in LOOPS:
            for family in FAMILIES:
                for address in ((loop.vip(family), 80), ((NODE_V4, NODE_V6)[family == 6], loop.node_port)):
                    knock(stage.client, address, clients)
        time.sleep(2.0)
        for _ in range(10):
            assert ask(stage.client, OTHER, timeout_s=2).startswith("pod-")
        most, busy = descriptors(daemon) - before, (cpu_s(daemon) - used) / 2.0
        print(f"\n{most} descriptors, {busy:.0%} of a core")
    assert most <= 40 * (HOPS + 1), "one client costs no more than the clients of as many proxies as it may pass"
    used = cpu_s(daemon)
    time.sleep(1.0)
    assert cpu_s(daemon) - used < 0.3, "nothing goes round"
    until(lambda: descriptors(daemon) <= before + 20, "nothing is left of clients that are gone", within_s=10)
    log = daemon.log()
    reported = [line for line in log.splitlines() if LEADS_BACK in line]
    for loop in LOOPS:
        # An external address may be another tenant's pod: it takes no endpoint away. On either path it is asked as an
        # address of the network, is silent, and is ejected.
        named = any(re.search(rf"default/{loop.name}\b", line) for line in reported)
        assert named == (loop is not EXTERNAL), loop.name
    assert LEADS_BACK in daemon.get("/statusz?format=json", address=METRICS).body
    assert "Traceback" not in log, log


def knock(host: Host, address: tuple[str, int], clients: ExitStack) -> None:
    """Send one connection and one datagram to an address."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    stream = clients.enter_context(host.make_socket(family))
    stream.setblocking(False)
    stream.connect_ex(address)
    datagrams = clients.enter_context(host.make_socket(family, socket.SOCK_DGRAM))
    datagrams.connect(address)
    with suppress(OSError):
        datagrams.send(b"round and round")


def test_endpoints_that_lead_back_come_and_go_with_the_services_they_lead_to(stage: Stage) -> None:
    """The daemon leaves an endpoint out while a Service has its address."""
    pod = stage.network.pod_v4(0)
    stage.write_service([0])
    daemon = stage.daemon(QUICK, "--workers=1")
    stage.await_answers(0)
    stage.write("taker", *looping("taker", [pod], 30090, {})[:1])
    # The Service of that address has port 80, the endpoint 8080: no loop.
    until(lambda: (pod, 80) in kernel_state.redirects(stage.node), "the taker is served")
    stage.await_answers(0)
    taker = looping("taker", [pod], 30090, {})[0]
    taker["spec"]["ports"] = [{"name": "http", "port": 8080}]
    stage.write("taker", taker)
    stage.await_refusal()
    until(lambda: LEADS_BACK in daemon.get("/statusz?format=json", address=METRICS).body, "the status says why")
    until(lambda: LEADS_BACK in daemon.log(), "the log says why")
    stage.remove("taker")
    stage.await_answers(0)


class Pair(NamedTuple):
    """Two nodes beside one another, and a client of the first."""

    a: Host
    b: Host
    client: Host
    manifests: Path


A = {4: "10.4.0.1", 6: "fd00:4::1"}
B = {4: "10.4.0.2", 6: "fd00:4::2"}
CLIENT = {4: "10.2.0.2", 6: "fd00:2::2"}
NODE_PORT_NUMBER = 30080


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two hosts that forward; each is the default route of the other."""
    with Host("a") as a, Host("b") as b, Host("client") as client:
        for node in (a, b):
            node.sysctl("net.ipv4.ip_forward", 1)
            node.sysctl("net.ipv6.conf.all.forwarding", 1)
        join(a, b, left_name="eth1", right_name="eth1")
        join(a, client, left_name="eth0", right_name="eth0")
        a.ip(
            f"addr add {A[4]}/24 dev eth1",
            f"addr add {A[6]}/64 dev eth1 nodad",
            "addr add 10.2.0.1/24 dev eth0",
            "addr add fd00:2::1/64 dev eth0 nodad",
            f"route add default via {B[4]}",
            f"route add default via {B[6]}",
        )
        b.ip(
            f"addr add {B[4]}/24 dev eth1",
            f"addr add {B[6]}/64 dev eth1 nodad",
            f"route add default via {A[4]}",
            f"route add default via {A[6]}",
        )
        client.ip(
            f"addr add {CLIENT[4]}/24 dev eth0",
            f"addr add {CLIENT[6]}/64 dev eth0 nodad",
            "route add default via 10.2.0.1",
            "route add default via fd00:2::1",
        )
        yield Pair(a, b, client, tmp_path)


@pytest.mark.parametrize("netfilter", PATHS)
def test_a_loop_over_two_nodes_ends(pair: Pair, netfilter: str) -> None:
    """A's endpoint is B's node port, and B's endpoint is A's: no node can detect it from its own addresses."""
    daemons = []
    netfilter, *path = adapter_and_path(netfilter)
    with ExitStack() as stack:
        for name, host, other in (("a", pair.a, B), ("b", pair.b, A)):
            directory = pair.manifests / name
            directory.mkdir()
            leads_to = {family: (address, NODE_PORT_NUMBER) for family, address in other.items()}
            objects = looping("ring", ["10.96.9.9", "fd00:96::9:9"], NODE_PORT_NUMBER, leads_to)
            write_manifest(directory / "ring.yaml", yaml.safe_dump_all(objects))
            daemons.append(
                stack.enter_context(
                    Daemon(
                        host,
                        manifests=directory,
                        netfilter=netfilter,
                        options=[QUICK, "--workers=1", *path],
                        command=["prlimit", LIMIT, KUBEPROXY],
                    )
                )
            )
            until(lambda: ("10.96.9.9", 80) in kernel_state.redirects(host), "the ring is served")  # noqa: B023
        before = [descriptors(daemon) for daemon in daemons]
        with ExitStack() as clients:
            for family in FAMILIES:
                knock(pair.client, (A[family], NODE_PORT_NUMBER), clients)
            time.sleep(2.0)
            most = [descriptors(daemon) - start for daemon, start in zip(daemons, before, strict=True)]
            used = [cpu_s(daemon) for daemon in daemons]
            time.sleep(1.0)
            busy = [cpu_s(daemon) - start for daemon, start in zip(daemons, used, strict=True)]
            print(f"\ndescriptors {most}, of a core {busy}")
            assert max(most) <= 4 * 2 * HOPS
            assert max(busy) < 0.3
        for daemon, start in zip(daemons, before, strict=True):
            assert daemon.process.poll() is None, daemon.log()
            assert "Traceback" not in daemon.log(), daemon.log()
            # UDP sessions stay for a minute.
            until(lambda: descriptors(daemon) <= start + 2 * HOPS, "connections end", within_s=10)  # noqa: B023


def test_a_loop_of_the_kernel_path_goes_round_until_its_hops_are_used_up(pair: Pair) -> None:
    """No proxy takes part, so each round costs one hop, as in any loop of routers. What the rescue sends again does not
    multiply. The second endpoint refuses clients and answers the nodes' dials, so that it is never ejected."""
    refusing = {4: CLIENT[4], 6: CLIENT[6]}
    policy = "add table inet fault; add chain inet fault c { type filter hook input priority 0; }"
    nodes = (
        f"ip saddr {{ {A[4]}, {B[4]}, 10.2.0.1 }} tcp dport {NODE_PORT_NUMBER} ip ttl != 53-56 reject with tcp reset"
    )
    pair.client.run(["nft", f"{policy}; add rule inet fault c {nodes}"])
    daemons = []
    with ExitStack() as stack:
        stack.enter_context(pair.client.listen((CLIENT[4], NODE_PORT_NUMBER)))
        for name, host, other in (("a", pair.a, B), ("b", pair.b, A)):
            directory = pair.manifests / name
            directory.mkdir()
            leads_to = {family: (address, NODE_PORT_NUMBER) for family, address in other.items()}
            objects = looping("ring", ["10.96.9.9", "fd00:96::9:9"], NODE_PORT_NUMBER, leads_to)
            for each in objects[1:]:
                each["endpoints"].append({"addresses": [refusing[int(each["addressType"][-1])]]})
            write_manifest(directory / "ring.yaml", yaml.safe_dump_all(objects))
            daemons.append(
                stack.enter_context(
                    Daemon(host, manifests=directory, netfilter="nftables", options=[QUICK, "--data-path=kernel"])
                )
            )
            until(lambda: "rescue of failed connections" in daemons[-1].log(), "failures are rescued")
            count = "add table inet counting; add chain inet counting c { type filter hook postrouting priority 0; }"
            host.run(["nft", f"{count}; add rule inet counting c tcp flags & (syn | ack) == syn counter"])
        with pair.client.make_socket() as client:
            client.setblocking(False)
            client.connect_ex((A[4], NODE_PORT_NUMBER))
            time.sleep(4.0)
        sent = [
            int(re.search(r"packets (\d+)", host.run(["nft", "list", "table", "inet", "counting"]).stdout)[1])  # type: ignore[index]
            for host in (pair.a, pair.b)
        ]
        print(f"\nsent {sent}")
        # The client sends three SYNs in this time.
        assert sum(sent) < 3 * 2 * 9 * 64
