"""Restart, upgrade and crash without failed connections.

There are 300 new connections a second and 50 long ones during each kind of restart.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.support.lab import Daemon, Network
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import ADAPTERS, PATHS
from tests.system.e2e.scripted_owner import incumbent
from tests.system.e2e.stage import (
    KERNEL,
    QUICK,
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
from tests.system.e2e.steady_clients import Crowd
from tests.system.e2e.test_takeover_variants import VIP_V6, in_v6, start_v6

pytestmark = pytest.mark.netns

each_path = pytest.mark.parametrize("netfilter", PATHS)
GRACE = "--shutdown-grace=30s"


NO_API_SERVER = """\
apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters: [{name: x, cluster: {server: "http://10.2.0.2:6443"}}]
users: [{name: x, user: {}}]
"""
"""A kubeconfig with an address where no server listens."""


def serve(stage: Stage, *options: str, netfilter: str) -> Daemon:
    """A daemon, and a Service with three endpoints that answers."""
    stage.write_service([0, 1, 2])
    daemon = stage.daemon(QUICK, GRACE, *options, netfilter=netfilter)
    stage.await_answers(0, 1, 2)
    return daemon


def unhurt(crowd: Crowd, *, long: bool = True) -> None:
    """No client had a failure."""
    assert crowd.report.answered > 100
    assert crowd.report.failures == []
    if long:
        assert crowd.report.long_broken == []


def linger(seconds: float = 1.0) -> None:
    """Give traffic time to meet the change; there is no condition to wait for."""
    time.sleep(seconds)


@each_path
@pytest.mark.parametrize("workers", ["0", "2"])
def test_takeover(stage: Stage, netfilter: str, workers: str) -> None:
    """A new instance takes over rules, node ports, health and metrics ports, and between workers the connections."""
    first = serve(stage, f"--workers={workers}", "--shutdown-grace=90s", netfilter=netfilter)
    port = kernel_state.redirects(stage.node)[VIP, 80]
    with Crowd(stage.client, (VIP, 80)) as crowd:
        linger()
        second = stage.daemon(QUICK, GRACE, f"--workers={workers}", netfilter=netfilter)
        until(lambda: kernel_state.redirects(stage.node)[VIP, 80] != port, "the rules lead to the new instance")
        until(lambda: "new instance has taken over" in first.log(), "the first instance has handed over")
        if workers != "0":
            assert first.wait(40) == 0, "it waits for no connection, however long its grace period is"
        linger()
    unhurt(crowd)
    crowd.show(f"takeover ({netfilter}, {workers} workers)")
    assert first.wait(40) == 0
    assert second.process.poll() is None
    assert second.get("/livez").status == 200
    assert "cut off" not in first.log()
    stage.await_answers(0, 1, 2)


@pytest.mark.parametrize("netfilter", ADAPTERS)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_new_instance_opens_no_listener_before_the_owner_answers(stage: Stage, netfilter: str, workers: str) -> None:
    """It opens listeners after the owner's answer. It switches the rules after the owner has stopped its changes."""
    stage.write_service([0, 1, 2])
    with incumbent(stage.node, busy=3) as owner:
        stage.daemon(QUICK, f"--workers={workers}", netfilter=netfilter)
        until(lambda: "take" in owner.words, "it takes over")
    *asked, hold, take = (sight for sight in owner.sights if sight.word != "recall")
    assert [(sight.word, sight.listeners, sight.rules) for sight in asked] == [("hello", 0, 0)] * 4
    assert (hold.word, hold.listeners > 0, hold.rules) == ("hold", True, 0)
    assert (take.word, take.rules > 0) == ("take", True)
    stage.await_answers(0, 1, 2)


def test_a_new_instance_stopped_before_its_takeover(stage: Stage, tmp_path: Path) -> None:
    """The rules belong to the running instance, and stay."""
    first = serve(stage, netfilter="nftables")
    rules = kernel_state.ours(stage.node)
    no_endpoint = tmp_path / "kubeconfig"
    no_endpoint.write_text(NO_API_SERVER)
    with Crowd(stage.client, (VIP, 80), rate=100, long=5) as crowd:
        second = stage.daemon(QUICK, f"--kubeconfig={no_endpoint}", "--cleanup-on-exit", netfilter="nftables")
        until(lambda: "new instance connected" in first.log(), "it has come")
        until(lambda: "no API server yet" in second.log(), "it waits")
        assert second.terminate() == 0
        assert kernel_state.ours(stage.node) == rules
        until(lambda: "new instance left before takeover" in first.log(), "the first one goes on")
    unhurt(crowd)


