"""Dead endpoints on the kernel path, with the real daemon: no client meets one, whatever happens to the daemon."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from kubeproxy.model import Address, Target
from kubeproxy.rescue.kernel_path_ejections import UDP_FIRST_S
from tests.support.lab import Daemon, Host
from tests.system.e2e import kernel_state
from tests.system.e2e.stage import QUICK, TARGET, VIP, Stage, ask, endpoints, refused, service, until

pytestmark = pytest.mark.netns

KERNEL = (QUICK, "--data-path", "kernel", "--workers", "1")
PODS = (0, 1, 2, 3)
REFUSE, DROP = "reject with tcp reset", "drop"
WAITING = 150
REPEATED_S = 1.0
"""A kernel repeats a first packet after so long: then some of them come at any moment of a start."""
MANY = 60
"""Connections: that none of them meets one endpoint of four by chance happens once in 30 million times."""


@contextmanager
def dead(stage: Stage, pod: int, verdict: str) -> Iterator[None]:
    """A pod that refuses or is silent; connections that it has accepted go on."""
    rule = f"add rule inet fault c tcp dport {TARGET} tcp flags & (syn | ack) == syn {verdict}"
    host = stage.network.pods[pod]
    host.run(["nft", f"add table inet fault; add chain inet fault c {{ type filter hook input priority 0; }}; {rule}"])
    try:
        yield
    finally:
        host.run(["nft", "delete table inet fault"])


@contextmanager
def clients(*hosts: Host) -> Iterator[Counter[str]]:
    """Clients that ask all the time, and what they get."""
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def run(host: Host) -> None:
        while not stop.is_set():
            try:
                answer = ask(host, (VIP, 80))
            except OSError as error:
                answer = type(error).__name__
            seen[answer] += 1
            stop.wait(0.005)

    threads = [threading.Thread(target=run, args=(host,)) for host in hosts for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def alive(node: Host) -> bool:
    """Whether the rescue rules work."""
    listing = node.run(["nft", "list", "set", "inet", "kubeproxy", "alive"], check=False).stdout
    return "tcp" in listing


def spread_over(node: Host, *, slots: str = "tcp_slots4") -> set[Target]:
    """The endpoints to which the kernel leads clients of the Service."""
    listing = node.run(["nft", "list", "map", "inet", "kubeproxy", slots], check=False).stdout
    return {Target(Address(f"10.3.{pod}.2"), TARGET) for pod in PODS if f": 10.3.{pod}.2 . {TARGET}" in listing}


def endpoints_of(*pods: int) -> set[Target]:
    return {Target(Address(f"10.3.{pod}.2"), TARGET) for pod in pods}


def rescue_pids(daemon: Daemon) -> set[int]:
    """The rescue processes of a daemon's process group."""
    found = subprocess.run(
        ["pgrep", "-g", str(daemon.process.pid), "-f", "kubeproxy.rescue.main"], capture_output=True, text=True
    )
    return {int(pid) for pid in found.stdout.split()}


def start(stage: Stage, *options: str) -> Daemon:
    """A daemon with one Service of four pods on the kernel path, and its rescue at work."""
    stage.write_service(PODS)
    daemon = stage.daemon(*(options or KERNEL))
    until(lambda: spread_over(stage.node) == endpoints_of(*PODS), "all pods have slots")
    until(lambda: alive(stage.node), "the rescue works")
    return daemon


def names(*pods: int) -> set[str]:
    return {f"pod-{pod}" for pod in pods}


def test_a_start_leads_no_client_to_a_dead_endpoint(stage: Stage) -> None:
    """After the stop of a daemon whose workers serve, clients repeat their first packets all through the next start.

    What the kernel path leads while no daemon runs is as under kube-proxy, so the first one may lead nothing by it."""
    stage.write_service(PODS)
    assert stage.daemon(*KERNEL, "--scheduler=least-connections").terminate() == 0
    with ExitStack() as stack:
        stack.enter_context(dead(stage, 1, REFUSE))
        stack.enter_context(dead(stage, 2, REFUSE))
        waiting = [stack.enter_context(stage.client.make_socket()) for _ in range(WAITING)]

        def connect() -> None:
            for sock in waiting:
                sock.setblocking(False)
                assert sock.connect_ex((VIP, 80)) == errno.EINPROGRESS
                time.sleep(REPEATED_S / WAITING)

        connecting = threading.Thread(target=connect)
        connecting.start()
        stage.daemon(*KERNEL)
        connecting.join()
        for sock in waiting:
            sock.settimeout(20)
            sock.sendall(b"name\n")
            assert sock.recv(100).decode() in names(*PODS) - names(1, 2)


def led_to(node: Host, port: int) -> int:
    """The pod to which the kernel has led a client's port."""
    listing = node.run(["conntrack", "-L", "-p", "tcp", "--orig-dst", VIP, "--orig-port-src", str(port)]).stdout
    return next(pod for pod in PODS if f"src=10.3.{pod}.2 " in listing)


