"""externalTrafficPolicy Local preserves the client's address for backends, also on a node with rp_filter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.lab import Daemon, Host, Network, PodLinks
from tests.support.lab.daemon import KUBEPROXY
from tests.support.lab.node import NODE_V4
from tests.system.e2e import kernel_state
from tests.system.e2e.backend import noise
from tests.system.e2e.conftest import PATHS
from tests.system.e2e.full_services import (
    CELLS,
    CLIENT,
    ELSEWHERE,
    EXTERNAL,
    NODE_NAME,
    PROTOCOLS,
    V4,
    V6,
    Cell,
    Said,
    Whole,
    answers,
    await_all,
    hear,
    heard,
    of_cells,
    pod,
    quiet,
    start_mirrors,
    udp,
)
from tests.system.e2e.stage import KERNEL, QUICK, VIP, Stage, endpoints, exchange, service, until

pytestmark = pytest.mark.netns

WHOLE = Whole(1)
NAMED = f"--hostname-override={NODE_NAME}"
OUTSIDE = [cell for cell in CELLS if cell.origin == "client" and cell.kind in EXTERNAL]
OTHERS = [cell for cell in CELLS if cell not in OUTSIDE]


def routing(host: Host) -> str:
    """Routing rules, and the routes of every table except the kernel's default tables."""
    return host.ip("rule") + host.ip("-6 rule") + host.ip("route show table all") + host.ip("-6 route show table all")


@pytest.fixture(scope="module")
def mirrors(theatre: Stage) -> Stage:
    """Pods that answer with the client's address, and a node that drops wrong sources."""
    start_mirrors(theatre)
    for name in theatre.node.run(["ls", "/proc/sys/net/ipv4/conf"]).stdout.split():
        theatre.node.sysctl(f"net/ipv4/conf/{name}/rp_filter", 1)
    return theatre


@pytest.fixture(params=PATHS)
def adapter(request: pytest.FixtureRequest, mirrors: Stage) -> Iterator[str]:
    """Each adapter; the rules of the one before are gone."""
    kernel_state.forget_connections(mirrors.node)
    yield str(request.param)
    for daemon in mirrors.running:
        assert " error " not in daemon.log(), daemon.log()
        assert "Traceback" not in daemon.log(), daemon.log()
    mirrors.clear()
    kernel_state.reset_rules(mirrors.node)


def start(stage: Stage, adapter: str, *options: str) -> Daemon:
    """Start the daemon on a node with that name."""
    return stage.daemon(QUICK, NAMED, *options, netfilter=adapter)


def test_a_local_backend_sees_the_client(mirrors: Stage, adapter: str) -> None:
    before = routing(mirrors.node)
    mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), pod(1, node=ELSEWHERE), externalTrafficPolicy="Local"))
    daemon = start(mirrors, adapter)
    await_all(mirrors, WHOLE, 0, 1)
    for _ in range(3):
        seen = answers(mirrors, WHOLE, OUTSIDE, timeout_s=5.0)
        assert seen == {str(cell): Said("pod-0", CLIENT[cell.family]) for cell in OUTSIDE}
    # Any endpoint may serve clients in the cluster.
    by_others = {said.pod for _ in range(4) for said in answers(mirrors, WHOLE, OTHERS, timeout_s=5.0).values() if said}
    assert by_others == {"pod-0", "pod-1"}
    assert routing(mirrors.node) != before
    assert daemon.terminate() == 0
    assert daemon.cleanup().returncode == 0
    assert routing(mirrors.node) == before
    assert kernel_state.ours(mirrors.node) == []


def test_removed_routing_rules_are_back_at_once(mirrors: Stage, adapter: str) -> None:
    """They come back long before the next full sync.

    Without them an outside client gets no answer from a local backend.
    """
    mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), externalTrafficPolicy="Local"))
    daemon = start(mirrors, adapter, "--iptables-sync-period=1h")
    await_all(mirrors, WHOLE, 0)
    whole = sorted(routing(mirrors.node).splitlines())
    for damage in ("rule del pref 108", "-6 rule del pref 107"):
        mirrors.node.ip(damage)
        until(lambda: sorted(routing(mirrors.node).splitlines()) == whole, f"repaired after {damage}")
    assert "rules changed by another process" in daemon.log()
    mirrors.node.ip("rule add pref 300 fwmark 0x1 lookup 9")
    mirrors.node.ip("rule del pref 300")
    assert daemon.log().count("rules changed by another process") == 2, "changes of other rules are not reported"