def test_orphaned_workers_serve_until_the_lists_are_complete(stage: Stage, tmp_path: Path) -> None:
    """They have the lists of the unreachable API server.

    The new instance uses its incomplete lists only after they have ended.
    """
    first = serve(stage, "--workers=2", netfilter="nftables")
    no_endpoint = tmp_path / "kubeconfig"
    no_endpoint.write_text(NO_API_SERVER)
    second = stage.daemon(QUICK, f"--kubeconfig={no_endpoint}", "--workers=1", netfilter="nftables")
    until(lambda: "manifests loaded" in second.log(), "it knows one of its sources")
    children = Path(f"/proc/{first.process.pid}/task/{first.process.pid}/children").read_text().split()
    port = kernel_state.redirects(stage.node)[VIP, 80]
    first.process.kill()
    first.process.wait()
    until(lambda: second.log().count("orphaned worker keeps serving") == 2, "orphans have reported")
    stage.await_answers(0, 1, 2)
    assert kernel_state.redirects(stage.node)[VIP, 80] == port
    assert "earlier instances have ended" not in second.log()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    until(lambda: "earlier instances have ended" in second.log(), "it notices")
    until(lambda: "still_listing=kubernetes" in second.log(), "it serves what it knows")
    stage.await_answers(0, 1, 2)


@each_path
def test_stop_and_start(stage: Stage, netfilter: str) -> None:
    """Without a new instance clients wait for the next process and get no refusal. The kernel path waits for none."""
    first = serve(stage, "--shutdown-grace=1s", netfilter=netfilter)
    with Crowd(stage.client, (VIP, 80), long=0) as far, Crowd(stage.node, (VIP, 80), rate=50, long=0) as near:
        linger()
        assert first.terminate() == 0
        assert silent(stage.client, (VIP, 80)) is (netfilter != KERNEL)
        stage.daemon(QUICK, netfilter=netfilter)
        linger(2.0)
    for crowd, whence in ((far, "a client"), (near, "the node itself")):
        unhurt(crowd)
        crowd.show(f"stop and start, from {whence} ({netfilter})")
    assert far.report.delays_s or netfilter == KERNEL


@each_path
def test_everything_killed(stage: Stage, netfilter: str) -> None:
    """No rule of a killed instance leads to the new process on its port. The next start repairs everything.

    The kernel path leads clients to the endpoints all the time."""
    first = serve(stage, "--workers=0", netfilter=netfilter)
    port = kernel_state.redirects(stage.node)[VIP, 80]
    first.process.kill()
    first.process.wait()
    with stage.node.listen(("0.0.0.0", port)):
        for host in stage.asking:
            if netfilter == KERNEL:
                assert set(ask_often(host, (VIP, 80), 40)) == {"pod-0", "pod-1", "pod-2"}
            else:
                assert silent(host, (VIP, 80)), "the port belongs to another process"
        stage.daemon(QUICK, netfilter=netfilter)
        stage.await_answers(0, 1, 2)


@each_path
def test_clients_wait_when_everything_was_killed(stage: Stage, netfilter: str) -> None:
    """Clients of other hosts and of the node itself wait for the next start, and it refuses none that has waited."""
    first = serve(stage, "--workers=0", netfilter=netfilter)
    with (
        Crowd(stage.client, (VIP, 80), rate=50, long=0) as far,
        Crowd(stage.node, (VIP, 80), rate=50, long=0) as near,
    ):
        linger()
        first.process.kill()
        first.process.wait()
        assert silent(stage.node, (VIP, 80)) is (netfilter != KERNEL)
        stage.daemon(QUICK, netfilter=netfilter)
        stage.await_answers(0, 1, 2)
        linger(2.0)
    for crowd in (far, near):
        assert crowd.report.answered > 50
        assert [it for it in crowd.report.failures if "Refused" in it and waited_s(it) > 0.2] == []


def waited_s(failure: str) -> float:
    """How long a client of a crowd had waited when it failed."""
    began, ended = failure.partition(": ")[0].split(" to ")
    return float(ended) - float(began)


@each_path
def test_the_control_process_is_killed(stage: Stage, netfilter: str) -> None:
    """Its workers serve until the rules of the new instance are in force. Then their connections move, and they end,
    however long their grace period is."""
    first = serve(stage, "--workers=2", "--shutdown-grace=90s", netfilter=netfilter)
    with Crowd(stage.client, (VIP, 80)) as crowd:
        linger()
        first.process.kill()
        first.process.wait()
        linger()
        second = stage.daemon(QUICK, GRACE, "--workers=2", netfilter=netfilter)
        until(lambda: "orphaned worker keeps serving" in second.log(), "orphans have reported")
        until(lambda: second.log().count("orphaned worker has ended") == 2, "the orphans have ended")
        linger()
    unhurt(crowd)
    crowd.show(f"control process killed ({netfilter})")
    stage.await_answers(0, 1, 2)


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_every_kind_of_connection_survives_two_crashes(stage: Stage, ipv6: bool) -> None:
    """Connections that are idle, in bulk and half-closed; each has all its bytes."""
    options = (QUICK, "--workers=2", "--shutdown-grace=90s")
    address = (VIP_V6 if ipv6 else VIP, 80)
    web, listed = service(), endpoints("web", [0])
    if ipv6:
        start_v6(stage, 1)
        web, listed = in_v6(service(), endpoints("web", [Network.pod_v6(0)]))
    stage.write("web", web, listed)
    daemon = stage.daemon(*options)
    until(lambda: not refused(stage.client, address), "the Service answers")
    over = threading.Event()

    def exchange_for_ever() -> int:
        for number in count(1):
            exchange(stage.client, address, 100 << 20, "crash")
            if over.is_set():
                return number
        raise AssertionError

    idle, half_closed = (stage.client.connect(address, timeout=60) for _ in range(2))
    with idle, half_closed, ThreadPoolExecutor(2) as pool:
        half_closed.sendall(b"drip 100 0.2\n")
        half_closed.shutdown(socket.SHUT_WR)
        bulk = [pool.submit(exchange_for_ever) for _ in range(2)]
        try:
            for _ in range(2):
                linger()
                daemon.process.kill()
                daemon.process.wait()
                daemon = stage.daemon(*options)
                until(partial(ended, daemon, 2), "the orphans have ended")
        finally:
            over.set()
        assert min(each.result(120) for each in bulk) > 0
        idle.sendall(b"name\n")
        assert idle.recv(100) == b"pod-0"
        assert half_closed.makefile("rb").read() == b"pod-0\n" * 100


