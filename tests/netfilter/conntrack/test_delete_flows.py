"""Flows in a real kernel: stale ones are deleted, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import NoReturn

import pytest

from kubeproxy.model import NODE_PORTS, Address, Family, Protocol
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack import delete_flows, messages
from kubeproxy.netfilter.conntrack.delete_flows import Ctnetlink, KernelConntrack
from kubeproxy.netfilter.conntrack.stale_flows import TrackedFlow
from kubeproxy.netfilter.netlink.messages import Message
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from tests.netfilter.stage import Adapter, destination, rule_set, serving
from tests.support.lab import Host, Network
from tests.support.traffic import from_node

pytestmark = pytest.mark.netns

VIP = {Family.IPV4: "10.96.7.7", Family.IPV6: "fd96::7"}
OTHER_VIP = {Family.IPV4: "10.96.7.8", Family.IPV6: "fd96::8"}
NODE = {Family.IPV4: "10.2.0.1", Family.IPV6: "fd00:2::1"}
POD_SIDE = {Family.IPV4: "10.3.0.1", Family.IPV6: "fd00:3::1"}
POD = {Family.IPV4: "10.3.0.2", Family.IPV6: "fd00:3::2"}
LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
WILDCARD = {Family.IPV4: "0.0.0.0", Family.IPV6: "::"}
LED_AWAY = {Family.IPV4: "10.96.99.1", Family.IPV6: "fd96:99::1"}
KEPT_HERE = {Family.IPV4: "10.96.99.2", Family.IPV6: "fd96:99::2"}
FOREIGN_TABLE = """
table inet foreign {
  chain prerouting {
    type nat hook prerouting priority -100
    ip daddr 10.96.99.1 udp dport 53 dnat ip to 10.3.0.2:5353
    ip6 daddr fd96:99::1 udp dport 53 dnat ip6 to [fd00:3::2]:5353
    ip daddr 10.96.99.2 udp dport 53 redirect to :5354
    ip6 daddr fd96:99::2 udp dport 53 redirect to :5354
  }
}
"""

TCP_REPAIR = 19
"""linux/tcp.h: a socket that is closed in this state sends nothing."""

Tracked = tuple[str, ...]
"""A flow as conntrack(8) lists it: protocol; source, destination, ports; the same of its answers."""


def tracked(host: Host) -> set[Tracked]:
    """Every flow of a host."""
    lines = [
        line
        for family in ("ipv4", "ipv6")
        for line in host.run(["conntrack", "-L", "-f", family]).stdout.splitlines()
        if line.startswith(("tcp", "udp"))
    ]
    return {(line.split()[0], *re.findall(r"(?:src|dst|sport|dport)=(\S+)", line)) for line in lines}


class Client:
    """A client that keeps a UDP socket."""

    def __init__(self, host: Host, address: str, port: int) -> None:
        self.socket = host.make_socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(1.0)
        self.socket.connect((address, port))
        self.port = self.socket.getsockname()[1]
        self.sends_to = (address, str(port))

    def send(self) -> None:
        """Send one datagram."""
        with contextlib.suppress(ConnectionRefusedError):  # so was an earlier one, and this was not sent
            self.socket.send(b"ping")
            return
        self.socket.send(b"ping")

    def ask(self) -> str:
        """One datagram, and its answer; "refused" or "silent" if there is none."""
        try:
            self.socket.send(b"ping")
            return self.socket.recv(100).decode()
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "silent"

    def settles_on(self, answer: str) -> bool:
        """Whether that is its answer, after those that were still on their way."""
        return any(self.ask() == answer for _ in range(4))

    def flow(self, node: Host) -> Tracked:
        """Its flow, as soon as it is tracked."""
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            for flow in tracked(node):
                if flow[0] == "udp" and (flow[2], flow[4]) == self.sends_to and flow[3] == str(self.port):
                    return flow
            time.sleep(0.01)
        raise AssertionError(f"{self.sends_to} from port {self.port} is not tracked: {tracked(node)}")

    def leads_to(self, node: Host) -> tuple[str, int]:
        """The target of its flow."""
        flow = self.flow(node)
        return flow[5], int(flow[7])


class Stage:
    """A node with its rules, the flows through it, and what reconciles the two."""

    def __init__(self, stack: ExitStack, network: Network) -> None:
        self._stack = stack
        self.network = network
        self.node = network.node
        self.netfilter = Adapter(network.node, "nftables")
        self.conntrack = KernelConntrack()
        self.node.run(["nft", "-f", "-"], input=FOREIGN_TABLE)

    def apply(self, rules: RuleSet) -> RuleSet:
        """Apply rules."""
        self.netfilter.apply(rules)
        return rules

    def client(self, address: str, port: int = 53, *, host: Host | None = None) -> Client:
        """A client that has sent a packet and is tracked."""
        client = Client(host or self.network.client, address, port)
        self._stack.callback(client.socket.close)
        client.send()
        client.flow(self.node)
        return client

    def serve(self, port: int, family: Family) -> None:
        """Answer on a proxy port."""
        self._stack.enter_context(serving(self.node, Protocol.UDP, port, family))

    def add_bystanders(self, family: Family) -> None:
        """Flows that are not ours: routed, translated by another program, to the node, of the node, of TCP."""
        self.client(POD[family])
        self.client(NODE[family], 9)
        self.client(POD[family], host=self.node)
        self.client(LOOPBACK[family], 9, host=self.node)
        assert self.client(LED_AWAY[family]).leads_to(self.node) == (POD[family], 5353)
        assert self.client(KEPT_HERE[family]).leads_to(self.node) == (NODE[family], 5354)
        for address, port, target in ((POD[family], 8080, self.network.pods[0]), (VIP[family], 53, self.node)):
            listener = target.listen((WILDCARD[family], port if target is not self.node else 7001))
            self._stack.callback(listener.close)
            self._stack.callback(self.network.client.connect((address, port)).close)

    async def reconcile(self, before: RuleSet | None, now: RuleSet, *, stale: list[Client]) -> None:
        """Reconcile; exactly these flows must be deleted."""
        flows, gone = tracked(self.node), {client.flow(self.node) for client in stale}
        assert await self.conntrack.reconcile(before, now) == len(stale)
        assert tracked(self.node) == flows - gone


@pytest.fixture
def on_node(network: Network) -> Iterator[ThreadPoolExecutor]:
    """A thread that is on the node."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        with network.node.entered():  # a thread is born where the one that makes it is
            executor.submit(int).result()
        yield executor


