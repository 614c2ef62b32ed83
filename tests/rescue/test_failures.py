"""Failed endpoints of the kernel path, with real packets: no client notices one."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator

import pytest

from kubeproxy.model import Family
from tests.rescue.stage import HANG_S, POD_PORT, PODS, Stage, stage, wait_for

pytestmark = pytest.mark.netns

MANY = 60
"""Connections: that none of them meets one endpoint of four by chance happens once in 30 million times."""
FEW = 3
"""Clients that may have to repeat a SYN, on a machine with other work."""


@pytest.fixture(params=list(Family), ids=str)
def made(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(request.param) as made:
        yield made


@pytest.fixture
def ipv4() -> Iterator[Stage]:
    with stage(Family.IPV4) as made:
        yield made


@pytest.mark.parametrize("place", ["client", "node", "pod"])
def test_one_refuses(made: Stage, place: str) -> None:
    made.stop(1)
    answers, repeated = made.ask_often(made.hosts()[place], MANY)
    assert set(answers) == {"pod0", "pod2", "pod3"}
    assert repeated <= FEW
    wait_for(lambda: [each[1:] for each in made.ejected] == [[made.target(1), "refused"]], "it is ejected")
    made.serve(1)
    wait_for(lambda: made.ejected == [], "it is back")
    answers, _ = made.ask_often(made.hosts()[place], MANY)
    assert answers["pod1"]


@pytest.mark.parametrize("place", ["client", "node", "pod"])
def test_one_is_silent(made: Stage, place: str) -> None:
    made.filter(1, "drop")
    answers, repeated = made.ask_often(made.hosts()[place], MANY)
    assert set(answers) == {"pod0", "pod2", "pod3"}
    assert repeated <= FEW
    assert made.noticed["silent"]
    made.unfilter(1)
    wait_for(lambda: made.ejected == [], "it is back")


@pytest.mark.parametrize("place", ["client", "node"])
def test_one_is_unreachable(made: Stage, place: str) -> None:
    made.filter(1, "reject with icmpx admin-prohibited")
    answers, repeated = made.ask_often(made.hosts()[place], MANY)
    assert set(answers) == {"pod0", "pod2", "pod3"}
    assert repeated <= FEW
    # The kernel limits its errors to one in a second.
    wait_for(lambda: made.noticed["unreachable"] + made.noticed["silent"] > 0, "it is ejected")


@pytest.mark.parametrize("family", list(Family), ids=str)
@pytest.mark.parametrize("place", ["client", "node", "client, node port"])
@pytest.mark.parametrize("verdict", ["refused", "silent"])
def test_a_client_leaves_its_endpoint_when_that_fails(family: Family, place: str, verdict: str) -> None:
    """Session affinity leads it to one endpoint, so its next SYN meets that one for sure."""
    with stage(family, affinity=True) as made:
        host = made.network.node if place == "node" else made.network.client
        to = made.node_port if "port" in place else made.service
        (first,), _ = made.ask_often(host, 10, to)
        pod = int(first.removeprefix("pod"))
        if verdict == "refused":
            made.stop(pod)
        else:
            made.filter(pod, "drop")
            # The kernel's times are coarse: a question at the time of the last answer counts as answered.
            time.sleep(0.05)
        answers, repeated = made.ask_often(host, 10, to)
        assert len(answers) == 1
        assert answers.keys() < {"pod0", "pod1", "pod2", "pod3"} - {first}
        assert repeated == 0, "the rescue repeated the SYN, not the client"


@pytest.mark.parametrize("verdict", ["refused", "silent"])
def test_through_a_node_port_and_masqueraded(made: Stage, verdict: str) -> None:
    if verdict == "refused":
        made.stop(1)
    else:
        made.filter(1, "drop")
    answers, repeated = made.ask_often(made.network.client, MANY, made.node_port)
    assert set(answers) == {"pod0", "pod2", "pod3"}
    assert repeated <= FEW
    wait_for(lambda: made.noticed[verdict] > 0, "it is ejected")


def test_three_of_four_fail(ipv4: Stage) -> None:
    ipv4.stop(0)
    ipv4.filter(1, "drop")
    ipv4.stop(2)
    answers, _ = ipv4.ask_often(ipv4.network.client, MANY)
    assert set(answers) == {"pod3"}


def test_a_pod_that_only_the_node_reaches_does_not_flap(ipv4: Stage) -> None:
    """A network policy lets the node in and not the client: the dial succeeds, and the client's SYN stays silent."""
    ipv4.filter(1, "ip saddr != 10.3.1.1 drop")
    began = time.monotonic()
    answers, asked = set[str](), 0
    while time.monotonic() - began < 5:
        answers.add(ipv4.ask(ipv4.network.client).text)
        asked += 1
    assert answers == {"pod0", "pod2", "pod3"}
    # 0.1, 0.2, 0.4 … s: without longer and longer ejections it would be about one in 0.4 s.
    assert 1 <= ipv4.noticed["silent"] <= 6


