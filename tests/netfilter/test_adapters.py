"""The promises of both adapters about the kernel's rules, also when other programs change them."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kubeproxy.model import Address, Family, Protocol
from kubeproxy.netfilter.ruleset import ProxyPort, Reach, RuleSet
from tests.netfilter.stage import (
    ANSWERED,
    Adapter,
    KernelRefusal,
    attempt,
    destination,
    dump,
    node_port,
    rule_set,
    serving,
    settled,
)
from tests.support.lab import Host, Network

pytestmark = pytest.mark.netns

VIP, VIP6 = "10.96.7.7", "fd96::7"
WEB = destination(VIP, Protocol.TCP)
DNS = destination("10.96.0.10", Protocol.UDP, 53)
WEB6 = destination(VIP6, Protocol.TCP)
LB = destination("203.0.113.5", Protocol.TCP)
NODE_PORT = node_port(Family.IPV4, Protocol.TCP, 30080)
NODE_PORT6 = node_port(Family.IPV6, Protocol.TCP, 30080)
RULES = rule_set(
    {WEB: 7001, DNS: 7002, WEB6: 7003, LB: 7001, NODE_PORT: 7001, NODE_PORT6: 7003},
    own={WEB: 7004, NODE_PORT: 7004},
    internal=("10.3.0.0/16",),
    node_addresses=("10.2.0.1", "127.0.0.1", "fd00:2::1"),
    allowed={LB: ("10.2.0.0/24", "10.9.0.0/16")},
    refused={ProxyPort(Protocol.UDP, 7002)},
    dropped={ProxyPort(Protocol.TCP, 7003)},
    landing=("10.2.0.1", "fd00:2::1"),
)

FOREIGN_NFT = """
table inet kubeproxy2 {
  map redirects4 { type ipv4_addr . inet_proto . inet_service : inet_service; elements = { 10.96.7.7 . tcp . 80 : 1 }; }
}
table ip firewall {
  chain input { type filter hook input priority 0; policy accept; tcp dport 9999 drop; }
}
"""
FOREIGN_LEGACY = """
*nat
:MINE - [0:0]
-A PREROUTING -p tcp --dport 9998 -j MINE
-A OUTPUT -d 198.51.100.1 -j RETURN
-A MINE -p tcp -j REDIRECT --to-ports 1
COMMIT
*filter
-A INPUT -p tcp --dport 9997 -m comment --comment "foreign" -j DROP
-A INPUT -m limit --limit 5/s -j ACCEPT
COMMIT
"""


def foreign_rules(host: Host) -> None:
    """Rules of another program."""
    host.run(["nft", "-f", "-"], input=FOREIGN_NFT)
    for program in ("iptables-legacy-restore", "ip6tables-legacy-restore"):
        text = FOREIGN_LEGACY if program[2] != "6" else FOREIGN_LEGACY.replace("198.51.100.1", "2001:db8::1")
        host.run([program], input=text, env={"XTABLES_LOCKFILE": "/dev/null", "PATH": "/usr/sbin:/usr/bin"})


def test_reach_counts_our_redirects_and_others(network: Network, adapter: Adapter) -> None:
    """Another process with the same Services has other ports, or the same at another address."""
    assert adapter.reach(RULES) == Reach(0, 0)
    adapter.apply(RULES, verify=True)
    ours = adapter.reach(RULES)
    assert ours.ours >= len(RULES.redirects)
    assert ours.others == 0
    for theirs in (
        replace(RULES, redirects={key: port + 100 for key, port in RULES.redirects.items()}),
        replace(RULES, bind={Family.IPV4: Address("10.2.0.9"), Family.IPV6: Address("fd00:2::9")}),
    ):
        adapter.apply(theirs, verify=True)
        seen = adapter.reach(RULES)
        assert seen.others >= len(RULES.redirects)
        assert seen.ours < seen.others
        assert adapter.reach(theirs).others == 0
    adapter.cleanup()
    assert adapter.reach(RULES) == Reach(0, 0)


def test_equal_rules_are_left_as_they_are(network: Network, adapter: Adapter) -> None:
    assert adapter.apply(RULES, verify=True)
    before = dump(network.node)
    assert not adapter.apply(RULES)
    assert not adapter.apply(RULES, verify=True)
    assert dump(network.node) == before


def test_cleanup_leaves_foreign_rules_and_nothing_else(network: Network, adapter: Adapter) -> None:
    foreign_rules(network.node)
    before = dump(network.node)
    assert not adapter.cleanup()
    adapter.apply(RULES, verify=True)
    adapter.apply(RuleSet())
    adapter.apply(RULES)
    during = dump(network.node)
    assert all(line in during.splitlines() for line in before.splitlines())
    assert adapter.cleanup()
    assert dump(network.node) == before
    assert not adapter.cleanup()


def test_rules_of_an_earlier_run_are_removed_by_the_first_apply(
    network: Network, adapter: Adapter, environment: dict[str, str]
) -> None:
    adapter.apply(rule_set({WEB: 7009}), verify=True)
    wanted = dump(network.node)
    adapter.apply(RULES)
    stale = rule_set({WEB: 7004, destination("10.96.7.9", Protocol.TCP): 7005}, landing=("10.3.0.1",))
    adapter.apply(replace(stale, refused={ProxyPort(Protocol.TCP, 7005)}))
    next_instance = Adapter(network.node, adapter.name, env=environment)
    assert next_instance.apply(rule_set({WEB: 7009}), verify=True)
    text = dump(network.node)
    assert "7004" not in text
    assert "7005" not in text
    if adapter.name == "nftables":
        assert settled(text) == settled(wanted)


def comment(text: str) -> list[str]:
    return ["-m", "comment", "--comment", text]


def damages(adapter: str) -> dict[str, list[list[str]]]:
    """Changes of our rules by other programs."""
    if adapter == "nftables":
        table = ["inet", "kubeproxy"]
        return {
            "everything flushed": [["nft", "flush", "ruleset"]],
            "our table deleted": [["nft", "delete", "table", *table]],
            "a chain flushed": [["nft", "flush", "chain", *table, "guard"]],
            "an element deleted": [["nft", "delete", "element", *table, "redirects4", f"{{ {VIP} . tcp . 80 }}"]],
            "an element added": [["nft", "add", "element", *table, "redirects4", "{ 10.9.9.9 . tcp . 80 : 1 }"]],
            "a rule inserted": [["nft", "insert", "rule", *table, "input", "drop"]],
            "a chain more": [["nft", "add", "chain", *table, "mine"]],
            "an address of the node taken away": [
                ["nft", "delete", "element", *table, "node_addresses4", "{ 10.2.0.1 }"]
            ],
            "another source admitted": [
                ["nft", "add", "element", *table, "admitted4", "{ 203.0.113.5 . tcp . 80 . 10.8.0.0/16 }"]
            ],
            "no sources of pods": [["nft", "flush", "set", *table, "internal_sources4"]],
            "a guard taken away": [["nft", "flush", "set", *table, "guarded"]],
        }
    nat, own = ["iptables-legacy", "-t", "nat"], "KUBE-PORTALS-CONTAINER"
    return {
        "everything flushed": [[*nat, "-F"], [*nat, "-X"], ["iptables-legacy", "-F"], ["iptables-legacy", "-X"]],
        "the built-in chain flushed": [[*nat, "-F", "PREROUTING"]],
        "a chain flushed": [[*nat, "-F", own]],
        "a rule deleted": [[*nat, "-D", own, "1"]],
        "a rule added": [[*nat, "-A", own, "-d", "10.9.9.9", "-p", "tcp", "-j", "REDIRECT", "--to-ports", "1"]],
        "a rule doubled": [
            [*nat, "-A", "OUTPUT", "-m", "comment", "--comment", PORTALS_COMMENT, "-j", "KUBE-PORTALS-HOST"]
        ],
        "another jump to us": [[*nat, "-A", "OUTPUT", "-p", "tcp", "-j", own]],
        "our jumps in another order": [
            [*nat, "-D", "PREROUTING", "1"],
            [*nat, "-A", "PREROUTING", "-s", "10.3.0.0/16", *comment(INTERNAL_COMMENT), "-j", "KUBE-PORTALS-INTERNAL"],
        ],
        "an address of the node taken away": [[*nat, "-D", "KUBE-NODEPORT-CONTAINER", "1"]],
        "all sources admitted": [["iptables-legacy", "-F", "KUBE-PROXY-SOURCES"]],
        "nothing looked at on its way through": [["iptables-legacy", "-F", "FORWARD"]],
        "the guards gone": [["iptables-legacy", "-F", "KUBE-PROXY-DIRECT"]],
    }


INTERNAL_COMMENT = "handle packets of pods; NOTE: this must be before the rules for all clients"
PORTALS_COMMENT = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
_CASES = [(adapter, damage) for adapter in ("nftables", "iptables") for damage in damages(adapter)]


@pytest.mark.parametrize(("adapter", "damage"), _CASES, indirect=["adapter"])
def test_verifying_repairs(network: Network, adapter: Adapter, environment: dict[str, str], damage: str) -> None:
    adapter.apply(RULES, verify=True)
    whole = settled(dump(network.node))
    order = jumps(network.node)
    for command in damages(adapter.name)[damage]:
        network.node.run(command, env=environment)
    assert (settled(dump(network.node)), jumps(network.node)) != (whole, order)
    if adapter.name == "nftables":
        assert adapter.apply(RULES), "the kernel has notified"
    else:
        assert not adapter.apply(RULES), "what is believed to be there is not looked at"
        assert adapter.apply(RULES, verify=True)
    assert settled(dump(network.node)) == whole
    assert jumps(network.node) == order


FLUSHES = {
    "nftables": ["nft", "flush", "ruleset"],
    "iptables": ["iptables-legacy", "-t", "nat", "-F", "KUBE-PORTALS-CONTAINER"],
}


def test_foreign_changes_are_reported_and_our_own_are_not(
    network: Network, adapter: Adapter, environment: dict[str, str]
) -> None:
    adapter.call({"do": "watch"})
    adapter.apply(RULES, verify=True)
    adapter.apply(rule_set({WEB: 7001}))
    adapter.apply(RULES)
    assert not adapter.call({"do": "foreign", "within_s": 1.5})
    network.node.run(["iptables-legacy", "-t", "raw", "-A", "OUTPUT", "-p", "udp", "-j", "ACCEPT"], env=environment)
    network.node.run(["nft", "add", "table", "inet", "another"])
    assert not adapter.call({"do": "foreign", "within_s": 1.5})
    network.node.run(FLUSHES[adapter.name], env=environment)
    assert adapter.call({"do": "foreign", "within_s": 10.0})
    assert adapter.apply(RULES, verify=False), "it is known to be gone"
    assert not adapter.call({"do": "foreign", "within_s": 1.5})
    assert not adapter.apply(RULES, verify=True)


FLUSH_RULES = "flush table inet kubeproxy"
"""Removes the rules; chains, maps and sets stay, so that later changes of these succeed."""


def test_rules_removed_between_reading_and_changing_them_are_restored(
    network: Network, tmp_path: Path, environment: dict[str, str]
) -> None:
    """What the adapter has just read is out of date then, and so is what it makes of it."""
    once, program = tmp_path / "once", tmp_path / "nft"
    program.write_text(f"""#!/bin/sh