@pytest.fixture
async def stage(network: Network, on_node: ThreadPoolExecutor) -> AsyncIterator[Stage]:
    """The node. The event loop has its threads there."""
    asyncio.get_running_loop().set_default_executor(on_node)
    with ExitStack() as stack:
        yield Stage(stack, network)


def rules(redirects: Mapping[tuple[str, int], int], *, tcp: bool = True) -> RuleSet:
    """UDP and TCP redirected alike; TCP to 7001 only, so that its flows always agree."""
    both = {destination(address, Protocol.UDP, port): to for (address, port), to in redirects.items()}
    if tcp:
        both |= {destination(address, Protocol.TCP, 53): 7001 for address in VIP.values()}
    return rule_set(both, landing=tuple(NODE.values()))


NO_RULES = rules({})


@pytest.mark.parametrize("family", Family)
async def test_a_client_older_than_the_service(stage: Stage, family: Family) -> None:
    stage.apply(NO_RULES)
    stage.add_bystanders(family)
    outside, of_the_node = stage.client(VIP[family]), stage.client(VIP[family], host=stage.node)
    unconcerned = stage.client(OTHER_VIP[family])
    now = stage.apply(rules({(VIP[family], 53): 7001}))
    stage.serve(7001, family)
    assert outside.settles_on("silent"), "a black hole, without us"
    await stage.reconcile(NO_RULES, now, stale=[outside, of_the_node])
    assert outside.settles_on("pong 7001")
    assert of_the_node.settles_on("pong 7001")
    assert unconcerned.leads_to(stage.node) == (OTHER_VIP[family], 53)
    await stage.reconcile(None, now, stale=[])


