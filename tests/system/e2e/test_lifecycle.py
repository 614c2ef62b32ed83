"""From start to stop: signals, leftovers of earlier runs, and changes by other processes."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.lab import Daemon, get
from tests.support.lab.daemon import HEALTHZ, KUBEPROXY, METRICS
from tests.support.lab.node import NODE_V4
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import ADAPTERS, PATHS
from tests.system.e2e.stage import (
    KERNEL,
    QUICK,
    VIP,
    Stage,
    adapter_and_path,
    adapter_of,
    ask,
    await_rescue,
    silent,
    until,
)
from tests.system.e2e.traffic import Traffic

pytestmark = pytest.mark.netns

each_path = pytest.mark.parametrize("netfilter", PATHS)


def serve(stage: Stage, *options: str, netfilter: str = "nftables") -> Daemon:
    """A daemon, and a Service with two endpoints that answers."""
    stage.write_service([0, 1])
    daemon = stage.daemon(QUICK, *options, netfilter=netfilter)
    stage.await_answers(0, 1)
    return daemon


# Stop


@pytest.mark.parametrize(
    ("netfilter", "first"), [("nftables", signal.SIGTERM), ("iptables", signal.SIGTERM), ("nftables", signal.SIGINT)]
)
def test_a_stop_signal_drains_connections_and_new_ones_are_served(
    stage: Stage, netfilter: str, first: signal.Signals
) -> None:
    daemon = serve(stage, netfilter=netfilter)
    with stage.client.connect((VIP, 80)) as held, ThreadPoolExecutor(1) as pool:
        held.sendall(b"echo\nbefore")
        assert held.recv(100) == b"before"
        slow = pool.submit(ask, stage.node, (VIP, 80), "slow 1")
        daemon.process.send_signal(first)
        until(lambda: "draining" in daemon.log(), "it drains")
        answer = daemon.get("/readyz")
        assert (answer.status, "draining" in answer.body) == (503, True)
        for host in stage.asking:
            assert ask(host, (VIP, 80)).startswith("pod-")
        # A change still takes effect.
        stage.write_service([2])
        stage.await_answers(2)
        assert slow.result().startswith("pod-")
        held.sendall(b"after")
        assert held.recv(100) == b"after"
        assert daemon.process.poll() is None
        held.shutdown(socket.SHUT_WR)
        assert held.recv(100) == b""
    assert daemon.wait(5) == 0
    assert silent(stage.client, (VIP, 80)), "clients wait for the next process"
    assert "cut off" not in daemon.log()


def test_connections_are_closed_after_the_grace_period(stage: Stage) -> None:
    daemon = serve(stage, "--shutdown-grace=300ms")
    with stage.client.connect((VIP, 80)) as held:
        held.sendall(b"echo\nbefore")
        assert held.recv(100) == b"before"
        assert daemon.terminate(5) == 0
        with pytest.raises(ConnectionResetError):
            held.recv(100)
    assert "connections are cut off open=1" in daemon.log()


def test_a_second_signal_ends_it_at_once(stage: Stage) -> None:
    daemon = serve(stage, "--shutdown-grace=60s")
    with stage.client.connect((VIP, 80)) as held:
        held.sendall(b"echo\nbefore")
        assert held.recv(100) == b"before"
        daemon.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in daemon.log(), "it drains")
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.wait(5) == 0
        with pytest.raises(ConnectionResetError):
            held.recv(100)
    assert silent(stage.client, (VIP, 80))


def test_a_stop_signal_before_it_is_ready(stage: Stage) -> None:
    process = stage.node.popen([KUBEPROXY, "run", f"--manifests={stage.manifests}", "--netfilter=nftables"])
    until(lambda: any(seen.port == METRICS[1] for seen in kernel_state.listening(stage.node)), "it has begun")
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0


@each_path
def test_it_cleans_up_on_exit_if_asked_to(stage: Stage, netfilter: str) -> None:
    foreign = kernel_state.ruleset(stage.node)
    daemon = serve(stage, "--cleanup-on-exit", netfilter=netfilter)
    assert kernel_state.ours(stage.node)
    assert daemon.terminate() == 0
    assert kernel_state.ours(stage.node) == []
    assert kernel_state.ruleset(stage.node).startswith(foreign.rstrip())


# Leftovers of earlier runs


def test_counters_of_iptables_rules_outlive_a_restart(stage: Stage) -> None:
    def packets() -> int:
        listing = stage.node.run(["iptables-legacy", "-t", "nat", "-L", "PREROUTING", "-vnx"]).stdout
        (line,) = (line for line in listing.splitlines() if "KUBE-PORTALS-CONTAINER" in line)
        return int(line.split()[0])

    assert serve(stage, netfilter="iptables").terminate() == 0
    before = packets()
    assert before > 0
    stage.daemon(netfilter="iptables")
    stage.await_answers(0, 1)
    assert packets() > before


@each_path
def test_a_new_instance_takes_over_without_a_gap(stage: Stage, netfilter: str) -> None:
    first = serve(stage, netfilter=netfilter)
    port = kernel_state.redirects(stage.node)[VIP, 80]
    with Traffic(stage.client) as far, Traffic(stage.node) as near:
        with stage.client.connect((VIP, 80)) as held:
            held.sendall(b"echo\nbefore")
            assert held.recv(100) == b"before"
            second = stage.node.popen(
                [
                    *(KUBEPROXY, "run", f"--manifests={stage.manifests}", "--netfilter", *adapter_and_path(netfilter)),
                    *("--healthz-bind-address=127.0.0.1:10266", "--metrics-bind-address=127.0.0.1:10259"),
                ]
            )
            until(lambda: kernel_state.redirects(stage.node)[VIP, 80] != port, "the rules lead to the new instance")
            far.more()
            near.more()
            held.sendall(b"after")
            assert held.recv(100) == b"after"
        assert first.terminate() == 0
        far.more()
        near.more()
    assert (far.failures, near.failures) == ([], [])
    assert second.poll() is None
    second.terminate()
    assert second.wait(15) == 0


@each_path
def test_killed_and_restarted_it_repairs_everything(stage: Stage, netfilter: str) -> None:
    foreign = add_foreign_rules(stage)
    daemon = serve(stage, "--workers=0", netfilter=netfilter)
    stage.write_service([3], name="old", vip="10.96.0.20")
    stage.await_answers(3, address=("10.96.0.20", 80))
    daemon.process.kill()
    daemon.process.wait()
    left = kernel_state.redirects(stage.node)
    assert left.keys() == {(VIP, 80), ("10.96.0.20", 80)}
    for host in stage.asking:
        if netfilter == KERNEL:
            assert ask(host, (VIP, 80)) in ("pod-0", "pod-1"), "the kernel goes on"
        else:
            assert silent(host, (VIP, 80)), "there is no listener"
    # Changes while no daemon ran.
    stage.remove("old")
    stage.write_service([1, 2])
    stage.daemon(netfilter=netfilter)
    stage.await_answers(1, 2)
    assert kernel_state.redirects(stage.node).keys() == {(VIP, 80)}
    for port in left.values():
        text = "\n".join(kernel_state.ours(stage.node))
        assert str(port) not in text, "nothing leads to the old ports, or guards them"
    assert foreign_rules(stage) == foreign


@pytest.mark.parametrize(("before", "after"), [ADAPTERS, ADAPTERS[::-1]])
def test_the_rules_of_the_other_adapter_do_not_stay(stage: Stage, before: str, after: str) -> None:
    assert serve(stage, netfilter=before).terminate() == 0
    daemon = stage.daemon(netfilter=after)
    stage.await_answers(0, 1)
    marks = {"nftables": "table inet kubeproxy", "iptables": "KUBE-PORTALS"}
    until(lambda: marks[before] not in "\n".join(kernel_state.ours(stage.node)), "the old rules are gone")
    assert marks[after] in "\n".join(kernel_state.ours(stage.node))
    for host in stage.asking:
        assert ask(host, (VIP, 80)).startswith("pod-"), daemon.log()


def test_mode_says_which_adapter_is_tried_first(stage: Stage) -> None:
    serve(stage, "--proxy-mode=iptables", netfilter="auto")
    assert "KUBE-PORTALS" in "\n".join(kernel_state.ours(stage.node))


FOREIGN_TABLE = "table inet stranger { chain stranger { type filter hook input priority 0; }; }\n"


def add_foreign_rules(stage: Stage) -> list[str]:
    """Rules of another program, beside ours and in the built-in chains that ours start from."""
    stage.node.run(["nft", "-f", "-"], input=FOREIGN_TABLE)
    legacy = ["iptables-legacy", "-w", "10"]
    stage.node.run([*legacy, "-t", "nat", "-A", "PREROUTING", "-s", "192.0.2.9", "-j", "ACCEPT"])
    stage.node.run([*legacy, "-t", "nat", "-N", "STRANGER"])
    stage.node.run([*legacy, "-A", "INPUT", "-s", "192.0.2.9", "-j", "DROP"])
    return foreign_rules(stage)


def foreign_rules(stage: Stage) -> list[str]:
    """The present state of these rules."""
    lines = kernel_state.ruleset(stage.node).splitlines()
    return [line for line in lines if re.search(r"192\.0\.2\.9|STRANGER|stranger|nowhere|10\.96\.0\.0/16", line)]


# Changes by other programs


BLOWS = {
    "nftables": [
        "delete table inet kubeproxy",
        "flush table inet kubeproxy",
        "flush chain inet kubeproxy prerouting",
        "flush map inet kubeproxy redirects4",
        "flush ruleset",
    ],
    KERNEL: [
        "delete table inet kubeproxy",
        "flush table inet kubeproxy",
        "flush chain inet kubeproxy rescue_prerouting",
        "flush chain inet kubeproxy tcp_spread4_2",
        "flush map inet kubeproxy tcp_slots4",
        "flush map inet kubeproxy spreads4",
        "flush set inet kubeproxy translated4",
    ],
    "iptables": [
        "-t nat -F",
        "-t nat -F KUBE-PORTALS-CONTAINER",
        "-t nat -D PREROUTING 1",
    ],
}


@each_path
def test_removed_rules_come_back(stage: Stage, netfilter: str) -> None:
    daemon = serve(stage, "--iptables-sync-period=400ms", netfilter=netfilter)
    if netfilter == KERNEL:
        await_rescue(daemon)
    good = normal(stage)
    for blow in BLOWS[netfilter]:
        tool = ["nft"] if adapter_of(netfilter) == "nftables" else ["iptables-legacy", "-w", "10"]
        with stage.client.connect((VIP, 80)) as held:
            held.sendall(b"echo\nbefore")
            assert held.recv(100) == b"before"
            stage.node.run([*tool, *blow.split()])
            until(lambda: normal(stage) == good, f"repaired after {blow}")
            held.sendall(b"after")
            assert held.recv(100) == b"after", blow
        for host in stage.asking:
            assert ask(host, (VIP, 80)).startswith("pod-"), blow
    assert " error " not in daemon.log(), daemon.log()


def normal(stage: Stage) -> str:
    """Our rules without the parts that a repair or traffic changes: handles, counters, times, the order of the
    listing."""
    text = re.sub(
        r" # handle \d+| counter packets \d+ bytes \d+|\s# count \d+", "", "\n".join(kernel_state.ours(stage.node))
    )
    text = re.sub(r"elements = \{[^}]*\bexpires\b[^}]*\}", "", text)
    return "\n".join(sorted(line for line in text.splitlines() if line.strip()))


@each_path
def test_cleanup_leaves_nothing_and_may_be_repeated(stage: Stage, netfilter: str) -> None:
    foreign = add_foreign_rules(stage)
    daemon = serve(stage, netfilter=netfilter)
    daemon.process.kill()
    daemon.process.wait()
    done = daemon.cleanup()
    assert done.returncode == 0
    assert adapter_of(netfilter) in done.stdout
    assert kernel_state.ours(stage.node) == []
    assert foreign_rules(stage) == foreign
    again = daemon.cleanup()
    assert (again.returncode, again.stdout) == (0, "nothing to remove\n")
    assert foreign_rules(stage) == foreign


def test_cleanup_removes_nothing_while_a_daemon_runs(stage: Stage) -> None:
    daemon = serve(stage)
    refused = daemon.cleanup(check=False)
    assert refused.returncode == 1
    assert "nothing was removed" in refused.stderr
    stage.await_answers(0, 1)
    daemon.terminate()
    assert daemon.cleanup().returncode == 0


# Ports


def test_ports_come_from_the_range_and_ports_in_use_are_skipped(stage: Stage) -> None:
    with contextlib.ExitStack() as others:
        taken = {port: others.enter_context(stage.node.listen((NODE_V4, port))) for port in (20000, 20002)}
        daemon = serve(stage, "--proxy-port-range=20000-20003")
        stage.write_service([2], name="second", vip="10.96.0.20")
        stage.await_answers(2, address=("10.96.0.20", 80))
        assert set(kernel_state.redirects(stage.node).values()) == {20001, 20003}
        # No port is left for this Service. The daemon logs it and serves the others.
        stage.write_service([3], name="third", vip="10.96.0.30")
        until(lambda: "all TCP ports of --proxy-port-range 20000-20003 are taken" in daemon.log(), "the log reports it")
        assert "default/third" in daemon.log()
        stage.await_answers(0, 1)
        stage.await_answers(2, address=("10.96.0.20", 80))
        # Another program frees a port: the daemon uses it without any other change.
        taken[20000].close()
        stage.await_answers(3, address=("10.96.0.30", 80))
        assert kernel_state.redirects(stage.node)["10.96.0.30", 80] == 20000
        # One Service disappears, another comes.
        stage.remove("second")
        stage.write_service([1], name="fourth", vip="10.96.0.40")
        stage.await_answers(1, address=("10.96.0.40", 80))
        assert kernel_state.redirects(stage.node)["10.96.0.40", 80] == 20003
        until(lambda: "service problem resolved service=default/third" in daemon.log(), "it is over")


@each_path
def test_it_listens_at_the_bind_address(stage: Stage, netfilter: str) -> None:
    serve(stage, f"--bind-address={NODE_V4}", netfilter=netfilter)
    port = kernel_state.redirects(stage.node)[VIP, 80]
    assert {seen.address for seen in kernel_state.listening(stage.node) if seen.port == port} == {NODE_V4}
    for host in (*stage.asking, stage.network.pods[0]):
        assert ask(host, (VIP, 80)).startswith("pod-")


@each_path
def test_three_hundred_services(stage: Stage, netfilter: str) -> None:
    vips = [f"10.96.{1 + number // 200}.{1 + number % 200}" for number in range(300)]
    for number, vip in enumerate(vips):
        stage.write_service([number % 4], name=f"s{number}", vip=vip)
    daemon = stage.daemon(QUICK, netfilter=netfilter)
    until(lambda: len(kernel_state.redirects(stage.node)) == 300, "all are in the rules")
    for number, vip in enumerate(vips):
        assert ask(stage.client, (vip, 80)) == f"pod-{number % 4}", vip
    for number in range(0, 300, 2):
        stage.remove(f"s{number}")
    until(lambda: len(kernel_state.redirects(stage.node)) == 150, "every other one is gone")
    for number in range(1, 300, 30):
        assert ask(stage.node, (vips[number], 80)) == f"pod-{number % 4}"

    def listeners() -> set[int]:
        # The socket for preStop hooks is the one on loopback.
        seen = {seen.port for seen in kernel_state.listening(stage.node) if seen.address != "127.0.0.1"}
        return seen - {HEALTHZ[1], METRICS[1]}

    until(
        lambda: listeners() == set(kernel_state.redirects(stage.node).values()),
        "the listeners for the others are closed",
    )
    assert daemon.terminate() == 0


# The two HTTP servers


@pytest.mark.parametrize("setting", ["healthzBindAddress", "metricsBindAddress"])
def test_a_server_that_must_listen_and_cannot_ends_the_start(stage: Stage, setting: str) -> None:
    before = kernel_state.ruleset(stage.node)
    stage.write_service([0])
    address = HEALTHZ if setting.startswith("healthz") else METRICS
    with stage.node.listen(address):
        done = stage.node.run(
            [KUBEPROXY, "run", f"--manifests={stage.manifests}", "--bind-address-hard-fail"], check=False
        )
    assert done.returncode == 1
    assert f"change {setting}" in done.stderr
    assert "Traceback" not in done.stderr
    assert kernel_state.ruleset(stage.node) == before


def test_it_runs_without_a_server_that_cannot_listen(stage: Stage) -> None:
    with stage.node.listen(METRICS) as other:
        daemon = serve(stage)
        assert "cannot listen, trying again server=metrics" in daemon.log()
        other.close()
        until(lambda: "listening server=metrics" in daemon.log(), "tried again")
    assert daemon.get("/healthz", address=METRICS).body == "ok"


def test_its_pages_answer(stage: Stage) -> None:
    daemon = serve(stage)
    for path in ("/healthz", "/livez", "/readyz"):
        assert daemon.get(path).status == 200
    assert get(stage.node, METRICS, "/proxyMode").body == "userspace"
    accepted = re.search(
        r'kubeproxy_connections_accepted_total\{[^}]*service="web"[^}]*} (\d+)',
        daemon.get("/metrics", address=METRICS).body,
    )
    assert accepted is not None
    assert int(accepted[1]) > 0
    assert '"BindAddress": "0.0.0.0"' in daemon.get("/configz", address=METRICS).body


def test_a_host_without_nft_is_told_that_it_has_no_kernel_path(stage: Stage, tmp_path: Path) -> None:
    stage.write_service([0])
    command = ("env", f"PATH={tmp_path}", KUBEPROXY)
    with Daemon(stage.node, manifests=stage.manifests, command=command) as daemon:
        stage.await_answers(0)
        assert "warning no nftables, so no kernel path" in daemon.log()
        assert "is it installed and in PATH?" in daemon.log()