case "$*" in "-f -") rm {once} 2> /dev/null && {shutil.which("nft")} {FLUSH_RULES} && sleep 0.3;; esac
exec {shutil.which("nft")} "$@"
""")
    program.chmod(0o755)
    path = f"{tmp_path}:{environment['PATH']}"
    adapter = Adapter(network.node, "nftables", env={**environment, "PATH": path})
    adapter.call({"do": "watch"})
    adapter.apply(RULES, verify=True)
    whole = settled(dump(network.node))
    network.node.run(["nft", "flush", "map", "inet", "kubeproxy", "redirects4"])
    assert adapter.call({"do": "foreign", "within_s": 10.0})
    once.touch()
    adapter.apply(RULES, verify=True)
    assert not once.exists()
    assert adapter.call({"do": "foreign", "within_s": 10.0})
    adapter.apply(RULES, verify=True)
    assert settled(dump(network.node)) == whole


def jumps(host: Host) -> list[str]:
    """The rules of the legacy tables' built-in chains, in order."""
    return [line for line in dump(host).splitlines() if re.match(r"-A [A-Z]+ ", line)]


def test_a_change_that_meets_other_rules_than_believed_repairs_at_once(
    network: Network, adapter: Adapter, environment: dict[str, str]
) -> None:
    with serving(network.node, Protocol.TCP, 7001, Family.IPV4):
        adapter.apply(rule_set({WEB: 7001, DNS: 7002}), verify=True)
        for command in damages(adapter.name)["everything flushed"]:
            network.node.run(command, env=environment)
        # Deletes what is not there any more.
        assert adapter.apply(rule_set({WEB: 7001}))
        assert attempt(network.client, VIP, Protocol.TCP, 80) == ANSWERED
        for command in damages(adapter.name)["everything flushed"]:
            network.node.run(command, env=environment)
        # Adds to what is not there any more.
        assert adapter.apply(rule_set({WEB: 7001, DNS: 7002}))
        assert attempt(network.client, VIP, Protocol.TCP, 80) == ANSWERED