@pytest.mark.parametrize("family", Family)
async def test_another_proxy_port(stage: Stage, family: Family) -> None:
    before = stage.apply(rules({(VIP[family], 53): 7001, (OTHER_VIP[family], 53): 7002}))
    stage.add_bystanders(family)
    outside, of_the_node = stage.client(VIP[family]), stage.client(VIP[family], host=stage.node)
    assert outside.leads_to(stage.node) == (NODE[family], 7001)
    assert of_the_node.leads_to(stage.node) == (LOOPBACK[family], 7001)
    unconcerned = stage.client(OTHER_VIP[family])
    now = stage.apply(rules({(VIP[family], 53): 7003, (OTHER_VIP[family], 53): 7002}))
    stage.serve(7003, family)
    assert outside.settles_on("refused"), "nothing listens on that port any more"
    await stage.reconcile(before, now, stale=[outside, of_the_node])
    assert outside.settles_on("pong 7003")
    assert of_the_node.settles_on("pong 7003")
    assert unconcerned.leads_to(stage.node) == (NODE[family], 7002)


@pytest.mark.parametrize("family", Family)
async def test_the_service_is_gone(stage: Stage, family: Family) -> None:
    before = stage.apply(rules({(VIP[family], 53): 7001, (OTHER_VIP[family], 53): 7002}))
    stage.add_bystanders(family)
    outside, of_the_node = stage.client(VIP[family]), stage.client(VIP[family], host=stage.node)
    stage.client(OTHER_VIP[family])
    now = stage.apply(rules({(OTHER_VIP[family], 53): 7002}))
    await stage.reconcile(before, now, stale=[outside, of_the_node])
    outside.send()
    assert outside.leads_to(stage.node) == (VIP[family], 53), "routed as if there had never been a Service"
    again = stage.apply(rules({(VIP[family], 53): 7003, (OTHER_VIP[family], 53): 7002}))
    stage.serve(7003, family)
    await stage.reconcile(now, again, stale=[outside])
    assert outside.settles_on("pong 7003"), "and served again, when it comes back"


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("answer", ["refused", "silent"])
async def test_no_endpoints_any_more(stage: Stage, family: Family, answer: str) -> None:
    serves = stage.apply(rules({(VIP[family], 53): 7001, (OTHER_VIP[family], 53): 7002}))
    stage.serve(7001, family)
    stage.serve(7002, family)
    stage.add_bystanders(family)
    outside, of_the_node = stage.client(VIP[family]), stage.client(VIP[family], host=stage.node)
    unconcerned = stage.client(OTHER_VIP[family])
    assert outside.settles_on("pong 7001")
    port = {ProxyPort(Protocol.UDP, 7001)}
    closed = stage.apply(replace(serves, refused=port) if answer == "refused" else replace(serves, dropped=port))
    assert outside.settles_on("pong 7001"), "the guard looks at first packets"
    await stage.reconcile(serves, closed, stale=[outside, of_the_node])
    assert outside.settles_on(answer)
    assert of_the_node.settles_on(answer)
    stage.apply(serves)
    await stage.reconcile(closed, serves, stale=[])
    assert outside.settles_on("pong 7001")
    assert of_the_node.settles_on("pong 7001")
    assert unconcerned.leads_to(stage.node) == (NODE[family], 7002)


@pytest.mark.parametrize("family", Family)
async def test_what_an_earlier_run_left(stage: Stage, family: Family) -> None:
    stage.apply(rules({(VIP[family], 53): 7001, (VIP[family], 54): 7002, (OTHER_VIP[family], 53): 7003}))
    stage.add_bystanders(family)
    moved, same, gone = stage.client(VIP[family]), stage.client(VIP[family], 54), stage.client(OTHER_VIP[family])
    now = stage.apply(rules({(VIP[family], 53): 7003, (VIP[family], 54): 7002}))
    await stage.reconcile(None, now, stale=[moved, gone])
    assert same.leads_to(stage.node) == (NODE[family], 7002)
    moved.send()
    assert moved.leads_to(stage.node) == (NODE[family], 7003)


