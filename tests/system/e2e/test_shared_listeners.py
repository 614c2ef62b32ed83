"""More service ports than this host has ports and descriptors for: the others share listeners."""

from __future__ import annotations

import os
import signal

import pytest

from tests.system.e2e.conftest import ADAPTERS
from tests.system.e2e.full_services import FAMILIES, Whole, await_all, hear
from tests.system.e2e.stage import QUICK, Stage

pytestmark = pytest.mark.netns

SERVICES = [Whole(number) for number in range(1, 6)]
"""Each has a TCP frontend for either family, and has a port of its own as long as there are six."""
FEW_PORTS = "--proxy-port-range=30200-30211"


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_all_are_served_and_outlive_the_control_process(mirrors: Stage, adapter: str) -> None:
    for each in SERVICES:
        mirrors.write(each.name, *each.objects(each.number % 4))
    daemon = mirrors.daemon(QUICK, FEW_PORTS, "--workers=2", netfilter=adapter)
    for each in SERVICES:
        await_all(mirrors, each, each.number % 4)
    assert daemon.log().count("listeners are shared from now on") == 1
    rest, emptied = SERVICES[::2], SERVICES[1::2]
    for each in emptied:
        mirrors.write(each.name, *each.objects())
    for each in emptied:
        mirrors.await_refusal(each.address("cluster IP", 4))
        mirrors.await_refusal(each.address("cluster IP", 6))
    os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.wait()
    for each in rest:
        for family in FAMILIES:
            assert hear(mirrors.client, each.address("cluster IP", family), "TCP").pod == f"pod-{each.number % 4}"
    mirrors.daemon(QUICK, FEW_PORTS, "--workers=2", netfilter=adapter)
    for each in rest:
        await_all(mirrors, each, each.number % 4)
