"""Rules of kube-proxy from before the start: the daemon reports them while they exist, and does not remove them."""

from __future__ import annotations

import json

import pytest

from tests.support.lab import Daemon
from tests.system.e2e import kernel_state
from tests.system.e2e.stage import QUICK, Stage, until

pytestmark = pytest.mark.netns

SAID = "kube-proxy's own rules are still in force on this node"
NFTABLES = """
table ip kube-proxy {
    chain services {
        ip daddr 10.96.0.99 tcp dport 80 counter return
    }
}
"""
IPTABLES = """*nat
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.99/32 -p tcp -m tcp --dport 80 -j RETURN
COMMIT
"""
IPTABLES_CLEANUP = """*nat
-D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-D OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-F KUBE-SERVICES
-X KUBE-SERVICES
COMMIT
"""


def degraded(daemon: Daemon) -> str:
    """The part of the health server's answer about kube-proxy."""
    return "".join(it for it in json.loads(daemon.get("/healthz").body).get("reasons", ()) if SAID in it)


def test_rules_of_kube_proxy_are_reported_until_they_are_gone(stage: Stage) -> None:
    node = stage.node
    node.run(["nft", "-f", "-"], input=NFTABLES)
    node.run(["iptables-legacy-restore", "--noflush"], input=IPTABLES)
    stage.write_service([0])
    # In the same tables that iptables mode uses.
    daemon = stage.daemon(QUICK, "--iptables-sync-period=500ms", netfilter="iptables")
    stage.await_answers(0)
    said = until(lambda: degraded(daemon), "health reports the rules of kube-proxy")
    assert "(nftables: table ip kube-proxy; iptables-legacy: table nat, chain KUBE-SERVICES)" in said
    assert daemon.get("/healthz").status == 200
    assert any(SAID in line and " warning " in line for line in daemon.log().splitlines())
    assert set(IPTABLES.splitlines()[2:5]) <= set(kernel_state.xtables(node))

    node.run(["nft", "delete table ip kube-proxy"])
    node.run(["iptables-legacy-restore", "--noflush"], input=IPTABLES_CLEANUP)
    until(lambda: not degraded(daemon), "health no longer reports them")
    stage.await_answers(0)
    assert daemon.terminate() == 0
    assert "Traceback" not in daemon.log()
