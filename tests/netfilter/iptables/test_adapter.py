"""The iptables adapter alone: the lock, kube-proxy's own rules, and programs that do not take the lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kubeproxy.model import Family, Protocol
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.iptables.lock import xtables_lock
from kubeproxy.netfilter.ruleset import RuleSet
from tests.netfilter.stage import ANSWERED, Adapter, KernelRefusal, attempt, destination, dump, rule_set, serving
from tests.netfilter.test_adapters import PORTALS_COMMENT, RULES, VIP, WEB
from tests.support.lab import Network

HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""

KUBE_PROXY = f"""
*nat
:KUBE-PORTALS-CONTAINER - [0:0]
:KUBE-PORTALS-HOST - [0:0]
:KUBE-NODEPORT-CONTAINER - [0:0]
:KUBE-NODEPORT-HOST - [0:0]
-I PREROUTING -m comment --comment "{PORTALS_COMMENT}" -j KUBE-PORTALS-CONTAINER
-I OUTPUT -m comment --comment "{PORTALS_COMMENT}" -j KUBE-PORTALS-HOST
-A PREROUTING -m addrtype --dst-type LOCAL -m comment --comment "handle service NodePorts" -j KUBE-NODEPORT-CONTAINER
-A OUTPUT -m addrtype --dst-type LOCAL -m comment --comment "handle service NodePorts" -j KUBE-NODEPORT-HOST
-A KUBE-PORTALS-CONTAINER -m comment --comment a/b -p tcp -m tcp -d {VIP}/32 --dport 80 -j REDIRECT --to-ports 40001
-A KUBE-PORTALS-HOST -p tcp -m tcp -d {VIP}/32 --dport 80 -j DNAT --to-destination 10.2.0.1:40001
-A KUBE-NODEPORT-CONTAINER -m comment --comment a/b -p tcp -m tcp --dport 30080 -j REDIRECT --to-ports 40001
COMMIT
*filter
:KUBE-NODEPORT-NON-LOCAL - [0:0]
-I INPUT -m comment --comment "Ensure that non-local NodePort traffic can flow" -j KUBE-NODEPORT-NON-LOCAL
-A KUBE-NODEPORT-NON-LOCAL -p tcp -m tcp --dport 40001 -m state --state NEW -j ACCEPT
COMMIT
"""


def contains(lock_file: Path) -> subprocess.Popen[str]:
    """Another program that has the lock until its input ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


@pytest.mark.netns
def test_waits_for_the_lock_and_names_its_holder(
    network: Network, environment: dict[str, str], lock_file: Path
) -> None:
    adapter = Adapter(network.node, "iptables", env=environment)
    with contains(lock_file) as holder:
        with pytest.raises(KernelRefusal, match=rf"\(process {holder.pid}\) has held {lock_file}.* for 3 s"):
            adapter.apply(RULES, verify=True)
        assert "KUBE" not in dump(network.node)
        assert not adapter.cleanup(), "without rules of ours there is nothing to wait for"
        adapter.apply_later(RULES)
        holder.communicate("\n")
    assert adapter.receive() is True
    assert "KUBE-PORTALS-HOST" in dump(network.node)


def test_a_lock_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "missing" / "lock"))
    with pytest.raises(KernelError, match="missing/lock: No such file"), xtables_lock(0.1):
        pass


def test_the_lock_is_free_again(monkeypatch: pytest.MonkeyPatch, lock_file: Path) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock_file))
    for _ in range(2):
        with (
            xtables_lock(0.1),
            pytest.raises(KernelError, match=r"has held .*; nothing was changed$"),
            xtables_lock(0.05),
        ):
            pass


