"""What the rescue sends again passes the forward hook of this node, as the client's own packet did.

The attacker's Service has an endpoint that refuses the attacker on purpose, and one that the node's policy forbids it.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.lab import Host
from tests.system.e2e.full_services import CLIENT, FAMILIES, MIRROR, Whole, hear
from tests.system.e2e.stage import KERNEL, QUICK, Stage, until
from tests.system.e2e.test_rescue import rescue_pids
from tests.system.e2e.test_security_kernel_path import IP, pods_of, policy, start_whole

pytestmark = pytest.mark.netns

WHOLE = Whole(1)
FORBIDDEN, REFUSING, OTHER = 0, 1, 2
"""Pods: the one that the policy protects, the attacker's accomplice, and one that nobody forbids."""
ATTEMPTS = 8
"""Of them seven reached the forbidden pod when what is sent again passed the output hook."""
BOTH = pytest.mark.parametrize("family", FAMILIES, ids=["IPv4", "IPv6"])
PROTOCOLS = pytest.mark.parametrize("protocol", ["TCP", "UDP"])


@contextmanager
def forward_policy(node: Host, match: str) -> Iterator[None]:
    """A policy of the node, as policy engines write it: what belongs to an accepted connection passes."""
    rules = [
        "add table inet engine",
        "add chain inet engine forward { type filter hook forward priority 0; }",
        "add rule inet engine forward ct state established,related accept",
        f"add rule inet engine forward {match} counter drop",
    ]
    node.run(["nft", "; ".join(rules)])
    try:
        yield
    finally:
        node.run(["nft", "delete table inet engine"])


def dropped(node: Host) -> int:
    """How many packets the policy has dropped."""
    found = re.search(r"counter packets (\d+)", node.run(["nft", "list", "chain", "inet", "engine", "forward"]).stdout)
    assert found is not None
    return int(found[1])


def attempt(host: Host, family: int, protocol: str) -> str:
    """The pod that answers, or the error."""
    try:
        return hear(host, WHOLE.address("cluster IP", family), protocol, timeout_s=2.0).pod
    except OSError as error:
        return type(error).__name__


def resent(stage: Stage) -> int:
    """How many packets the rescue has sent again."""
    page = stage.node.run(["curl", "-s", "http://127.0.0.1:10249/metrics"]).stdout
    found = re.search(r"^kubeproxy_rescue_resent_total (\d+)", page, re.M)
    return int(found[1]) if found else 0


@BOTH
@PROTOCOLS
@pytest.mark.parametrize("by", ["address", "interface"])
def test_a_refusal_leads_no_client_past_a_policy_of_the_node(
    mirrors: Stage, family: int, protocol: str, by: str
) -> None:
    """By TCP the accomplice refuses the attacker alone, so it is never ejected: the node's dials reach it. By UDP it
    refuses all, as otherwise nothing would be sent again."""
    stage = mirrors
    start_whole(stage, FORBIDDEN, REFUSING)
    (forbidden,) = pods_of(family, FORBIDDEN)
    source = f"{IP[family]} saddr {CLIENT[family]}" if by == "address" else 'iifname "to-client"'
    port = f"{protocol.lower()} dport {MIRROR}"
    refused, refuse = f"{IP[family]} saddr {CLIENT[family]} {port}", "reject with tcp reset"
    if protocol == "UDP":
        refused, refuse = port, "reject with icmpx port-unreachable"
    with (
        forward_policy(stage.node, f"{source} {IP[family]} daddr {forbidden} {port}"),
        policy(stage.network.pods[REFUSING], refused, refuse),
    ):
        until(lambda: attempt(stage.client, family, protocol) and dropped(stage.node), "the policy drops")
        assert f"pod-{FORBIDDEN}" not in {attempt(stage.client, family, protocol) for _ in range(ATTEMPTS)}
        until(lambda: resent(stage), "what is refused is sent again all the same")


@BOTH
def test_a_client_is_led_on_at_once_beside_a_policy(mirrors: Stage, family: int) -> None:
    """Rules at the forward hook that concern others cost the promise nothing."""
    stage = mirrors
    start_whole(stage, REFUSING, OTHER)
    (forbidden,) = pods_of(family, FORBIDDEN)
    port = f"tcp dport {MIRROR}"
    with (
        forward_policy(stage.node, f"{IP[family]} daddr {forbidden}"),
        policy(stage.network.pods[REFUSING], f"{IP[family]} saddr {CLIENT[family]} {port}", "reject with tcp reset"),
    ):
        before = retransmissions(stage.client)
        heard = {attempt(stage.client, family, "TCP") for _ in range(ATTEMPTS)}
        assert heard == {f"pod-{OTHER}"}
        assert retransmissions(stage.client) == before, "no client has waited for its own retransmission"
        until(lambda: resent(stage), "what is refused is sent again")


def retransmissions(host: Host) -> int:
    """How often a host has sent a SYN again by itself."""
    counters = host.run(["nstat", "-asz", "TcpExtTCPSynRetrans"]).stdout
    return int(counters.split("TcpExtTCPSynRetrans")[1].split()[0])


@BOTH
def test_a_strict_filter_of_source_addresses_lets_in_what_is_sent_again(mirrors: Stage, family: int) -> None:
    """It comes by the client's own interface."""
    stage = mirrors
    stage.node.sysctl("net.ipv4.conf.all.rp_filter", 1)
    try:
        start_whole(stage, REFUSING, OTHER)
        port = f"tcp dport {MIRROR}"
        client = f"{IP[family]} saddr {CLIENT[family]}"
        with policy(stage.network.pods[REFUSING], f"{client} {port}", "reject with tcp reset"):
            before = retransmissions(stage.client)
            assert {attempt(stage.client, family, "TCP") for _ in range(ATTEMPTS)} == {f"pod-{OTHER}"}
            assert retransmissions(stage.client) == before
    finally:
        stage.node.sysctl("net.ipv4.conf.all.rp_filter", 0)


def test_the_device_by_which_packets_enter_again_comes_and_goes_with_the_rescue(mirrors: Stage) -> None:
    """A device of a process that was killed is removed by the next one; none is left after a stop."""
    stage = mirrors
    daemon = start_whole(stage, REFUSING, OTHER)
    assert devices(stage.node) == {"kubeproxy27504", "kubeproxy27504p"}
    assert not addresses(stage.node, "kubeproxy27504")
    os.killpg(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()
    until(lambda: not rescue_pids(daemon), "the rescue process has gone")
    assert devices(stage.node), "the device is left over"
    stage.node.ip("link add kubeproxy27511 type veth peer name kubeproxy27511p")
    daemon = stage.daemon(QUICK, "--workers=1", netfilter=KERNEL)
    until(lambda: "rescue of failed connections working=true" in daemon.log(), "the rescue works")
    assert devices(stage.node) == {"kubeproxy27504", "kubeproxy27504p"}
    assert daemon.terminate() == 0
    assert not devices(stage.node)


def devices(node: Host) -> set[str]:
    """The interfaces of the rescue."""
    return {it["ifname"] for it in json.loads(node.ip("-j link")) if it["ifname"].startswith("kubeproxy")}


def addresses(node: Host, name: str) -> list[object]:
    """The addresses of an interface."""
    return [it for link in json.loads(node.ip(f"-j addr show dev {name}")) for it in link["addr_info"]]