def test_thousands_of_services(network: Network, adapter: Adapter, record_property: object) -> None:
    redirects = {
        destination(f"10.{100 + (i >> 8)}.{i & 255}.1", protocol): 10000 + i
        for i in range(1000)
        for protocol in (Protocol.TCP, Protocol.UDP)
    }
    full = rule_set(redirects)
    times = {}
    adapter.apply(full, verify=True)
    times["2,000 applied"] = adapter.ms
    one_less = rule_set(dict(list(redirects.items())[1:]))
    adapter.apply(one_less)
    times["one removed"] = adapter.ms
    adapter.apply(full)
    times["one added"] = adapter.ms
    assert not adapter.apply(full, verify=True)
    times["verified"] = adapter.ms
    adapter.apply(rule_set({WEB: 7001}))
    times["all replaced by one"] = adapter.ms
    text = dump(network.node)
    assert len(re.findall(r"10\.1\d\d\.\d+\.1", text)) == 0
    print(adapter.name, {what: f"{ms:.1f} ms" for what, ms in times.items()})
    assert adapter.cleanup()


def test_without_the_capability(network: Network, environment: dict[str, str]) -> None:
    for name in ("nftables", "iptables"):
        prefix = ["setpriv", "--inh-caps=-all", "--bounding-set=-net_admin,-net_raw"]
        powerless = Adapter(network.node, name, env=environment, prefix=prefix)
        with pytest.raises(KernelRefusal, match="CAP_NET_ADMIN"):
            powerless.apply(RULES, verify=True)
        with pytest.raises(KernelRefusal, match="CAP_NET_ADMIN"):
            powerless.apply(RULES)
    assert "kubeproxy" not in dump(network.node)
    assert "KUBE" not in dump(network.node)