@pytest.mark.parametrize("family", Family)
async def test_node_ports(stage: Stage, family: Family) -> None:
    def node_port(to: int | None) -> RuleSet:
        redirects: dict[tuple[str, int], int] = {} if to is None else {(NODE_PORTS[family], 30053): to}
        addresses = frozenset({Address(NODE[family]), Address(LOOPBACK[family])})
        return replace(rules(redirects), node_addresses=addresses)

    no_endpoint = stage.apply(node_port(None))
    stage.add_bystanders(family)
    outside, of_the_node = stage.client(NODE[family], 30053), stage.client(NODE[family], 30053, host=stage.node)
    at_loopback = stage.client(LOOPBACK[family], 30053, host=stage.node)
    not_taken = stage.client(POD_SIDE[family], 30053)
    first = stage.apply(node_port(7001))
    stage.serve(7001, family)
    all_clients = [outside, of_the_node, at_loopback]
    await stage.reconcile(no_endpoint, first, stale=all_clients)
    assert all(client.settles_on("pong 7001") for client in all_clients)
    second = stage.apply(node_port(7002))
    stage.serve(7002, family)
    await stage.reconcile(None, second, stale=all_clients)
    assert all(client.settles_on("pong 7002") for client in all_clients)
    await stage.reconcile(second, stage.apply(no_endpoint), stale=all_clients)
    assert not_taken.leads_to(stage.node) == (POD_SIDE[family], 30053)


@pytest.mark.parametrize("family", Family)
async def test_redirects_of_pods(stage: Stage, family: Family) -> None:
    own = {
        destination(VIP[family], Protocol.UDP, 53): 7002,
        destination(NODE_PORTS[family], Protocol.UDP, 30053): 7002,
    }
    same = rules({(VIP[family], 53): 7001, (NODE_PORTS[family], 30053): 7001})
    now = replace(
        same,
        redirects={**same.redirects, **from_node(own)},
        internal_sources=frozenset({"10.3.0.0/16", "fd00:3::/32"}),
        node_addresses=frozenset({Address(NODE[family]), Address(LOOPBACK[family])}),
    )
    now = stage.apply(replace(now, proxy_ports=now.proxy_ports | {ProxyPort(Protocol.UDP, 7002)}))
    stage.add_bystanders(family)
    hosts, leads_to = (stage.network.client, stage.network.pods[0], stage.node), (7001, 7002, 7002)
    clients = [stage.client(VIP[family], host=host) for host in hosts]
    clients += [stage.client(NODE[family], 30053, host=host) for host in hosts]
    assert [client.leads_to(stage.node)[1] for client in clients] == [*leads_to, *leads_to]
    await stage.reconcile(None, now, stale=[])
    alike = stage.apply(replace(now, redirects=same.redirects))
    await stage.reconcile(now, alike, stale=[*clients[1:3], *clients[4:]])


async def test_a_flow_in_another_zone_is_left_alone(stage: Stage) -> None:
    address = VIP[Family.IPV4]
    stage.apply(NO_RULES)
    stage.node.run(
        ["nft", "-f", "-"],
        input="table ip zones { chain prerouting { type filter hook prerouting priority -300\n"
        "ip daddr 10.96.7.7 udp sport 4444 ct zone set 5\n }\n }",
    )
    in_zone = stage.network.client.make_socket(socket.AF_INET, socket.SOCK_DGRAM)
    with in_zone:
        in_zone.bind(("", 4444))
        in_zone.sendto(b"ping", (address, 53))
        ordinary = stage.client(address)
        now = stage.apply(rules({(address, 53): 7001}))
        await stage.reconcile(NO_RULES, now, stale=[ordinary])
        assert any(flow[3] == "4444" for flow in tracked(stage.node))


async def test_a_flow_of_another_identity_is_another_flow(stage: Stage, on_node: ThreadPoolExecutor) -> None:
    client = stage.client(VIP[Family.IPV4])

    def delete_its_predecessor() -> tuple[int, list[int]]:
        with Ctnetlink(timeout_s=5.0) as ctnetlink:
            (found,) = (flow for flow in ctnetlink.dump(Family.IPV4, Protocol.UDP) if flow.source_port == client.port)
            head = struct.pack("=HH", 8, 12)
            before, _, after = found.record.partition(head)
            return ctnetlink.delete([found._replace(record=before + head + bytes(4) + after[4:])])

    assert on_node.submit(delete_its_predecessor).result() == (0, [])
    client.flow(stage.node)


