"""Traffic of clients with both adapters and by the kernel path; one daemon for each."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.lab import Daemon, Host, Network
from tests.support.lab.node import NODE_V4
from tests.system.e2e import kernel_state
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
    refused,
    service,
    silent,
    until,
)
from tests.system.e2e.traffic import Traffic

pytestmark = pytest.mark.netns

MB = 1_000_000


@pytest.fixture(scope="module", params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    """An adapter, or the kernel path."""
    return str(request.param)


@pytest.fixture(scope="module")
def daemon(path: str, theatre: Stage) -> Iterator[Daemon]:
    """A daemon for all tests with an adapter."""
    daemon = theatre.daemon(QUICK, "--workers=1", netfilter=path)  # several workers have no common round robin
    yield daemon
    assert daemon.process.poll() is None, daemon.log()
    assert " error " not in daemon.log(), daemon.log()
    theatre.clear()
    kernel_state.reset_rules(theatre.node)


@pytest.fixture
def served(theatre: Stage, daemon: Daemon) -> Iterator[Stage]:
    """A working Service with four endpoints; after the test its manifests are as before."""
    kernel_state.forget_connections(theatre.node)
    manifest = theatre.manifests / "web.yaml"
    if not manifest.exists():
        theatre.write_service(range(4))
    standard = manifest.read_text()
    theatre.await_answers(0, 1, 2, 3)
    yield theatre
    if list(theatre.manifests.iterdir()) != [manifest] or manifest.read_text() != standard:
        for path in theatre.manifests.iterdir():
            path.unlink()
        until(lambda: not kernel_state.redirects(theatre.node), "no service left")


def redirect(stage: Stage, port: int = 80, vip: str = VIP) -> int | None:
    """The proxy port of a service port."""
    return kernel_state.redirects(stage.node).get((vip, port))


def sockets(stage: Stage) -> set[kernel_state.Listening]:
    """The listeners of the daemon's services."""
    # The socket of preStop hooks is on loopback.
    return {seen for seen in kernel_state.listening(stage.node) if seen.port != 10256 and seen.address != "127.0.0.1"}


def from_everywhere(stage: Stage) -> tuple[Host, ...]:
    """Another host, the node, and a pod (that may be its own backend)."""
    return (*stage.asking, stage.network.pods[3])


@pytest.mark.parametrize("at_once", [1, 16])
def test_four_hundred_connections_are_spread(served: Stage, path: str, at_once: int) -> None:
    """Exactly in user space; by the kernel at random, with equal shares."""
    # Binomial: the deviation of one is 8.7, so four lie within 4.6 deviations in all but one of 60,000 runs.
    least, most = (60, 140) if path == KERNEL else (100, 100)
    for host in from_everywhere(served):
        counts = ask_often(host, (VIP, 80), 400, at_once=at_once)
        assert counts.keys() == {f"pod-{pod}" for pod in range(4)}, host
        assert all(least <= count <= most for count in counts.values()), (host, counts)


def test_ten_megabytes_both_ways_at_once(served: Stage) -> None:
    for host in from_everywhere(served):
        exchange(host, (VIP, 80), 10 * MB, seed=host.name)


@pytest.mark.parametrize("size", [0, 1, 65_537])
def test_other_amounts_both_ways_at_once(served: Stage, size: int) -> None:
    exchange(served.client, (VIP, 80), size, seed="some")


def test_the_client_half_closes_and_still_receives_the_answer(served: Stage) -> None:
    for host in served.asking:
        with host.connect((VIP, 80)) as sock:
            sock.sendall(b"echo\nwords that")
            sock.shutdown(socket.SHUT_WR)
            assert until_end(sock) == b"words that", host


def test_the_endpoint_half_closes_and_still_receives_from_the_client(served: Stage) -> None:
    for host in served.asking:
        with served.network.pods[0].listen((Network.pod_v4(0), 8081)) as listener:
            wired = endpoints("half", [0])
            wired["ports"][0]["port"] = 8081
            served.write("half", service("half", "10.96.0.11"), wired)
            until(lambda: redirect(served, vip="10.96.0.11"), "half served")
            with host.connect(("10.96.0.11", 80)) as client:
                listener.settimeout(5)
                endpoint, _ = listener.accept()
                with endpoint:
                    endpoint.settimeout(5)
                    endpoint.sendall(b"that is all")
                    endpoint.shutdown(socket.SHUT_WR)
                    assert until_end(client) == b"that is all"
                    client.sendall(b"and yet")
                    client.shutdown(socket.SHUT_WR)
                    assert until_end(endpoint) == b"and yet"
            served.remove("half")
            until(lambda: not redirect(served, vip="10.96.0.11"), "half gone")


