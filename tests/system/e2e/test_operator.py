"""Orders of a person at the node: endpoints out and back by hand, sources asked again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.support.lab import Daemon, Network
from tests.support.lab.daemon import KUBEPROXY, METRICS
from tests.system.e2e.stage import (
    KERNEL,
    QUICK,
    TARGET,
    VIP,
    Stage,
    ask,
    ask_often,
    await_rescue,
    until,
)
from tests.system.e2e.test_faults import REFUSAL, broken

pytestmark = pytest.mark.netns

WEB = (VIP, 80)
FIRST = f"{Network.pod_v4(0)}:{TARGET}"
NO_CAPABILITY = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs"]

each_path = pytest.mark.parametrize("netfilter", ["nftables", "iptables", KERNEL])


def order(stage: Stage, *words: str, by: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    return stage.node.run([*(by or []), KUBEPROXY, *words], check=False)


def serve(stage: Stage, netfilter: str) -> Daemon:
    stage.write_service([0, 1, 2])
    daemon = stage.daemon(QUICK, "--workers=2", netfilter=netfilter)
    if netfilter == KERNEL:
        await_rescue(daemon)
    stage.await_answers(0, 1, 2)
    return daemon


def answering(stage: Stage) -> Callable[[], frozenset[str]]:
    return lambda: frozenset(ask_often(stage.client, WEB, 30))


@each_path
def test_an_endpoint_is_out_until_it_is_given_back(stage: Stage, netfilter: str) -> None:
    daemon = serve(stage, netfilter)
    done = order(stage, "endpoint", "eject", FIRST, "--for", "5m")
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: "pod-0" not in answering(stage)(), "it gets no new clients")
    status = json.loads(daemon.get("/statusz.json?service=web", address=METRICS).body)
    (shown,) = (it for it in status["services"][0]["frontends"][0]["endpoints"] if it["address"] == FIRST)
    assert shown["by_hand"]
    until(
        lambda: FIRST in "".join(json.loads(daemon.get("/statusz.json", address=METRICS).body)["problems"]),
        "the head of the status names it",
    )
    assert "order of an operator" in daemon.log()
    assert "(pid " in daemon.log().partition("order of an operator")[2].partition("\n")[0]
    assert order(stage, "endpoint", "restore", FIRST).returncode == 0
    stage.await_answers(0, 1, 2)
    again = order(stage, "endpoint", "restore", FIRST)
    assert again.returncode == 1
    assert "is not out" in again.stderr


@each_path
def test_the_last_endpoint_goes_on_and_the_time_ends(stage: Stage, netfilter: str) -> None:
    serve(stage, netfilter)
    stage.write_service([0])
    until(lambda: answering(stage)() == {"pod-0"}, "one endpoint is left")
    assert order(stage, "endpoint", "eject", FIRST, "--for", "3s").returncode == 0
    assert ask(stage.client, WEB) == "pod-0", "out of want of another one"
    stage.write_service([0, 1])
    until(lambda: "pod-1" in answering(stage)(), "there is another one")
    until(lambda: "pod-0" in answering(stage)(), "the time is over")


@pytest.mark.parametrize("netfilter", ["nftables", KERNEL])
def test_an_endpoint_that_answers_a_probe_is_back(stage: Stage, netfilter: str) -> None:
    daemon = serve(stage, netfilter)
    with broken(stage, REFUSAL, 0):
        until(lambda: (answering(stage)(), "endpoint ejected" in daemon.log())[1], "it is ejected and logged")
        failed = order(stage, "endpoint", "probe", FIRST)
        assert (failed.returncode, failed.stdout.split()[1]) == (2, "refused")
    assert order(stage, "endpoint", "probe", FIRST).returncode == 0
    assert "pod-0" in answering(stage)(), "without waiting for its own next probe"


def test_only_root_of_this_network_gives_orders(stage: Stage) -> None:
    daemon = serve(stage, "nftables")
    refused = order(stage, "endpoint", "eject", FIRST, by=NO_CAPABILITY)
    assert refused.returncode == 1
    assert "CAP_NET_ADMIN" in refused.stderr
    assert order(stage, "retry", by=NO_CAPABILITY).returncode == 1
    assert "order of an operator" not in daemon.log()
    assert answering(stage)() == {"pod-0", "pod-1", "pod-2"}
    for wrong in ("web", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:99999"):
        assert order(stage, "endpoint", "eject", wrong).returncode == 64
    for near in (f"{Network.pod_v4(0)}:{TARGET + 1}", f"{Network.pod_v4(3)}:{TARGET}"):
        unknown = order(stage, "endpoint", "eject", near)
        assert unknown.returncode == 1
        assert unknown.stderr.startswith(f"kubeproxy: no Service has the endpoint {near}; did you mean 10.")
        assert FIRST in unknown.stderr
    assert answering(stage)() == {"pod-0", "pod-1", "pod-2"}
    for wrong in ("10", "10d", "25h", "0s"):
        assert order(stage, "endpoint", "eject", FIRST, "--for", wrong).returncode == 64


def test_without_a_daemon_there_is_nobody_to_obey(stage: Stage) -> None:
    done = order(stage, "retry")
    assert done.returncode == 1
    assert "no kubeproxy runs" in done.stderr
