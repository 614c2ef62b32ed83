"""More service ports than this host has ports and descriptors for: the others share listeners."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.lab import Daemon, Host, get
from tests.support.lab.daemon import HEALTHZ
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import ADAPTERS
from tests.system.e2e.full_services import (
    CELLS,
    CLIENT,
    EXTERNAL,
    FAMILIES,
    NODE,
    NODE_NAME,
    V4,
    Whole,
    answers,
    await_all,
    hear,
    pod,
)
from tests.system.e2e.stage import QUICK, VIP, Stage, until
from tests.system.e2e.steady_clients import Crowd

pytestmark = pytest.mark.netns

SERVICES = [Whole(number) for number in range(1, 6)]
"""Each has a TCP frontend for either family, and has a port of its own as long as there are few."""
LOCAL = SERVICES[4]
"""Its endpoints see the address of a client from outside."""
HEALTH_PORT = 32100
LATE = "10.96.99.1"
OPTIONS = (QUICK, "--proxy-port-range=30200-30215", "--workers=2", f"--hostname-override={NODE_NAME}")
FIREWALL = """
table inet firewall {
  chain input {
    type filter hook input priority filter + 10; policy drop;
    ct state established,related accept
    ct status dnat accept
    iif lo accept
    meta l4proto icmpv6 accept
  }
}
"""
"""A host firewall that admits nothing from outside but redirected packets, as docs/troubleshooting.md advises."""


@pytest.fixture
def firewalled(mirrors: Stage) -> Iterator[Stage]:
    """A stage whose node has such a firewall."""
    mirrors.node.run(["nft", "-f", "-"], input=FIREWALL)
    yield mirrors
    mirrors.node.run(["nft", "delete", "table", "inet", "firewall"])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_all_are_served_and_outlive_every_instance(firewalled: Stage, adapter: str) -> None:
    """By a re-exec, a crash and a takeover no client fails, and no connection ends."""
    stage = firewalled
    for each in SERVICES[:4]:
        stage.write(each.name, *each.objects(each.number % 4))
    stage.write(
        LOCAL.name,
        *LOCAL.objects(pod(1), externalTrafficPolicy="Local", healthCheckNodePort=HEALTH_PORT),
    )
    daemon = stage.daemon(*OPTIONS, netfilter=adapter)
    for each in SERVICES:
        await_all(stage, each, each.number % 4)
    assert daemon.log().count("listeners are shared from now on") == 1
    for name, vip in (("web", VIP), ("late", LATE)):  # so late that no port of their own is left
        stage.write_service([0, 1], name=name, vip=vip)
        stage.await_answers(0, 1, address=(vip, 80))
    ports = kernel_state.redirects(stage.node)
    assert ports[VIP, 80] == ports[LATE, 80]
    emptied, rest = SERVICES[:2], SERVICES[2:]
    for each in emptied:
        stage.write(each.name, *each.objects())
    for each in emptied:
        stage.await_refusal(each.address("cluster IP", 4))
        stage.await_refusal(each.address("cluster IP", 6))
    with Crowd(stage.client, (VIP, 80), rate=50, long=10) as crowd:
        for change in (re_executed, killed, taken_over):
            daemon = change(stage, daemon, adapter)
            for each in rest:
                await_all(stage, each, each.number % 4)
            check_local(stage)
            until(lambda: is_well(stage.node, HEALTHZ), "it is well")
    assert crowd.report.failures == []
    assert not crowd.report.long_broken


def check_local(stage: Stage) -> None:
    """The endpoints of `LOCAL` see clients' addresses, and its health check answers."""
    outside = [cell for cell in CELLS if cell.origin == "client" and cell.protocol == "TCP" and cell.kind in EXTERNAL]
    said = answers(stage, LOCAL, outside)
    assert {str(cell): (it := said[str(cell)]) and it.client for cell in outside} == {
        str(cell): CLIENT[cell.family] for cell in outside
    }
    until(lambda: is_well(stage.node, (NODE[V4], HEALTH_PORT)), "its health check answers")


def is_well(host: Host, address: tuple[str, int]) -> bool:
    """Whether a health check answers that all is well. A new instance opens it after its rules are in force."""
    try:
        return get(host, address, "/healthz").status == 200
    except OSError:
        return False


def re_executed(stage: Stage, daemon: Daemon, adapter: str) -> Daemon:
    """The same process executes its program anew."""
    daemon.process.send_signal(signal.SIGUSR2)
    until(lambda: daemon.log().count("orphaned worker has ended") == 2, "the old workers have ended", within_s=100)
    return daemon


def killed(stage: Stage, daemon: Daemon, adapter: str) -> Daemon:
    """The control process is killed, and all are served before the next one starts."""
    os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.wait()
    for each in SERVICES[2:]:
        for family in FAMILIES:
            assert hear(stage.client, each.address("cluster IP", family), "TCP").pod == f"pod-{each.number % 4}"
    after = stage.daemon(*OPTIONS, netfilter=adapter)
    until(lambda: after.log().count("orphaned worker has ended") == 2, "the orphaned workers have ended")
    return after


def taken_over(stage: Stage, daemon: Daemon, adapter: str) -> Daemon:
    """A second instance takes over."""
    after = stage.daemon(*OPTIONS, netfilter=adapter)
    assert daemon.wait(100) == 0
    return after