def test_the_port_of_a_connection_that_was_reset_is_led_anew(stage: Stage) -> None:
    """The client's kernel may use it again at once, and the endpoint may be dead by then."""
    start(stage)
    for host in stage.asking:
        with host.make_socket() as first:
            first.settimeout(10)
            first.connect((VIP, 80))
            own, port = first.getsockname()
            pod = led_to(stage.node, port)
            first.sendall(b"reset\n")
            assert first.recv(100) == b"half a"
            with pytest.raises(ConnectionResetError):
                first.recv(100)
        with dead(stage, pod, REFUSE), host.make_socket() as again:
            again.settimeout(10)
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind((own, port))
            again.connect((VIP, 80))
            again.sendall(b"name\n")
            assert again.recv(100).decode() in names(*PODS) - names(pod)


@pytest.mark.parametrize("verdict", [REFUSE, DROP], ids=["refuses", "silent"])
def test_no_client_meets_a_dead_endpoint(stage: Stage, verdict: str) -> None:
    daemon = start(stage)
    with clients(*stage.asking) as seen:
        until(lambda: set(seen) == names(*PODS), "all pods answer")
        with dead(stage, 1, verdict):
            until(lambda: spread_over(stage.node) == endpoints_of(0, 2, 3), "it has no slots")
            before = seen["pod-1"]
            until(lambda: seen.total() > MANY, "clients are served")
            assert seen["pod-1"] == before
        until(lambda: spread_over(stage.node) == endpoints_of(*PODS), "it is back")
    assert set(seen) == names(*PODS)
    assert " error " not in daemon.log(), daemon.log()


LOSSES = {
    "unreachable": ((), "route add unreachable 10.3.1.0/30", ("route del unreachable 10.3.1.0/30",)),
    "blackhole": ((), "route add blackhole 10.3.1.0/30", ("route del blackhole 10.3.1.0/30",)),
    "deleted": (
        ("route add blackhole 10.3.1.0/30", "route add 10.3.1.2/32 dev pod1"),
        "route del 10.3.1.2/32",
        ("route del blackhole 10.3.1.0/30",),
    ),
    # The kernel has no notification for the route.
    "with its link": (
        ("route add blackhole 10.3.0.0/16",),
        "link set pod1 down",
        ("link set pod1 up", "addr replace fd00:3:1::1/64 dev pod1 nodad", "route del blackhole 10.3.0.0/16"),
    ),
}
"""What is there before, how the route is lost, and what brings it back."""


@pytest.mark.parametrize("loss", LOSSES)
def test_an_endpoint_that_loses_its_route_gets_no_clients(stage: Stage, loss: str) -> None:
    """As when a pod ends under a network plugin that has a route for each: no rule sees what has no route."""
    before, lost, back = LOSSES[loss]
    stage.node.ip(*before)
    try:
        daemon = start(stage)
        stage.node.ip(lost)
        until(lambda: spread_over(stage.node) == endpoints_of(0, 2, 3), "it has no slots")
        with clients(*stage.asking) as seen:
            until(lambda: seen.total() > MANY, "clients are served")
        assert set(seen) == names(0, 2, 3)
    finally:
        stage.node.ip(*back)
    until(lambda: spread_over(stage.node) == endpoints_of(*PODS), "it is back")
    assert " error " not in daemon.log(), daemon.log()


def test_a_udp_endpoint_is_left_out_as_long_as_it_has_no_route(stage: Stage) -> None:
    """Nothing would answer a dial of it; so it is back when there is a route again, and not before."""
    made = service("dns", "10.96.0.53", {"dns": 53})
    made["spec"]["ports"][0]["protocol"] = "UDP"
    listed = endpoints("dns", PODS, ["dns"])
    listed["ports"] = [{"name": "dns", "port": TARGET, "protocol": "UDP"}]
    stage.write("dns", made, listed)
    start(stage)
    led = partial(spread_over, stage.node, slots="udp_slots4")
    assert led() == endpoints_of(*PODS)
    stage.node.ip("route add blackhole 10.3.1.0/30")
    try:
        until(lambda: led() == endpoints_of(0, 2, 3), "it has no slots")
        left_out = time.monotonic()
        while time.monotonic() < left_out + 3 * UDP_FIRST_S:
            assert led() == endpoints_of(0, 2, 3)
    finally:
        stage.node.ip("route del blackhole 10.3.1.0/30")
    until(lambda: led() == endpoints_of(*PODS), "it is back")


@pytest.mark.parametrize("verdict", [REFUSE, DROP], ids=["refuses", "silent"])
def test_all_endpoints_fail(stage: Stage, verdict: str) -> None:
    """The userspace listener takes over, or a silent endpoint stays: a client waits, and is served as soon as one is
    back."""
    start(stage)
    with clients(stage.client) as seen, dead(stage, 0, REFUSE), dead(stage, 1, REFUSE), dead(stage, 2, verdict):
        with dead(stage, 3, REFUSE):
            left = endpoints_of(2) if verdict == DROP else set()
            until(lambda: spread_over(stage.node) == left, "none is left but a silent one")
            seen.clear()
        # Those that were waiting when it came back are served, too.
        until(lambda: spread_over(stage.node) == endpoints_of(3), "it is back")
        until(lambda: seen["pod-3"] > MANY, "it answers")
        assert set(seen) == {"pod-3"}


