"""Services that cannot be served as a whole: the daemon reports it, and serves the rest of them and all others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.lab import Daemon, get
from tests.support.lab.daemon import KUBEPROXY
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import PATHS, for_a_module
from tests.system.e2e.full_services import (
    CELLS,
    CLIENT,
    FAMILIES,
    NODE,
    PROTOCOLS,
    V4,
    V6,
    Whole,
    answers,
    await_all,
    hear,
    heard,
    pod,
    rules,
    start_mirrors,
)
from tests.system.e2e.stage import KERNEL, QUICK, Object, Stage, await_rescue, until

pytestmark = pytest.mark.netns

GOOD, FIRST, SECOND = Whole(1), Whole(2), Whole(3)
AT_NODE = [cell for cell in CELLS if cell.kind in ("node port", "localhost")]
NOT_AT_NODE = [cell for cell in CELLS if cell not in AT_NODE]


@pytest.fixture(scope="module", params=PATHS)
def daemon(request: pytest.FixtureRequest, theatre: Stage) -> Iterator[Daemon]:
    """A daemon for all tests with an adapter."""
    start_mirrors(theatre)
    kernel_state.forget_connections(theatre.node)
    theatre.write(GOOD.name, *GOOD.objects(0))
    # `never`: otherwise the rules for the return path would stay for as long as the daemon runs.
    daemon = theatre.daemon(QUICK, "--preserve-client-address=never", netfilter=request.param)
    if request.param == KERNEL:
        await_rescue(daemon)
    yield from for_a_module(theatre, daemon)


@pytest.fixture
def served(theatre: Stage, daemon: Daemon) -> Iterator[Stage]:
    """A good Service that answers before, during and after the test."""
    kernel_state.forget_connections(theatre.node)
    await_all(theatre, GOOD, 0)
    before = rules(theatre.node)
    yield theatre
    assert all(answers(theatre, GOOD, timeout_s=5.0).values())
    for path in theatre.manifests.iterdir():
        if path.stem != GOOD.name:
            path.unlink()
    until(lambda: rules(theatre.node) == before, "only the good one is left")


def node_port(service: Object, number: int) -> Object:
    """The Service with this node port, for TCP and UDP."""
    for port in service["spec"]["ports"]:
        port["nodePort"] = number
    return service


def await_warning(daemon: Daemon, *words: str) -> None:
    """Wait for a warning that contains all these words."""

    def found() -> bool:
        return any(all(word in line for word in (" warning ", *words)) for line in daemon.log().splitlines())

    try:
        until(found, f"a warning of {words}")
    except AssertionError:
        raise AssertionError(f"no warning of {words}:\n{daemon.log()}") from None


def test_two_services_want_the_same_node_port(served: Stage, daemon: Daemon) -> None:
    served.write(FIRST.name, *FIRST.objects(2))
    await_all(served, FIRST, 2)
    service, *slices = SECOND.objects(3)
    served.write(SECOND.name, node_port(service, FIRST.node_port), *slices)
    await_all(served, SECOND, 3, cells=NOT_AT_NODE)
    await_warning(daemon, SECOND.name, FIRST.name, str(FIRST.node_port))
    assert {said.pod for said in answers(served, FIRST).values() if said} == {"pod-2"}
    served.remove(FIRST.name)
    await_all(served, FIRST, 3, cells=AT_NODE)
    until(
        lambda: f"service problem resolved service=default/{SECOND.name}" in daemon.log(),
        "the log reports that the problem is over",
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_node_port_that_another_process_has(served: Stage, daemon: Daemon, family: int, protocol: str) -> None:
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    with served.node.make_socket(socket.AF_INET6 if family == V6 else socket.AF_INET, kind) as theirs:
        theirs.settimeout(5)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == V6:
            theirs.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # An earlier test may have closed the port a moment ago.
        until(lambda: _binds(theirs, ("", FIRST.node_port)), "the port is free")
        if protocol == "TCP":
            theirs.listen()
        before = daemon.log().count("another process")
        served.write(FIRST.name, *FIRST.objects(2))
        others = [cell for cell in CELLS if cell in NOT_AT_NODE or (cell.family, cell.protocol) != (family, protocol)]
        await_all(served, FIRST, 2, cells=others)
        until(lambda: daemon.log().count("another process") > before, "the log reports the other process")
        await_warning(daemon, FIRST.name, str(FIRST.node_port), protocol)
        # Clients still reach the process that has the port.
        with ExitStack() as held:
            place = (NODE[family], FIRST.node_port)
            if protocol == "TCP":
                held.enter_context(served.client.connect(place))
                peer = held.enter_context(theirs.accept()[0]).getpeername()[0]
            else:
                sock = held.enter_context(served.client.make_socket(theirs.family, kind))
                sock.sendto(b"hello", place)
                peer = theirs.recvfrom(10)[1][0]
            assert peer == CLIENT[family]
    await_all(served, FIRST, 2)


def test_an_external_address_that_is_the_nodes_own(served: Stage, daemon: Daemon) -> None:
    own = [NODE[V4], NODE[V6]]
    served.write(FIRST.name, *FIRST.objects(2, externalIPs=own))
    places = [(host, (NODE[family], 80), each) for host in served.asking for family in FAMILIES for each in PROTOCOLS]
    until(lambda: all(heard(*place) for place in places), "served")
    for place in places:
        assert hear(*place).pod == "pod-2"
    assert not _is_free(served, (NODE[V4], 80))
    # Other ports of that address still belong to the node.
    with served.node.listen((NODE[V4], 8888)) as theirs, served.client.connect((NODE[V4], 8888)):
        theirs.accept()[0].close()
    served.remove(FIRST.name)
    until(lambda: not any(heard(*place) for place in places), "gone")
    # The port is free again after the Service.
    until(lambda: _is_free(served, (NODE[V4], 80)), "free")


def _is_free(stage: Stage, place: tuple[str, int]) -> bool:
    with stage.node.make_socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _binds(sock, place)


def _binds(sock: socket.socket, place: tuple[str, int]) -> bool:
    try:
        sock.bind(place)
    except OSError:
        return False
    return True


def test_an_external_address_of_the_node_where_a_process_listens(served: Stage, daemon: Daemon) -> None:
    with served.node.listen((NODE[V4], 80)) as theirs:
        theirs.settimeout(5)
        served.write(FIRST.name, *FIRST.objects(2, externalIPs=[NODE[V4]]))
        await_all(served, FIRST, 2, cells=[cell for cell in CELLS if cell.kind != "external IP"])
        await_warning(daemon, FIRST.name, f"{NODE[V4]}:80", "was seen to have that port")
        with served.client.connect((NODE[V4], 80)):
            accepted, peer = theirs.accept()
            accepted.close()
            assert peer[0] == CLIENT[V4]


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"externalIPs": ["300.1.2.3", "192.0.2.2"]}, "300.1.2.3"),
        ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": -5}}}, 'reason="-5;'),
        ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86_401}}}, "86401"),
        ({"sessionAffinity": "Sometimes"}, "Sometimes"),
        ({"internalTrafficPolicy": "Sometimes"}, "Sometimes"),
        ({"externalTrafficPolicy": "Never"}, "Never"),
        ({"healthCheckNodePort": 70_000, "externalTrafficPolicy": "Local"}, "70000"),
    ],
    ids=str,
)
def test_values_that_an_api_server_rejects_are_reported(
    served: Stage, daemon: Daemon, spec: dict[str, Any], word: str
) -> None:
    served.write(FIRST.name, *FIRST.objects(2, **spec))
    await_warning(daemon, FIRST.name, word)
    await_all(served, FIRST, 2, cells=[cell for cell in CELLS if cell.kind == "cluster IP"])


@pytest.mark.parametrize("number", [-1, 70_000])
def test_a_node_port_that_is_no_port(served: Stage, daemon: Daemon, number: int) -> None:
    service, *slices = FIRST.objects(2)
    served.write(FIRST.name, node_port(service, number), *slices)
    await_warning(daemon, FIRST.name, f'reason="{number};')
    await_all(served, FIRST, 2, cells=NOT_AT_NODE)


def test_a_health_check_node_port_that_is_taken(served: Stage, daemon: Daemon) -> None:
    local: dict[str, Any] = {"externalTrafficPolicy": "Local"}
    with served.node.listen((NODE[V4], 32_200)):
        served.write(FIRST.name, *FIRST.objects(pod(2), healthCheckNodePort=32_200, **local))
        await_warning(daemon, FIRST.name, "32200")
        await_all(served, FIRST, 2, cells=[cell for cell in CELLS if cell.kind == "cluster IP"])
    served.write(SECOND.name, *SECOND.objects(pod(3), healthCheckNodePort=32_200, **local))
    await_warning(daemon, SECOND.name, "32200", FIRST.name)

    def answered() -> bool:
        try:
            return FIRST.name in get(served.client, (NODE[V4], 32_200)).body
        except OSError:
            return False

    until(answered, "it was tried again")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--udp-timeout=-1s", ("--udp-timeout", "-1s")),
        ("--nodeport-addresses=house", ("--nodeport-addresses", "house")),
        ("--nodeport-addresses=10.0.0.0/64", ("--nodeport-addresses", "10.0.0.0/64")),
        ("--preserve-client-address=always", ("--preserve-client-address", "always")),
        ("--cluster-cidr=everywhere", ("--cluster-cidr", "everywhere")),
        ("--udp-sessions=0", ("--udp-sessions", "0")),
        ("--node-addresses=home", ("--node-addresses", "home")),
        ("--conntrack-udp-timeout=-5s", ("--conntrack-udp-timeout", "-5s")),
    ],
)
def test_options_that_are_wrong(theatre: Stage, option: str, words: tuple[str, ...]) -> None:
    done = theatre.node.run([KUBEPROXY, "run", f"--manifests={theatre.manifests}", option], check=False)
    assert done.returncode == 64, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr
