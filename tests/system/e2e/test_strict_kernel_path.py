"""`kubeproxy.userspaceFallback: never`, with the real daemon: the kernel leads clients, or they are refused at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack

import pytest
import yaml

from tests.support.lab import Daemon
from tests.support.lab.daemon import METRICS
from tests.system.e2e.full_services import CLIENT, FAMILIES, MIRROR, V4, Whole, hear
from tests.system.e2e.stage import KERNEL, QUICK, VIP, Stage, endpoints, refused, service, until
from tests.system.e2e.test_observability import Scrape
from tests.system.e2e.test_rescue import (
    PODS,
    REFUSE,
    alive,
    clients,
    dead,
    endpoints_of,
    names,
    rescue_pids,
    spread_over,
    start,
)
from tests.system.e2e.test_security_forward_policies import attempt, forward_policy
from tests.system.e2e.test_security_kernel_path import IP, pods_of, targets

pytestmark = pytest.mark.netns

STRICT = (QUICK, "--data-path=kernel", "--userspace-fallback=never")
WHOLE, LOCAL = Whole(1), Whole(2)
BOTH = pytest.mark.parametrize("family", FAMILIES, ids=["IPv4", "IPv6"])


def strict(stage: Stage, *options: str) -> Daemon:
    """A daemon with one Service of both families, without a fallback."""
    stage.write(WHOLE.name, *WHOLE.objects(0, 1))
    daemon = stage.daemon(*STRICT, *options, netfilter="nftables")
    for family in FAMILIES:
        until(lambda: targets(stage, family) == pods_of(family, 0, 1), "both pods have slots")  # noqa: B023
    return daemon


def children(daemon: Daemon) -> list[str]:
    """The command lines of the daemon's children."""
    found = subprocess.run(["pgrep", "-a", "-P", str(daemon.process.pid)], capture_output=True, text=True)
    return [line.split(" ", 1)[1] for line in found.stdout.splitlines()]


def test_the_kernel_serves_and_no_worker_is_there(mirrors: Stage) -> None:
    stage, daemon = mirrors, strict(mirrors)
    for family in FAMILIES:
        for kind in ("cluster IP", "node port", "external IP", "load balancer IP"):
            for protocol in ("TCP", "UDP"):
                assert hear(stage.client, WHOLE.address(kind, family), protocol).pod in names(0, 1)
    assert [line for line in children(daemon) if "workers" in line] == []
    listening = stage.node.run(["ss", "-Hltnup"]).stdout
    ports = {line.split()[4].rpartition(":")[2] for line in listening.splitlines() if "kubeproxy" in line}
    # A socket of UDP that is only bound is listed, too; node ports are held so that no other program takes them.
    tcp = {line.split()[4] for line in listening.splitlines() if line.startswith("tcp")}
    # The socket of preStop hooks is on loopback.
    services = {it for it in tcp if not it.startswith(("127.0.0.1:", "[::1]:"))}
    assert {it.rpartition(":")[2] for it in services} <= {"10256"}, ports


@BOTH
def test_what_the_kernel_cannot_lead_is_refused_with_a_reason(mirrors: Stage, family: int) -> None:
    stage = mirrors
    daemon = strict(stage)
    loopback = "127.0.0.1" if family == V4 else "::1"
    objects = LOCAL.objects(0)
    for each in objects:
        if each.get("addressType") == f"IPv{family}":
            each["endpoints"].append({"addresses": [loopback]})
    stage.write(LOCAL.name, *objects)
    address = LOCAL.address("cluster IP", family)
    for host in stage.asking:
        until(lambda: refused(host, address), "clients are refused")  # noqa: B023
        for protocol in ("TCP", "UDP"):
            with pytest.raises(ConnectionRefusedError):
                hear(host, address, protocol)
    other = 10 - family
    until(lambda: attempt_at(stage, LOCAL.address("cluster IP", other)) == "pod-0", "its other family is served")
    assert "clients are refused, as kubeproxy.userspaceFallback is never: endpoint" in daemon.log()
    assert "is a loopback address, to which the kernel does not forward" in daemon.log()
    scrape = Scrape(daemon)
    assert scrape("kubeproxy_data_path_frontends", data_path="refused") == 2
    assert scrape("kubeproxy_data_path_frontends", data_path="userspace") == 0
    assert "2 refused" in daemon.get("/statusz", address=METRICS).body
    to = f"{address[0]}:{address[1]}" if family == V4 else f"[{address[0]}]:{address[1]}"
    traced = json.loads(daemon.get(f"/trace?to={to}&from={CLIENT[family]}", address=METRICS).body)
    assert traced["outcome"] == "refused"
    assert "the kernel cannot forward its clients: endpoint" in traced["reason"]
    stage.write(LOCAL.name, *LOCAL.objects(0))
    until(lambda: attempt_at(stage, address) == "pod-0", "it is served when the reason is gone")
    until(lambda: "service problem resolved" in daemon.log(), "and said to be")


def attempt_at(stage: Stage, address: tuple[str, int]) -> str:
    try:
        return hear(stage.client, address, "TCP", timeout_s=2.0).pod
    except OSError as error:
        return type(error).__name__


@BOTH
@pytest.mark.parametrize("strictly", [True, False], ids=["strict", "with workers"])
def test_an_author_of_endpoint_slices_cannot_get_past_a_forward_policy(
    mirrors: Stage, family: int, strictly: bool
) -> None:
    """By an endpoint to which the kernel cannot forward, the author has a worker dial the others from the node's
    address; unless there is no worker."""
    stage = mirrors
    loopback = "127.0.0.1" if family == V4 else "::1"
    objects = WHOLE.objects(0)
    for each in objects:
        if each.get("addressType") == f"IPv{family}":
            each["endpoints"].append({"addresses": [loopback]})
    stage.write(WHOLE.name, *objects)
    daemon = stage.daemon(*STRICT) if strictly else stage.daemon(QUICK, "--workers=1", netfilter=KERNEL)
    (forbidden,) = pods_of(family, 0)
    match = f"{IP[family]} saddr {CLIENT[family]} {IP[family]} daddr {forbidden} tcp dport {MIRROR}"
    with forward_policy(stage.node, match):
        heard = {attempt(stage.client, family, "TCP") for _ in range(6)}
        assert ("pod-0" in heard) is not strictly
        if strictly:
            assert heard == {"ConnectionRefusedError"}
            assert heard_directly(stage, forbidden) == "TimeoutError"
    assert daemon.process.poll() is None


def heard_directly(stage: Stage, address: str) -> str:
    try:
        return hear(stage.client, (address, MIRROR), "TCP", timeout_s=2.0).pod
    except OSError as error:
        return type(error).__name__


def start_strict(stage: Stage) -> Daemon:
    return start(stage, *STRICT)


def test_when_all_endpoints_refuse_clients_are_refused_at_once(stage: Stage) -> None:
    """As under kube-proxy, whose clients hear the refusal of the endpoint itself."""
    start_strict(stage)
    with ExitStack() as stack:
        for pod in PODS:
            stack.enter_context(dead(stage, pod, REFUSE))
        until(lambda: refused(stage.client, (VIP, 80)) and not spread_over(stage.node), "all are ejected")
        before = retransmitted(stage)
        assert all(refused(host, (VIP, 80)) for host in stage.asking for _ in range(5))
        assert retransmitted(stage) == before
    until(lambda: spread_over(stage.node) == endpoints_of(*PODS), "they are back")
    with clients(*stage.asking) as seen:
        until(lambda: set(seen) >= names(*PODS), "all answer")
    assert set(seen) == names(*PODS)


def retransmitted(stage: Stage) -> int:
    counters = stage.client.run(["nstat", "-asz", "TcpExtTCPSynRetrans"]).stdout
    return int(counters.split("TcpExtTCPSynRetrans")[1].split()[0])


def test_a_dead_endpoint_is_hidden_from_clients(stage: Stage) -> None:
    start_strict(stage)
    with clients(*stage.asking) as seen, dead(stage, 1, REFUSE):
        until(lambda: spread_over(stage.node) == endpoints_of(0, 2, 3), "the dead one is ejected")
    assert set(seen) <= names(*PODS)


def test_it_takes_over_and_is_taken_over(stage: Stage) -> None:
    """From an instance with workers, and by one."""
    first = start(stage)
    with clients(*stage.asking) as seen:
        second = stage.daemon(*STRICT)
        first.process.wait(timeout=60)
        until(lambda: alive(stage.node), "the rescue of the second works")
        asked = seen.total()
        until(lambda: seen.total() > asked + 40, "clients are served")
        third = stage.daemon(QUICK, "--workers=1", netfilter=KERNEL)
        second.process.wait(timeout=60)
        asked = seen.total()
        until(lambda: seen.total() > asked + 40, "clients are served")
    assert set(seen) == names(*PODS)
    assert third.process.poll() is None


def test_a_re_exec_costs_no_connection(stage: Stage) -> None:
    daemon = start_strict(stage)
    (rescuer,) = rescue_pids(daemon)
    with clients(*stage.asking) as seen:
        os.kill(daemon.process.pid, signal.SIGUSR2)
        until(lambda: rescue_pids(daemon) - {rescuer}, "the next program has its rescue process")
        until(lambda: daemon.log().count("serving ") > 1, "the next program serves")
        asked = seen.total()
        until(lambda: seen.total() > asked + 40, "clients are served")
    assert set(seen) == names(*PODS)


def test_killed_it_is_replaced_without_a_gap(stage: Stage) -> None:
    """There is no process that clients depend on."""
    daemon = start_strict(stage)
    with clients(*stage.asking) as seen:
        daemon.process.kill()
        daemon.process.wait()
        asked = seen.total()
        until(lambda: seen.total() > asked + 40, "the kernel goes on")
    assert set(seen) == names(*PODS)
    start_strict(stage)
    with clients(*stage.asking) as seen:
        until(lambda: seen.total() > 40, "the next instance serves")
    assert set(seen) == names(*PODS)


def test_a_reload_neither_ends_it_nor_begins_it(stage: Stage, config: os.PathLike[str]) -> None:
    def write(**own: object) -> None:
        with open(config, "w") as file:
            head = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
            yaml.safe_dump({**head, "kubeproxy": own}, file)

    write(dataPath="kernel", userspaceFallback="never")
    stage.write_service(PODS)
    daemon = stage.daemon(QUICK, f"--config={config}")
    until(lambda: spread_over(stage.node) == endpoints_of(*PODS), "all pods have slots")
    write(dataPath="auto", userspaceFallback="never")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "allowed: kernel, as kubeproxy.userspaceFallback is never" in daemon.log(), "it is refused")
    write(dataPath="kernel", userspaceFallback="always")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "configuration change needs restart" in daemon.log(), "it waits for a restart")
    assert "kubeproxy.userspaceFallback" in daemon.log()
    stage.write("more", service("more", "10.96.0.11"), endpoints("more", ["127.0.0.1"]))
    until(lambda: refused(stage.client, ("10.96.0.11", 80)), "it is still strict")
