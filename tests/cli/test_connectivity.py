"""`kubeproxy connectivity-test` on a node with pods on a bridge."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Daemon, Host, join, service_manifest, write_manifest
from tests.support.lab.daemon import KUBEPROXY

pytestmark = pytest.mark.netns

NODE, POD, GONE, TAKEN = "10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.254"
WEB, DEAD, EMPTY = "10.96.0.10", "10.96.0.11", "10.96.0.12"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Host]:
    """A node with a bridge of pods: one answers at port 8080, and one has the last address of the range."""
    with ExitStack() as stack:
        node = stack.enter_context(Host("node"))
        node.ip("link add cni0 type bridge", "link set cni0 up", f"addr add {NODE}/24 dev cni0")
        node.ip("link add up0 type veth peer name up1", "link set up0 up", "link set up1 up")
        node.ip("addr add 10.8.0.1/24 dev up0", "route add default dev up0")
        for at, address in enumerate((POD, TAKEN)):
            pod = stack.enter_context(Host(f"pod{at}"))
            join(pod, node, left_name="eth0", right_name=f"port{at}")
            node.ip(f"link set port{at} master cni0")
            pod.ip(f"addr add {address}/24 dev eth0", f"route add default via {NODE}")
            if address == POD:
                listener = pod.listen((POD, 8080))
                stack.callback(listener.close)
                stack.callback(listener.shutdown, socket.SHUT_RDWR)
                threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        node.sysctl("net.ipv4.ip_forward", 1)
        node.sysctl("net.bridge.bridge-nf-call-iptables", 0)
        for name, address, endpoints in (("web", WEB, [POD]), ("dead", DEAD, [GONE]), ("empty", EMPTY, [])):
            text = service_manifest(name, cluster_ip=address, ports={"http": (80, 8080)}, endpoints=endpoints)
            write_manifest(tmp_path / f"{name}.yaml", text)
        stack.enter_context(Daemon(node, manifests=tmp_path))
        yield node


def _accept(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


def run_test(node: Host, *words: str) -> tuple[int, dict[tuple[str, str], dict[str, Any]], list[str]]:
    done = node.run([KUBEPROXY, "connectivity-test", "--json", *words], check=False)
    assert done.stderr == ""
    result = json.loads(done.stdout)
    return done.returncode, {(it["address"], it["client"]): it for it in result["checks"]}, result["not_tested"]


def test_each_connection_stands_beside_what_the_rules_say(node: Host) -> None:
    status, found, not_tested = run_test(node, "--timeout=1")
    assert not_tested == []
    for client in ("node", "pod"):
        web, dead, empty = (found[f"{address}:80", client] for address in (WEB, DEAD, EMPTY))
        assert (web["seen"], web["endpoints"], web["verdict"]) == ("answered", "1/1", "ok"), client
        assert (dead["expected"], dead["endpoints"]) == ("answered", "0/1")
        assert dead["verdict"] == "endpoints", "though a worker accepts before it has an endpoint"
        assert (empty["expected"], empty["seen"], empty["verdict"]) == ("refused", "refused", "ok"), client
    assert found["127.0.0.1:10256", "node"]["verdict"] == "ok"
    assert status == 0
    assert "kubeproxy-test" not in node.run(["ip", "netns"]).stdout, "the namespace is gone"
    assert node.run(["ip", "-br", "link", "show", "master", "cni0"]).stdout.count("\n") == 2, "and its link"


def test_what_another_program_drops_is_a_failure(node: Host) -> None:
    node.run(["nft", "add table inet other"])
    node.run(["nft", "add chain inet other early { type filter hook prerouting priority -400; }"])
    node.run(["nft", f"add rule inet other early iifname cni0 ip daddr {WEB} drop"])
    status, found, _ = run_test(node, "web", "--timeout=1")
    assert status == 2
    assert {key[1]: it["verdict"] for key, it in found.items() if key[0] == f"{WEB}:80"} == {
        "node": "ok",
        "pod": "FAILED",
    }
    text = node.run([KUBEPROXY, "connectivity-test", "web", "--timeout=1"], check=False).stdout
    assert text.splitlines()[1].split()[-1] == "FAILED", "what has failed comes first"
    assert "1 not" in text


def test_without_a_bridge_the_node_alone_is_run_test(node: Host) -> None:
    _, found, not_tested = run_test(node, "web", "--bridge=br9")
    assert {client for _, client in found} == {"node"}
    assert not_tested == ["from a pod: there is no bridge br9 with an IPv4 address; bridges: cni0"]
    assert node.run([KUBEPROXY, "connectivity-test", "wbe"], check=False).returncode == 1