def test_a_reset_stays_a_reset(served: Stage) -> None:
    for host in served.asking:
        with host.connect((VIP, 80)) as sock:
            sock.sendall(b"reset\n")
            assert sock.recv(100) == b"half a"
            with pytest.raises(ConnectionResetError):
                sock.recv(100)


def until_end(sock: socket.socket) -> bytes:
    """All data until the other side closes."""
    said = b""
    while data := sock.recv(65536):
        said += data
    return said


def test_nothing_is_lost_while_endpoints_flip(served: Stage, daemon: Daemon) -> None:
    sets = [(0, 1), (2, 3), (0, 2), (1,), (0, 1, 2, 3), (3, 0)]
    flips = 0
    with Traffic(served.client) as far, Traffic(served.node) as near:
        while (far.count < 1000 or near.count < 1000 or flips < 12) and not (far.failures or near.failures):
            seen = daemon.log().count("manifests changed")
            served.write_service(sets[flips % len(sets)])
            until(lambda: daemon.log().count("manifests changed") > seen, "the flip has arrived")  # noqa: B023
            flips += 1
    assert (far.failures, near.failures) == ([], [])
    assert set(far.answers) == set(near.answers) == {"pod-0", "pod-1", "pod-2", "pod-3"}


def test_unreachable_and_refusing_endpoints_cost_no_request(served: Stage) -> None:
    # 10.3.0.9 does not exist. 10.3.0.1:8080 is the node, which refuses.
    served.write_service([0, "10.3.0.9", "10.3.0.1", 1])
    served.await_answers(0, 1)
    for host in served.asking:
        assert set(ask_often(host, (VIP, 80), 40, at_once=8)) == {"pod-0", "pod-1"}


def test_without_endpoints_refused_at_once_and_served_again(served: Stage) -> None:
    port, listeners = redirect(served), sockets(served)
    with served.client.connect((VIP, 80)) as running:
        running.sendall(b"echo\nbefore ")
        assert running.recv(100) == b"before "
        served.write_service([])
        served.await_refusal()
        for host in from_everywhere(served):
            assert refused(host, (VIP, 80)), host
        running.sendall(b"after")
        assert running.recv(100) == b"after", "a running connection goes on"
    served.write_service([2])
    served.await_answers(2)
    for host in served.asking:
        assert ask(host, (VIP, 80)) == "pod-2"
    assert (redirect(served), sockets(served)) == (port, listeners)


def test_a_service_that_never_had_endpoints_is_refused(served: Stage) -> None:
    served.write("lonely", service("lonely", "10.96.0.12"))
    until(lambda: redirect(served, vip="10.96.0.12"), "lonely known")
    for host in from_everywhere(served):
        assert refused(host, ("10.96.0.12", 80)), host


def test_proxy_ports_are_for_redirected_packets_only(served: Stage) -> None:
    port = redirect(served)
    assert port is not None
    direct = [
        *((served.client, address) for address in (NODE_V4, "10.3.0.1")),
        *((served.node, address) for address in (NODE_V4, "127.0.0.1")),
        *((served.network.pods[0], address) for address in (NODE_V4, "10.3.0.1")),
    ]
    with ThreadPoolExecutor(len(direct)) as pool:
        assert all(pool.map(lambda way: silent(way[0], (way[1], port)), direct))
    assert ask(served.client, (VIP, 80)).startswith("pod-")


def test_other_ports_of_the_address_are_not_taken(served: Stage) -> None:
    with served.node.listen((NODE_V4, 80)) as listener, served.client.connect((NODE_V4, 80)):
        listener.settimeout(5)
        listener.accept()[0].close()
    assert redirect(served, 81) is None


def test_deleted_it_is_gone_and_running_connections_go_on(served: Stage) -> None:
    port = redirect(served)
    with served.client.connect((VIP, 80)) as far, served.node.connect((VIP, 80)) as near:
        for sock in (far, near):
            sock.sendall(b"echo\nbefore")
            assert sock.recv(100) == b"before"
        served.remove("web")
        until(lambda: redirect(served) is None, "the rule is gone")
        until(lambda: port not in {seen.port for seen in sockets(served)}, "the port is gone")
        for host in served.asking:
            with pytest.raises(OSError):
                ask(host, (VIP, 80), timeout_s=0.5)
        for sock in (far, near):
            sock.sendall(b"after")
            assert sock.recv(100) == b"after"
            sock.shutdown(socket.SHUT_WR)
            assert until_end(sock) == b""