def test_with_never_no_backend_sees_the_client(mirrors: Stage, adapter: str) -> None:
    """On the kernel path the setting has no meaning: under this policy every client keeps its address."""
    mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), externalTrafficPolicy="Local"))
    start(mirrors, adapter, "--preserve-client-address=never")
    await_all(mirrors, WHOLE, 0)
    clients = [cell for cell in CELLS if cell.origin == "client"]
    for cell, said in zip(clients, answers(mirrors, WHOLE, clients).values(), strict=True):
        assert said is not None, cell
        assert (said.client == CLIENT[cell.family]) is (adapter == KERNEL), cell
    until(lambda: " fwmark " not in routing(mirrors.node), "no rules of ours")


def test_with_local_every_local_backend_sees_the_client(mirrors: Stage, adapter: str) -> None:
    """On the kernel path the setting has no meaning: clients of external addresses are masqueraded, no others."""
    mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), pod(1, node=ELSEWHERE)))
    start(mirrors, adapter, "--preserve-client-address=local")
    await_all(mirrors, WHOLE, 0, 1)
    clients = [cell for cell in CELLS if cell.origin == "client"]
    for _ in range(3):
        for cell, said in zip(clients, answers(mirrors, WHOLE, clients, timeout_s=5.0).values(), strict=True):
            assert said is not None, cell
            seen = said.pod == "pod-0" if adapter != KERNEL else cell.kind == "cluster IP"
            assert (said.client == CLIENT[cell.family]) is seen, cell


def test_without_a_local_endpoint_outside_clients_get_no_answer(mirrors: Stage, adapter: str) -> None:
    mirrors.write(WHOLE.name, *WHOLE.objects(pod(1, node=ELSEWHERE), externalTrafficPolicy="Local"))
    start(mirrors, adapter)
    await_all(mirrors, WHOLE, 1, cells=OTHERS)

    def is_quiet(cell: Cell) -> bool:
        return quiet(mirrors.client, WHOLE.address(cell.kind, cell.family), cell.protocol)

    assert all(of_cells(is_quiet, OUTSIDE).values())
    mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), externalTrafficPolicy="Local"))
    await_all(mirrors, WHOLE, 0)
    mirrors.write(WHOLE.name, *WHOLE.objects(externalTrafficPolicy="Local"))
    place = WHOLE.address("node port", 4)

    def refused() -> bool:
        try:
            hear(mirrors.client, place, "TCP", timeout_s=1.0)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    until(refused, "without any endpoint in the cluster the client is refused")


POD_ELSEWHERE = {V4: "10.3.77.2", V6: "fd00:3:77::2"}
"""Addresses of a pod of another node."""


def test_a_pod_of_another_node_is_a_client_from_outside(mirrors: Stage, adapter: str) -> None:
    """Although its address is in clusterCIDR: it comes by the interface by which other hosts come."""
    node, other = mirrors.node, mirrors.client
    other.ip(f"addr add {POD_ELSEWHERE[V4]}/32 dev lo", f"addr add {POD_ELSEWHERE[V6]}/128 dev lo nodad")
    node.ip(f"route add {POD_ELSEWHERE[V4]}/32 via {CLIENT[V4]}", f"route add {POD_ELSEWHERE[V6]}/128 via {CLIENT[V6]}")
    cells = [Cell("client", family, protocol, "node port") for family in (V4, V6) for protocol in PROTOCOLS]

    def said(cell: Cell) -> Said | None:
        place = WHOLE.address(cell.kind, cell.family)
        return heard(other, place, cell.protocol, source=POD_ELSEWHERE[cell.family])

    try:
        mirrors.write(WHOLE.name, *WHOLE.objects(pod(1, node=ELSEWHERE), externalTrafficPolicy="Local"))
        daemon = start(mirrors, adapter, "--cluster-cidr=10.3.0.0/16,fd00:3::/32")
        await_all(mirrors, WHOLE, 1, cells=OTHERS)
        for cell in cells:
            place = WHOLE.address(cell.kind, cell.family)
            assert quiet(other, place, cell.protocol, source=POD_ELSEWHERE[cell.family])
            assert hear(mirrors.network.pods[0], place, cell.protocol).pod == "pod-1", "the node's own pods reach any"
        assert "dropped" in trace(node, f"{NODE_V4}:{WHOLE.node_port}", POD_ELSEWHERE[V4])
        assert "dropped" not in trace(node, f"{NODE_V4}:{WHOLE.node_port}", Network.pod_v4(0))
        mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), pod(1, node=ELSEWHERE), externalTrafficPolicy="Local"))
        wanted = {str(cell): Said("pod-0", POD_ELSEWHERE[cell.family]) for cell in cells}
        until(lambda: of_cells(said, cells) == wanted, "its own endpoint answers the pod")
        assert " error " not in daemon.log()
    finally:
        other.ip(f"addr del {POD_ELSEWHERE[V4]}/32 dev lo", f"addr del {POD_ELSEWHERE[V6]}/128 dev lo")
        node.ip(f"route del {POD_ELSEWHERE[V4]}/32", f"route del {POD_ELSEWHERE[V6]}/128")