def ended(daemon: Daemon, orphans: int) -> bool:
    """Whether a daemon has seen so many orphaned workers end."""
    return daemon.log().count("orphaned worker has ended") >= orphans


@each_path
def test_re_exec(stage: Stage, netfilter: str) -> None:
    """New code with the same process id: the connections move to its workers, and those of the old code end."""
    daemon = serve(stage, "--workers=2", "--shutdown-grace=90s", netfilter=netfilter)
    pid = daemon.process.pid
    with Crowd(stage.client, (VIP, 80)) as crowd:
        linger()
        daemon.process.send_signal(signal.SIGUSR2)
        until(lambda: daemon.log().count("kubeproxy starts") == 2, "it has begun anew")
        until(lambda: "orphaned worker keeps serving" in daemon.log(), "orphans have reported")
        until(lambda: daemon.log().count("orphaned worker has ended") == 2, "the orphans have ended")
        linger()
    unhurt(crowd)
    crowd.show(f"re-exec ({netfilter})")
    assert daemon.process.pid == pid
    assert daemon.process.poll() is None
    until(
        lambda: "defunct" not in stage.node.run(["ps", "--ppid", str(pid), "-o", "args="]).stdout, "no zombie remains"
    )
    stage.await_answers(0, 1, 2)
    assert daemon.terminate(40) == 0


def test_no_re_exec_with_code_that_refuses_the_configuration(stage: Stage, tmp_path: Path) -> None:
    """The daemon starts nothing before the new code has accepted the configuration."""
    file = tmp_path / "config.yaml"
    head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    file.write_text(f"{head}kubeproxy: {{workers: 1}}\n")
    daemon = serve(stage, f"--config={file}", netfilter="nftables")
    file.write_text(f"{head}kubeproxy: {{workers: many}}\n")
    daemon.process.send_signal(signal.SIGUSR2)
    until(lambda: "re-exec refused" in daemon.log(), "it refuses")
    assert "kubeproxy.workers: found" in daemon.log()
    stage.await_answers(0, 1, 2)


def test_without_a_packet_filter_several_run_side_by_side(stage: Stage) -> None:
    """No rules lead to them, so there is nothing to take over."""
    first = serve_no_service(stage, 10266, 10259)
    second = serve_no_service(stage, 10276, 10269)
    assert first.process.poll() is None
    assert first.terminate() == second.terminate() == 0
    assert "new instance" not in first.log()


def serve_no_service(stage: Stage, health: int, metrics: int) -> Daemon:
    """A daemon without rules, with its own HTTP ports."""
    return stage.daemon(
        "--shutdown-grace=1s", netfilter="none", healthz=("127.0.0.1", health), metrics=("127.0.0.1", metrics)
    )


def test_a_third_instance_gets_the_node_ports(stage: Stage) -> None:
    """The second instance is killed while the first one drains. The third has no connection to the first."""
    node_port = service(ports={"http": 80})
    node_port["spec"]["type"] = "NodePort"
    node_port["spec"]["ports"][0]["nodePort"] = 30080
    stage.write("web", node_port, endpoints("web", [0, 1]))
    first = stage.daemon(QUICK, GRACE)
    stage.await_answers(0, 1)
    with stage.client.connect((VIP, 80)) as held:
        held.sendall(b"echo\nbefore")
        assert held.recv(100) == b"before"
        second = stage.daemon(QUICK, GRACE)
        until(lambda: "new instance has taken over" in first.log(), "the first instance has handed over")
        second.process.kill()
        second.process.wait()
        third = stage.daemon(QUICK, GRACE)
        stage.await_answers(0, 1)
        assert "is not served" not in third.log()
        assert ask(stage.client, ("10.2.0.1", 30080)).startswith("pod-")
        assert first.process.poll() is None
        held.sendall(b"after")
        assert held.recv(100) == b"after"