def test_a_service_without_endpoints_refuses(stage: Stage) -> None:
    """A refusal of ours is not rescued."""
    start(stage)
    stage.write_service(())
    stage.await_refusal()
    assert refused(stage.node, (VIP, 80))


def test_a_takeover_keeps_the_rescue(stage: Stage) -> None:
    first = start(stage)
    (old,) = rescue_pids(first)
    with dead(stage, 1, REFUSE), clients(*stage.asking) as seen:
        until(lambda: spread_over(stage.node) == endpoints_of(0, 2, 3), "it has no slots")
        second = stage.daemon(*KERNEL)
        assert first.wait() == 0
        until(lambda: not _lives(old), "the process of the first has ended")
        until(lambda: alive(stage.node), "the rescue works")
        served = seen.total()
        until(lambda: seen.total() > served + MANY, "clients are served")
    assert set(seen) <= names(0, 2, 3)
    assert len(rescue_pids(second)) == 1


def test_another_program_in_the_same_process(stage: Stage) -> None:
    daemon = start(stage)
    (old,) = rescue_pids(daemon)
    with dead(stage, 1, REFUSE), clients(*stage.asking) as seen:
        until(lambda: spread_over(stage.node) == endpoints_of(0, 2, 3), "it has no slots")
        daemon.process.send_signal(signal.SIGUSR2)
        until(lambda: rescue_pids(daemon) - {old} and not _lives(old), "there is another process")
        until(lambda: alive(stage.node), "the rescue works")
        served = seen.total()
        until(lambda: seen.total() > served + MANY, "clients are served")
    assert set(seen) <= names(0, 2, 3)
    children = ["ps", "--ppid", str(daemon.process.pid), "-o", "args="]
    until(lambda: "defunct" not in stage.node.run(children).stdout, "the processes of the program before are reaped")


def test_the_control_process_is_killed(stage: Stage) -> None:
    """The rules become inert with it: then the node behaves as with kube-proxy, and the next instance rescues again."""
    daemon = start(stage)
    daemon.process.kill()
    until(lambda: not alive(stage.node), "the rules are inert")
    until(lambda: not rescue_pids(daemon), "the rescue process has ended")
    with dead(stage, 1, REFUSE):
        found = Counter(_ask(stage.client) for _ in range(MANY))
        assert set(found) == {*names(0, 2, 3), "ConnectionRefusedError"}
        stage.daemon(*KERNEL)
        until(lambda: alive(stage.node), "the rescue works")
        assert set(Counter(_ask(stage.client) for _ in range(MANY))) == names(0, 2, 3)


def test_the_setting_changes(stage: Stage, config: Path) -> None:
    """Without the kernel path there is no rescue process, and no rule of it."""
    text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nkubeproxy: {dataPath: %s}\n"
    config.write_text(text % "kernel")
    daemon = start(stage, QUICK, "--config", str(config))
    config.write_text(text % "userspace")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: not rescue_pids(daemon), "there is no rescue process")
    until(lambda: "rescue_" not in stage.node.run(["nft", "list", "table", "inet", "kubeproxy"]).stdout, "no rules")
    assert ask(stage.client, (VIP, 80)) in names(*PODS)
    config.write_text(text % "kernel")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: alive(stage.node), "the rescue works")


def test_nothing_is_left(stage: Stage) -> None:
    daemon = start(stage)
    (pid,) = rescue_pids(daemon)
    assert daemon.terminate() == 0
    assert not _lives(pid)
    daemon.cleanup()
    assert "kubeproxy" not in stage.node.run(["nft", "list", "ruleset"]).stdout
    kernel_state.forget_connections(stage.node)


def _ask(host: Host) -> str:
    try:
        return ask(host, (VIP, 80))
    except OSError as error:
        return type(error).__name__


def _lives(pid: int) -> bool:
    try:
        return "rescue" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def test_auto_follows_the_rescue(stage: Stage) -> None:
    """With `auto` clients take the kernel path only while dead endpoints are kept from them there."""
    daemon = start(stage, QUICK, "--data-path", "auto", "--workers", "1")
    (pid,) = rescue_pids(daemon)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: spread_over(stage.node) == set(), "the userspace path serves")
    with dead(stage, 1, REFUSE), clients(stage.client) as seen:
        until(lambda: seen.total() > MANY, "clients are served")
    assert set(seen) == names(0, 2, 3)
    os.kill(pid, signal.SIGCONT)
    until(lambda: spread_over(stage.node) == endpoints_of(*PODS), "the kernel path serves")