def test_a_pod_that_refuses_the_client_alone_stays(ipv4: Stage) -> None:
    """Also what forged resets look like: a dial contradicts them, and the endpoint is not taken away."""
    ipv4.filter(1, "ip saddr 10.2.0.2 tcp flags syn reject with tcp reset")
    answers, repeated = ipv4.ask_often(ipv4.network.client, MANY)
    assert set(answers) == {"pod0", "pod2", "pod3"}
    assert repeated <= FEW
    assert not ipv4.noticed
    answers, _ = ipv4.ask_often(ipv4.network.node, MANY)
    assert answers["pod1"], "other clients still get it"


def test_a_running_connection_that_is_reset_sees_it(ipv4: Stage) -> None:
    for pod in range(1, PODS):
        ipv4.stop(pod)
        wait_for(lambda: ipv4.ask(ipv4.network.client).text == "pod0", "only the first is left")
    ipv4.stop(0)
    with ipv4.network.pods[0].listen((ipv4.addresses[0], POD_PORT)) as listener:
        wait_for(lambda: ipv4.target(0) not in [each[1] for each in ipv4.ejected], "it is not ejected")
        with ipv4.network.client.connect(ipv4.service, timeout=HANG_S) as client:
            server, _ = listener.accept()
            while server.getpeername() != client.getsockname():  # a dial of the guardian's came first
                server.close()
                server, _ = listener.accept()
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            server.close()
            with pytest.raises(ConnectionResetError):
                client.recv(1)


@pytest.mark.parametrize("family", list(Family), ids=str)
@pytest.mark.parametrize("place", ["client", "node", "client, node port"])
def test_datagrams_to_a_closed_port(family: Family, place: str) -> None:
    with stage(family, kinds=(socket.SOCK_STREAM, socket.SOCK_DGRAM)) as made:
        clients = []
        try:
            for _ in range(24):
                client = made.hosts()[place.partition(",")[0]].make_socket(made.inet, socket.SOCK_DGRAM)
                clients.append(client)
                client.settimeout(HANG_S)
                client.connect(made.node_port if "node port" in place else made.service)
                client.send(b"first")
                assert client.recv(100).endswith(b"first")
            made.stop(1, socket.SOCK_DGRAM)
            for number, client in enumerate(clients):
                text = b"%d" % number
                client.send(text)
                answer = client.recv(100)
                assert answer.endswith(text)
                assert not answer.startswith(b"pod1")
            wait_for(lambda: made.noticed["unreachable"] == 1, "it is noticed")
            wait_for(lambda: made.ejected == [], "it is back, by time")
        finally:
            for client in clients:
                client.close()


@pytest.mark.long
def test_the_process_is_killed(ipv4: Stage) -> None:
    pid = ipv4.signal_rescue(signal.SIGKILL)
    wait_for(lambda: ipv4.rescue_pid() not in (None, pid) and ipv4.alive(), "another one works")
    ipv4.stop(1)
    answers, _ = ipv4.ask_often(ipv4.network.client, MANY)
    assert set(answers) == {"pod0", "pod2", "pod3"}


@pytest.mark.long
def test_the_process_is_stopped(ipv4: Stage) -> None:
    """The rules become inert, and the node behaves as with kube-proxy."""
    ipv4.signal_rescue(signal.SIGSTOP)
    wait_for(lambda: not ipv4.alive(), "the rules are inert")
    ipv4.stop(1)
    answers, _ = ipv4.ask_often(ipv4.network.client, MANY)
    assert set(answers) == {"pod0", "pod2", "pod3", "ConnectionRefusedError"}
    ipv4.signal_rescue(signal.SIGCONT)
    wait_for(ipv4.alive, "the rules work again")
    answers, _ = ipv4.ask_often(ipv4.network.client, MANY)
    assert set(answers) == {"pod0", "pod2", "pod3"}


@pytest.mark.long
def test_the_control_process_is_stopped(ipv4: Stage) -> None:
    ipv4.guardian.send_signal(signal.SIGSTOP)
    wait_for(lambda: not ipv4.alive(), "the rules are inert")
    ipv4.stop(1)
    answers, _ = ipv4.ask_often(ipv4.network.client, MANY)
    assert set(answers) == {"pod0", "pod2", "pod3", "ConnectionRefusedError"}
    ipv4.guardian.send_signal(signal.SIGCONT)
    wait_for(ipv4.alive, "the rules work again")
    answers, _ = ipv4.ask_often(ipv4.network.client, MANY)
    assert set(answers) == {"pod0", "pod2", "pod3"}


@pytest.mark.long
def test_everything_is_killed(ipv4: Stage) -> None:
    """The process lives on until the rules are inert, and no longer."""
    pid = ipv4.rescue_pid()
    ipv4.guardian.kill()
    ipv4.stop(1)
    answers, _ = ipv4.ask_often(ipv4.network.client, 20)
    assert set(answers) <= {"pod0", "pod2", "pod3"}
    wait_for(lambda: not ipv4.alive(), "the rules are inert")
    answers, _ = ipv4.ask_often(ipv4.network.client, MANY)
    assert set(answers) == {"pod0", "pod2", "pod3", "ConnectionRefusedError"}
    wait_for(lambda: not _lives(pid), "the process has ended")


def test_the_process_has_no_privilege(ipv4: Stage) -> None:
    with open(f"/proc/{ipv4.rescue_pid()}/status") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines())
    assert {status[key] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


def _lives(pid: int | None) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"rescue" in file.read()
    except OSError:
        return False
