"""A takeover by an instance with another packet filter, another bind address, or IPv6.

No client has a failure in either direction.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.lab import Daemon, Network
from tests.system.e2e import backend, kernel_state
from tests.system.e2e.stage import KERNEL, QUICK, TARGET, VIP, Object, Stage, ask, endpoints, service, until
from tests.system.e2e.steady_clients import Crowd

pytestmark = pytest.mark.netns

GRACE = "--shutdown-grace=20s"
VIP_V6 = "fd00:96::10"


def follow(stage: Stage, address: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Start one daemon after another, with 100 new connections a second and 20 long ones: none fails."""

    def start(settings: dict[str, Any]) -> Daemon:
        options = settings.get("options", ())
        return stage.daemon(QUICK, GRACE, "--workers=1", *options, netfilter=settings["netfilter"])

    def answered() -> bool:
        try:
            return all(ask(host, (address, 80), timeout_s=2).startswith("pod-") for host in stage.asking)
        except OSError:
            return False

    before = start(first)
    until(answered, f"{address} answers")
    with (
        Crowd(stage.client, (address, 80), rate=70, long=10) as far,
        Crowd(stage.node, (address, 80), rate=30, long=10) as near,
    ):
        until(lambda: before.get("/healthz").status == 200, "the first is well")
        after = start(second)
        until(lambda: "new instance has taken over" in before.log(), "the first instance has handed over")
        until(lambda: "serving" in after.log(), "the second serves")
        until(answered, f"{address} answers still")
    for crowd, whence in ((far, "a client"), (near, "the node itself")):
        crowd.show(f"takeover of {address} from {first} by {second}, from {whence}")
        assert crowd.report.answered > 20
        assert crowd.report.failures == []
        assert crowd.report.long_broken == []
    assert before.wait(30) == 0
    assert "cut off" not in before.log()


NFTABLES: dict[str, Any] = {"netfilter": "nftables"}
IPTABLES: dict[str, Any] = {"netfilter": "iptables"}
BY_KERNEL: dict[str, Any] = {"netfilter": KERNEL}
"""The kernel path of nftables."""


@pytest.mark.parametrize(
    ("first", "second"),
    [(NFTABLES, IPTABLES), (IPTABLES, NFTABLES), (BY_KERNEL, IPTABLES), (IPTABLES, BY_KERNEL)],
    ids=lambda each: str(each["netfilter"]),
)
def test_by_another_packet_filter(stage: Stage, first: dict[str, Any], second: dict[str, Any]) -> None:
    """The rules of the new instance come first in every hook or last: in both cases one of the two serves."""
    stage.write_service([0, 1, 2])
    follow(stage, VIP, first, second)
    gone = "table inet kubeproxy" if second is IPTABLES else "KUBE-PORTALS"
    until(lambda: gone not in "\n".join(kernel_state.ours(stage.node)), "the rules of the first instance are removed")
    stage.await_answers(0, 1, 2)


@pytest.mark.parametrize("bound_at_first", [False, True])
@pytest.mark.parametrize("adapter", [NFTABLES, IPTABLES], ids=lambda adapter: str(adapter["netfilter"]))
def test_at_another_address(stage: Stage, adapter: dict[str, Any], bound_at_first: bool) -> None:
    """From the wildcard address to an address of the node, or back."""
    stage.write_service([0, 1, 2])
    bound = {**adapter, "options": ("--bind-address=10.2.0.1",)}
    follow(stage, VIP, *((bound, adapter) if bound_at_first else (adapter, bound)))


@pytest.mark.parametrize(("first", "second"), [(NFTABLES, BY_KERNEL), (BY_KERNEL, NFTABLES)], ids=["to", "from"])
def test_by_the_other_data_path(stage: Stage, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Running connections keep their path."""
    stage.write_service([0, 1, 2])
    follow(stage, VIP, first, second)
    stage.await_answers(0, 1, 2)


@pytest.mark.parametrize("adapter", [NFTABLES, IPTABLES, BY_KERNEL], ids=lambda adapter: str(adapter["netfilter"]))
def test_of_an_ipv6_service(stage: Stage, adapter: dict[str, Any]) -> None:
    start_v6(stage, 2)
    stage.write("web", *in_v6(service(), endpoints("web", [Network.pod_v6(0), Network.pod_v6(1)])))
    follow(stage, VIP_V6, adapter, adapter)


def start_v6(stage: Stage, pods: int) -> None:
    """Start the backends of some pods at their IPv6 addresses."""
    for index, pod in enumerate(stage.network.pods[:pods]):
        pod.popen([sys.executable, "-S", "-E", backend.__file__, f"pod-{index}", Network.pod_v6(index), str(TARGET)])


def in_v6(web: Object, listed: Object) -> tuple[Object, Object]:
    """The Service and its endpoints with IPv6 addresses."""
    web["spec"] |= {"clusterIP": VIP_V6, "clusterIPs": [VIP_V6], "ipFamilies": ["IPv6"]}
    listed["addressType"] = "IPv6"
    return web, listed