@pytest.mark.parametrize("family", Family)
async def test_a_new_flow_of_the_same_client_and_destination_stays(
    stage: Stage, family: Family, on_node: ThreadPoolExecutor
) -> None:
    """It takes the place of a closed one that has been judged, and mostly has the same identity."""

    def read(port: int) -> TrackedFlow:
        with Ctnetlink(timeout_s=5.0) as ctnetlink:
            (found,) = (flow for flow in ctnetlink.dump(family, Protocol.TCP) if flow.source_port == port)
            return found

    def delete(flow: TrackedFlow) -> tuple[int, list[int]]:
        with Ctnetlink(timeout_s=5.0) as ctnetlink:
            return ctnetlink.delete([flow])

    def come(port: int, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
        client = stage.network.client.make_socket(socket.AF_INET6 if family is Family.IPV6 else socket.AF_INET)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind((WILDCARD[family], port))
        client.settimeout(5)
        client.connect((VIP[family], 80))
        return client, listener.accept()[0]

    with stage.node.listen((WILDCARD[family], 7001)) as old, stage.node.listen((WILDCARD[family], 7002)) as new:
        for port in range(20_000, 20_010):
            stage.apply(http(7001, family))
            client, end = come(port, old)
            end.close()  # first, so that the kernel lets the client begin anew at once
            assert client.recv(1) == b""
            client.close()
            judged = on_node.submit(read, port).result()
            stage.apply(http(7002, family))
            client, end = come(port, new)
            assert on_node.submit(delete, judged).result() == (0, [])
            client.send(b"x")
            assert end.recv(1) == b"x"
            end.close()
            client.close()


async def test_thousands(stage: Stage) -> None:
    """Half of them stale; the cost is printed."""
    stage.apply(NO_RULES)
    for family in Family:
        inet = socket.AF_INET6 if family is Family.IPV6 else socket.AF_INET
        for port in range(20_000, 21_250):
            with stage.network.client.make_socket(inet, socket.SOCK_DGRAM) as client:
                client.bind(("", port))
                for address in (VIP, OTHER_VIP):
                    client.sendto(b"ping", (address[family], 53))
    flows = tracked(stage.node)
    assert len(flows) == 5_000
    now = stage.apply(rules({(VIP[family], 53): 7001 for family in Family}))
    stale = {flow for flow in flows if flow[2] in VIP.values()}
    started = time.perf_counter()
    deleted = await stage.conntrack.reconcile(NO_RULES, now)
    middle = time.perf_counter()
    assert await stage.conntrack.reconcile(NO_RULES, now) == 0
    ended = time.perf_counter()
    print(f"{len(flows)} flows: {middle - started:.3f} s to delete {deleted}, {ended - middle:.3f} s to find no more")
    assert deleted == len(stale)
    assert tracked(stage.node) == flows - stale


def vanish(end: socket.socket) -> None:
    """No peer learns that it is gone: as when its reset is lost on the way, or not accepted."""
    end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    end.close()


def missing() -> NoReturn:
    """A kernel without CONFIG_INET_DIAG."""
    raise OSError(errno.ENOENT, "No such file or directory")


def http(port: int, family: Family) -> RuleSet:
    """A Service by TCP alone."""
    return rule_set({destination(VIP[family], Protocol.TCP, 80): port}, landing=tuple(NODE.values()))


@pytest.mark.parametrize("family", Family)
async def test_tcp_flows_that_an_earlier_process_has_left(
    stage: Stage, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, service = stage.network.client, (VIP[family], 80)

    def come(*, host: Host = client, port: int = 0) -> socket.socket:
        sock = host.make_socket(socket.AF_INET6 if family is Family.IPV6 else socket.AF_INET)
        stage._stack.callback(sock.close)
        sock.settimeout(5)
        sock.bind((WILDCARD[family], port))
        sock.connect(service)
        return sock

    def flows_of(*ends: socket.socket) -> set[Tracked]:
        ports = {str(end.getsockname()[1]) for end in ends}
        return {flow for flow in tracked(stage.node) if flow[0] == "tcp" and flow[3] in ports}

    stage.apply(http(7001, family))
    with stage.node.listen((WILDCARD[family], 7001)) as old:
        # The two hosts choose ports without each other: this one is of neither's range.
        alive, lost, of_the_node = come(), come(), come(host=stage.node, port=20_000)
        accepted = {peer[1]: end for end, peer in (old.accept() for _ in range(3))}
        waiting = come()
        for end in accepted.values():
            stage._stack.callback(end.close)
        now = stage.apply(http(7002, family))
        with stage.node.listen((WILDCARD[family], 7002)):
            another = come()
            left = flows_of(lost, of_the_node)
            assert len(left) == 2
            port = lost.getsockname()[1]
            for end in (lost, of_the_node):
                vanish(accepted[end.getsockname()[1]])
                vanish(end)
            kept = flows_of(alive, waiting, another)
            assert len(kept) == 3
            before = tracked(stage.node)
            assert await stage.conntrack.reconcile(http(7001, family), now) == 0, "while we run they are left alone"
            with monkeypatch.context() as without_sock_diag:
                without_sock_diag.setattr(delete_flows, "tcp_connections", missing)
                assert await stage.conntrack.reconcile(None, now) == 0, "their owner is unknown"
            assert await stage.conntrack.reconcile(None, now) == 2
            assert tracked(stage.node) == before - left
            come(port=port)
            alive.send(b"still here")
            assert accepted[alive.getsockname()[1]].recv(100) == b"still here"
            assert await stage.conntrack.reconcile(None, now) == 0


@pytest.mark.parametrize("family", Family)
async def test_unanswered_tcp_clients_from_before_the_service_existed(stage: Stage, family: Family) -> None:
    def ask(address: str, *, host: Host = stage.network.client) -> socket.socket:
        sock = host.make_socket(socket.AF_INET6 if family is Family.IPV6 else socket.AF_INET)
        stage._stack.callback(sock.close)
        sock.setblocking(False)
        sock.connect_ex((address, 80))
        return sock

    def flows_of(*ends: socket.socket) -> set[Tracked]:
        ports = {str(end.getsockname()[1]) for end in ends}
        return {flow for flow in tracked(stage.node) if flow[0] == "tcp" and flow[3] in ports}

    nothing = stage.apply(rules({}, tcp=False))
    early, of_the_node = ask(VIP[family]), ask(VIP[family], host=stage.node)
    unconcerned = ask(OTHER_VIP[family])
    async with asyncio.timeout(5):
        while len(flows_of(early, of_the_node, unconcerned)) < 3:
            await asyncio.sleep(0.01)
    with stage.node.listen((WILDCARD[family], 7001)) as listener:
        now = stage.apply(http(7001, family))
        before, gone = tracked(stage.node), flows_of(early, of_the_node)
        assert await stage.conntrack.reconcile(nothing, now) == 2
        assert not gone & tracked(stage.node)
        assert tracked(stage.node) >= before - gone
        listener.settimeout(10)
        came = set()
        for _ in range(2):
            end, peer = listener.accept()
            stage._stack.callback(end.close)
            came.add(peer[1])
        assert came == {end.getsockname()[1] for end in (early, of_the_node)}
        assert await stage.conntrack.reconcile(nothing, now) == 0


@pytest.mark.parametrize("family", Family)
async def test_a_connection_to_what_becomes_a_service_goes_on(
    stage: Stage, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the kernel is too old to filter unanswered flows."""
    nothing = stage.apply(rules({}, tcp=False))
    with stage.network.pods[0].listen((WILDCARD[family], 8080)) as pod:
        client = stage.network.client.connect((POD[family], 8080))
        stage._stack.callback(client.close)
        end, _ = pod.accept()
        stage._stack.callback(end.close)
        now = stage.apply(rule_set({destination(POD[family], Protocol.TCP, 8080): 7001}, landing=tuple(NODE.values())))
        asked = messages.dump_request

        def unfiltered(family: Family, sequence: int, protocol: Protocol, **_: object) -> bytes:
            return asked(family, sequence, protocol)

        monkeypatch.setattr(messages, "dump_request", unfiltered)
        assert await stage.conntrack.reconcile(nothing, now) == 0
        client.send(b"still here")
        assert end.recv(100) == b"still here"


@pytest.mark.parametrize("at_once", [delete_flows.FILTERED, 0])
@pytest.mark.parametrize("family", Family)
async def test_flows_led_to_an_address_are_found_among_the_others(
    stage: Stage, family: Family, at_once: int, on_node: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delete_flows, "FILTERED", at_once)
    stage.apply(rules({(VIP[family], 53): 7001}))
    stage.add_bystanders(family)
    client = stage.client(VIP[family])
    parsed: list[TrackedFlow | None] = []
    parse_flow = messages.parse_flow

    def counted(message: Message, protocol: Protocol) -> TrackedFlow | None:
        parsed.append(parse_flow(message, protocol))
        return parsed[-1]

    monkeypatch.setattr(messages, "parse_flow", counted)

    def dump() -> list[TrackedFlow]:
        with Ctnetlink(timeout_s=5.0) as ctnetlink:
            return list(ctnetlink.dump(family, Protocol.UDP, led_to=[Address(it) for it in POD.values()]))

    assert [(it.target, it.target_port) for it in on_node.submit(dump).result()] == [(POD[family], 5353)]
    assert len(parsed) == 1, "and not the others"
    assert client.leads_to(stage.node) == (NODE[family], 7001)


async def test_a_kernel_without_ctnetlink(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_an_unknown_subsystem(family: Family, sequence: int, protocol: Protocol, **_: object) -> bytes:
        request = bytearray(dump_request(family, sequence, protocol))
        request[4:6] = struct.pack("=H", 0xFE01)
        return bytes(request)

    dump_request = messages.dump_request
    monkeypatch.setattr(messages, "dump_request", of_an_unknown_subsystem)
    with pytest.raises(KernelError, match="nf_conntrack_netlink"):
        await stage.conntrack.reconcile(None, rules({(VIP[Family.IPV4], 53): 7001}))


async def test_failed_deletions_are_reported_after_the_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.apply(NO_RULES)
    spoilt, other = stage.client(VIP[Family.IPV4]), stage.client(VIP[Family.IPV4])

    def spoil(flow: TrackedFlow, sequence: int) -> bytes:
        request = delete_request(flow, sequence)
        return request if flow.source_port != spoilt.port else request[:16] + bytes([99]) + request[17:]

    delete_request = messages.delete_request
    monkeypatch.setattr(messages, "delete_request", spoil)
    with pytest.raises(KernelError, match="cannot delete 1 stale UDP flows"):
        await stage.conntrack.reconcile(NO_RULES, stage.apply(rules({(VIP[Family.IPV4], 53): 7001})))
    assert {flow[3] for flow in tracked(stage.node) if flow[2] == VIP[Family.IPV4]} == {str(spoilt.port)}
    assert other.port != spoilt.port


def test_without_privilege_the_error_names_it_and_nothing_is_asked_needlessly(network: Network) -> None:
    program = """
import asyncio
import contextlib
from kubeproxy.model.errors import KernelError
from kubeproxy.model import Destination, Protocol, Traffic
from kubeproxy.netfilter.conntrack.delete_flows import KernelConntrack
from kubeproxy.netfilter.ruleset import RuleSet

def rules(protocol):
    return RuleSet(redirects={Traffic(Destination("10.96.7.7", protocol, 53)): 7001})

print(asyncio.run(KernelConntrack().reconcile(rules(Protocol.TCP), RuleSet())))
print(asyncio.run(KernelConntrack().reconcile(rules(Protocol.UDP), rules(Protocol.UDP))))
try:
    asyncio.run(KernelConntrack().reconcile(None, rules(Protocol.UDP)))
except KernelError as error:
    print(error)
"""
    powerless = ["setpriv", "--inh-caps=-all", "--bounding-set=-net_admin,-net_raw"]
    output = network.node.run([*powerless, sys.executable, "-c", program]).stdout.splitlines()
    assert output[:2] == ["0", "0"]
    assert output[2].startswith("cannot look for stale UDP flows by ctnetlink: ")
    assert "CAP_NET_ADMIN" in output[2]