def test_without_python_iptables_the_error_names_the_extra() -> None:
    """The rest of the program, the adapter's module among it, is imported without."""
    code = """
import asyncio, sys
sys.modules["iptc"] = None
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.iptables.adapter import Iptables

async def probe():
    adapter = Iptables()
    try:
        await adapter.probe()
    except KernelError as error:
        print(error)
    finally:
        await adapter.close()

asyncio.run(probe())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("python-iptables is not installed: pip install 'kubeproxy[iptables]'")


@pytest.mark.netns
def test_takes_over_from_kube_proxy(network: Network, environment: dict[str, str]) -> None:
    network.node.run(["iptables-legacy-restore"], input=KUBE_PROXY, env=environment)
    adapter = Adapter(network.node, "iptables", env=environment)
    with serving(network.node, Protocol.TCP, 7001, Family.IPV4):
        assert adapter.apply(rule_set({WEB: 7001}), verify=True)
        assert attempt(network.client, VIP, Protocol.TCP, 80) == ANSWERED
    text = dump(network.node)
    assert "NODEPORT" not in text
    assert "40001" not in text
    assert text.count("-j KUBE-PORTALS-HOST") == 1


@pytest.mark.netns
def test_ipv6_tables_are_not_loaded_for_ipv4_services(network: Network, environment: dict[str, str]) -> None:
    adapter = Adapter(network.node, "iptables", env=environment)
    names = ["cat", "/proc/net/ip6_tables_names"]
    adapter.apply(rule_set({WEB: 7001}), verify=True)
    assert network.node.run(names).stdout == ""
    adapter.apply(RULES)
    assert set(network.node.run(names).stdout.split()) == {"nat", "filter"}
    # Once there they stay, empty, until cleanup: running connections need their connection tracking.
    adapter.apply(rule_set({WEB: 7001}))
    assert not adapter.apply(rule_set({WEB: 7001}), verify=True)
    assert adapter.cleanup()
    assert "KUBE" not in dump(network.node)


@pytest.mark.netns
def test_another_program_changes_the_tables_without_the_lock(
    network: Network, environment: dict[str, str], tmp_path: Path
) -> None:
    adapter = Adapter(network.node, "iptables", env=environment)
    adapter.apply(rule_set({WEB: 7001}), verify=True)
    stop = tmp_path / "stop"
    change = "iptables-legacy -t nat -A OUTPUT -j RETURN; iptables-legacy -t nat -F OUTPUT"
    loop = f"while [ ! -e {stop} ]; do {change}; done"
    other = network.node.popen(["sh", "-c", loop], env={**environment, "XTABLES_LOCKFILE": str(tmp_path / "other")})
    for round_ in range(20):
        adapter.apply(rule_set({destination(f"10.96.1.{round_}", Protocol.TCP): 7001}))
    stop.touch()
    other.wait(10)
    adapter.apply(rule_set({WEB: 7001}), verify=True)
    text = dump(network.node)
    assert text.count("-A KUBE-PORTALS-CONTAINER") == 1
    assert text.count("-j KUBE-PORTALS-HOST") == 1


@pytest.mark.netns
def test_our_jumps_come_before_a_firewalls_rules(network: Network, environment: dict[str, str]) -> None:
    network.node.run(["iptables-legacy", "-A", "INPUT", "-p", "udp", "-j", "DROP"], env=environment)
    adapter = Adapter(network.node, "iptables", env=environment)
    adapter.apply(RULES, verify=True)
    assert [rule.split()[-1] for rule in listed(network, environment)] == [
        "KUBE-PROXY-SOURCES",
        "KUBE-PROXY-PORTS",
        "DROP",
    ]
    assert adapter.apply(RuleSet())
    assert [rule.split()[-1] for rule in listed(network, environment)] == ["KUBE-PROXY-PORTS", "DROP"]
    # A rule that another program puts before them stays there.
    network.node.run(["iptables-legacy", "-I", "INPUT", "-i", "lo", "-j", "ACCEPT"], env=environment)
    adapter.apply(rule_set({WEB: 7001}), verify=True)
    assert [rule.split()[-1] for rule in listed(network, environment)] == ["ACCEPT", "KUBE-PROXY-PORTS", "DROP"]


@pytest.mark.netns
def test_node_ports_come_last_and_services_first(network: Network, environment: dict[str, str]) -> None:
    foreign = ["-p", "tcp", "--dport", "9", "-j", "RETURN"]
    network.node.run(["iptables-legacy", "-t", "nat", "-A", "PREROUTING", *foreign], env=environment)
    adapter = Adapter(network.node, "iptables", env=environment)

    def targets() -> list[str]:
        command = ["iptables-legacy", "-t", "nat", "-S", "PREROUTING"]
        return [line.split()[-1] for line in network.node.run(command, env=environment).stdout.splitlines()[1:]]

    adapter.apply(RULES, verify=True)
    first, last = (
        ["KUBE-PORTALS-INTERNAL", "KUBE-PORTALS-CONTAINER"],
        ["KUBE-NODEPORT-INTERNAL", "KUBE-NODEPORT-CONTAINER"],
    )
    assert targets() == [*first, "RETURN", *last]
    adapter.apply(rule_set({WEB: 7001}))
    assert targets() == [first[1], "RETURN"]
    adapter.apply(RULES)
    assert targets() == [*first, "RETURN", *last]


def listed(network: Network, environment: dict[str, str]) -> list[str]:
    """The rules of the chain INPUT."""
    return network.node.run(["iptables-legacy", "-S", "INPUT"], env=environment).stdout.splitlines()[1:]


@pytest.mark.netns
def test_guards_are_added_first_and_removed_last(network: Network, environment: dict[str, str]) -> None:
    adapter = Adapter(network.node, "iptables", env=environment)
    # A chain of ours with a jump from another program's chain cannot be removed, so the nat table refuses its commit.
    blocked = "*nat\n:MINE - [0:0]\n:KUBE-NODEPORT-HOST - [0:0]\n-A MINE -j KUBE-NODEPORT-HOST\nCOMMIT\n"
    network.node.run(["iptables-legacy-restore"], input=blocked, env=environment)
    with pytest.raises(KernelRefusal, match=r"IPv4 table nat: can.t delete chain KUBE-NODEPORT-HOST: "):
        adapter.apply(rule_set({WEB: 7001}), verify=True)
    text = dump(network.node)
    assert "-A KUBE-PROXY-DIRECT -p tcp -m tcp --dport 7001 -j DROP" in text
    assert "REDIRECT" not in text
    network.node.run(["iptables-legacy", "-t", "nat", "-F", "MINE"], env=environment)
    assert adapter.apply(rule_set({WEB: 7001}))
    assert "REDIRECT" in dump(network.node)
    network.node.run(["iptables-legacy", "-t", "nat", "-A", "MINE", "-j", "KUBE-PORTALS-HOST"], env=environment)
    with pytest.raises(KernelRefusal, match="KUBE-PORTALS-HOST"):
        adapter.cleanup()
    assert "-A KUBE-PROXY-DIRECT -p tcp -m tcp --dport 7001 -j DROP" in dump(network.node)