def test_another_cluster_ip(served: Stage) -> None:
    port, listeners = redirect(served), sockets(served)
    with served.client.connect((VIP, 80)) as running:
        running.sendall(b"echo\nbefore")
        assert running.recv(100) == b"before"
        served.write_service(range(4), vip="10.96.0.99")
        served.await_answers(0, 1, 2, 3, address=("10.96.0.99", 80))
        assert redirect(served) is None
        with pytest.raises(OSError):
            ask(served.client, (VIP, 80), timeout_s=0.5)
        running.sendall(b"after")
        assert running.recv(100) == b"after"
    assert ask(served.node, ("10.96.0.99", 80)).startswith("pod-")
    assert (redirect(served, vip="10.96.0.99"), sockets(served)) == (port, listeners)


def test_a_port_is_renumbered(served: Stage) -> None:
    port = redirect(served)
    served.write("web", service(ports={"http": 81}), endpoints("web", range(4)))
    served.await_answers(0, 1, 2, 3, address=(VIP, 81))
    assert kernel_state.redirects(served.node) == {(VIP, 81): port}


def test_a_port_is_renamed_without_a_gap(served: Stage) -> None:
    with Traffic(served.client) as far, Traffic(served.node) as near:
        for name in ("web", "http", "www"):
            before = sockets(served)
            served.write("web", service(ports={name: 80}), endpoints("web", range(4), ports=[name]))
            until(lambda: not before & sockets(served) and len(sockets(served)) == 1, f"listens for {name}")  # noqa: B023
            far.more()
            near.more()
    assert (far.failures, near.failures) == ([], [])


def test_ports_change_places_without_a_gap(served: Stage) -> None:
    ports = {"http": 80, "alt": 81}
    served.write("web", service(ports=ports), endpoints("web", range(4), ports=list(ports)))
    served.await_answers(0, 1, 2, 3, address=(VIP, 81))
    with Traffic(served.client) as first, Traffic(served.client, (VIP, 81)) as second:
        for turn in range(4):
            before = kernel_state.redirects(served.node)
            numbers = (81, 80) if turn % 2 == 0 else (80, 81)
            ports = dict(zip(ports, numbers, strict=True))
            served.write("web", service(ports=ports), endpoints("web", range(4), ports=list(ports)))
            until(lambda: kernel_state.redirects(served.node)[VIP, 80] == before[VIP, 81], "they changed places")  # noqa: B023
            first.more()
            second.more()
    assert (first.failures, second.failures) == ([], [])


def test_an_unrelated_change_keeps_the_listener(served: Stage) -> None:
    port, listeners = redirect(served), sockets(served)
    described = service(
        metadata={"labels": {"a": "b"}, "annotations": {"c": "d"}, "generation": 7},
        status={"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}},
    )
    described["spec"] |= {"selector": {"app": "web"}, "type": "LoadBalancer"}
    # The change of the endpoint shows that the daemon has processed it.
    served.write("web", described, endpoints("web", [1]))
    served.await_answers(1)
    served.write("web", service(), endpoints("web", range(4)))
    served.await_answers(0, 1, 2, 3)
    assert (redirect(served), sockets(served)) == (port, listeners)


def test_several_named_ports_have_listeners_of_their_own(served: Stage) -> None:
    ports = {"http": 80, "alt": 8000, "more": 9000}
    served.write("web", service(ports=ports), endpoints("web", range(4), ports=list(ports)))
    for number in ports.values():
        served.await_answers(0, 1, 2, 3, address=(VIP, number))
    redirects = kernel_state.redirects(served.node)
    assert len(set(redirects.values())) == 3
    assert {seen.port for seen in sockets(served)} == set(redirects.values())


def test_the_backend_sees_a_whole_request_of_a_client_that_waits(served: Stage) -> None:
    # The client sends nothing for longer than the first steps of the dial ladder take.
    with served.client.connect((VIP, 80)) as sock:
        sock.settimeout(0.8)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(5)
        sock.sendall(b"name\n")
        assert until_end(sock).startswith(b"pod-")


def test_target_port_may_be_the_service_port(served: Stage) -> None:
    served.write("same", service("same", "10.96.0.13", {"http": TARGET}), endpoints("same", [1]))
    served.await_answers(1, address=("10.96.0.13", TARGET))
