"""The settings of connection tracking on a node where the daemon may not write them, as in an ordinary container."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import Daemon, Host
from tests.support.lab.daemon import KUBEPROXY

pytestmark = pytest.mark.netns

READ_ONLY = (
    *("unshare", "--mount", "sh", "-c"),
    'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$0" "$@"',
    KUBEPROXY,
)
"""The program where /proc/sys is read-only, as runtimes make it in containers that are not privileged."""
SAID = "cannot size connection tracking"
CLOSE_WAIT = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"


def test_an_init_container_sets_what_the_daemon_may_not(tmp_path: Path) -> None:
    with Host("node") as node:

        def close_wait() -> int:
            return int(node.run(["cat", CLOSE_WAIT]).stdout)

        with Daemon(node, manifests=tmp_path, command=READ_ONLY) as daemon:
            assert daemon.terminate() == 0
            (line,) = (line for line in daemon.log().splitlines() if SAID in line)
            assert "nf_conntrack_tcp_timeout_close_wait: 3600 is wanted, 60 is there and stays: Read-only file" in line
            assert "--init-only" in line
        assert close_wait() == 60
        done = node.run([KUBEPROXY, "run", "--init-only", "--conntrack-max-per-core=0"])
        assert close_wait() == 3600
        assert SAID not in done.stderr
        with Daemon(node, manifests=tmp_path, command=READ_ONLY, options=["--conntrack-max-per-core=0"]) as daemon:
            assert daemon.terminate() == 0
            assert SAID not in daemon.log()


def test_what_the_kernel_refuses_is_no_reason_to_keep_the_pod_from_starting() -> None:
    with Host("node") as node:
        done = node.run([*READ_ONLY, "run", "--init-only"])
        assert done.stderr.count(SAID) == 1