def trace(node: Host, place: str, source: str) -> str:
    """What `kubeproxy trace` says of a client."""
    return node.run([KUBEPROXY, "trace", place, f"--from={source}"]).stdout


@pytest.mark.parametrize("links", PodLinks, scope="module")
@pytest.mark.parametrize("src_valid_mark", [0, 1])
def test_everything_passes_from_the_clients_address(mirrors: Stage, adapter: str, src_valid_mark: int) -> None:
    mirrors.node.sysctl("net.ipv4.conf.all.src_valid_mark", src_valid_mark)
    bulk, bulk_endpoints = service("bulk", VIP), endpoints("bulk", [0])
    bulk["spec"].update(type="LoadBalancer", externalTrafficPolicy="Local", externalIPs=["192.0.2.99"])
    bulk_endpoints["endpoints"][0]["nodeName"] = NODE_NAME
    mirrors.write("bulk", bulk, bulk_endpoints)
    mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), externalTrafficPolicy="Local"))
    daemon = start(mirrors, adapter)
    await_all(mirrors, WHOLE, 0)
    for host in mirrors.asking:
        exchange(host, ("192.0.2.99", 80), 5_000_000, seed=host.name)

    def echoed(cell: Cell) -> bool:
        for size in (1, 9000, 60_000):
            sent = noise(size, str(cell))
            with udp(cell.host(mirrors), WHOLE.address(cell.kind, cell.family)) as sock:
                sock.send(sent)
                if sock.recv(65_536) != sent:
                    return False
        return True

    assert all(of_cells(echoed, [cell for cell in CELLS if cell.protocol == "UDP"]).values())
    # The node connects to a pod that is its own backend: from its own address the pod would get its own question.
    itself, other = mirrors.network.pods[0], mirrors.network.pods[1]
    for family in (V4, V6):
        for kind in EXTERNAL:
            for protocol in PROTOCOLS:
                place = WHOLE.address(kind, family)
                assert hear(itself, place, protocol).pod == "pod-0"
                assert hear(other, place, protocol).pod == "pod-0"
    # After SIGKILL its rules stay, and cleanup removes them.
    daemon.process.kill()
    daemon.process.wait()
    assert mirrors.node.ip("rule").count(" fwmark ") == 1
    assert daemon.cleanup().returncode == 0
    assert " fwmark " not in mirrors.node.ip("rule") + mirrors.node.ip("-6 rule")


def test_it_follows_the_policy(mirrors: Stage, adapter: str) -> None:
    mirrors.write(WHOLE.name, *WHOLE.objects(pod(0)))
    start(mirrors, adapter)
    await_all(mirrors, WHOLE, 0)
    # Rules of an earlier run may still be there.
    until(lambda: " fwmark " not in routing(mirrors.node), "no rules of ours")

    def seen() -> set[bool]:
        said = answers(mirrors, WHOLE, OUTSIDE)
        return {it is not None and it.client in CLIENT.values() for it in said.values()}

    for policy, preserved in (("Local", True), ("Cluster", False)):
        mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), externalTrafficPolicy=policy))
        until(lambda: seen() == {preserved}, f"under {policy}")  # noqa: B023


@pytest.mark.parametrize("end", ["the policy changes", "the Service goes"])
def test_a_running_connection_keeps_its_way_back(mirrors: Stage, adapter: str, end: str) -> None:
    """The daemon connects with the client's address. The last Service with that policy changes or disappears."""

    def write(policy: str) -> None:
        drip, pods = service("drip", VIP), endpoints("drip", [0])
        drip["spec"].update(type="NodePort", externalTrafficPolicy=policy)
        drip["spec"]["ports"][0]["nodePort"] = 30500
        pods["endpoints"][0]["nodeName"] = NODE_NAME
        mirrors.write("drip", drip, pods)

    write("Local")
    start(mirrors, adapter)
    with mirrors.client.connect((NODE_V4, 30500)) as connection:
        connection.sendall(b"drip 15 0.1\n")
        lines = connection.recv(100).count(b"\n")
        if end == "the policy changes":
            write("Cluster")
        else:
            mirrors.remove("drip")
        while data := connection.recv(1000):
            lines += data.count(b"\n")
    assert lines >= 15
