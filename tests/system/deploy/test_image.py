"""The image runs with what the DaemonSet gives it: a read-only root, few capabilities, its own nft and iptables.

Building it takes minutes, so these tests want it unpacked: `make image-check` does both.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from kubeproxy.model.version import __version__
from tests.support.lab import Daemon
from tests.support.lab.host import Host
from tests.tools.demo.cast import Cast, ask, assemble

ROOTFS = os.environ.get("KUBEPROXY_ROOTFS", "")
ENTER = str(Path(__file__).with_name("enter-image.sh"))

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(not ROOTFS, reason="no image to try: `make image-check` builds one and sets KUBEPROXY_ROOTFS"),
]


def in_image(volume: Path, *command: str, capabilities: str = "+net_admin,+net_raw") -> list[str]:
    """A command of the image, with `volume` at /mnt."""
    return ["unshare", "--mount", "--propagation=private", ENTER, ROOTFS, str(volume), capabilities, *command]


def say(host: Host, volume: Path, *command: str) -> str:
    """What a command of the image prints there."""
    return host.run(in_image(volume, *command)).stdout


@pytest.mark.parametrize("netfilter", ["nftables", "iptables"])
def test_it_serves(tmp_path: Path, netfilter: str) -> None:
    with assemble(tmp_path) as cast:
        names = [cast.start_backend(index) for index in range(2)]
        cast.write_manifest(range(2))
        command = in_image(tmp_path, "kubeproxy")
        with Daemon(cast.node, manifests=Path("/mnt"), netfilter=netfilter, command=command) as daemon:
            for host in (cast.client, cast.node):
                tally = ask(host, 20)
                assert not tally.failures, daemon.log()
                assert set(tally.answers) == set(names)
            assert json.loads(say(cast.node, tmp_path, "kubeproxy", "healthcheck"))["ready"] is True
            assert " warning " not in daemon.log()
            assert daemon.terminate() == 0
        no_endpoint = cast.node.run(in_image(tmp_path, "kubeproxy", "healthcheck"), check=False)
        assert no_endpoint.returncode == 1


def test_a_change_arrives(tmp_path: Path) -> None:
    """inotify works through the mount."""
    with assemble(tmp_path) as cast:
        _start_two(cast)
        with Daemon(cast.node, manifests=Path("/mnt"), command=in_image(tmp_path, "kubeproxy")) as daemon:
            assert set(ask(cast.client, 4).answers) == {"pod-1"}
            cast.write_manifest([1])
            give_up = time.monotonic() + 30
            while set(ask(cast.client, 1).answers) != {"pod-2"} and time.monotonic() < give_up:
                time.sleep(0.02)
            assert set(ask(cast.client, 4).answers) == {"pod-2"}, daemon.log()


def _start_two(cast: Cast) -> None:
    for index in range(2):
        cast.start_backend(index)
    cast.write_manifest([0])


def test_what_is_in_it(tmp_path: Path) -> None:
    with Host("alone") as host:
        assert say(host, tmp_path, "kubeproxy", "version") == f"kubeproxy {__version__}\nbyte path: compiled\n"
        assert say(host, tmp_path, "nft", "--version").startswith("nftables v1.0.6"), "not newer than the hosts'"
        for program in ("gcc", "pip", "make", "curl"):
            assert not say(host, tmp_path, "sh", "-c", f"command -v {program} || true"), f"{program} has no place here"


IMPORT_ALL = """
import importlib, os, pathlib, pkgutil, sys
import kubeproxy, kubeproxy.cli.main, kubernetes_asyncio.config
UNCHECKED = (1).to_bytes(4, "little")
for module in pkgutil.walk_packages(kubeproxy.__path__, "kubeproxy."):
    importlib.import_module(module.name)
for module in list(sys.modules.values()):
    file, cached = getattr(module, "__file__", None), getattr(module, "__cached__", None)
    if cached and file.endswith(".py"):
        compiled = pathlib.Path(cached)
        head = compiled.read_bytes()[:12] if compiled.exists() else b""
        if head[4:8] != UNCHECKED and head[8:12] != int(os.stat(file).st_mtime).to_bytes(4, "little"):
            print(file)
"""


def test_everything_that_it_imports_is_there_and_compiled(tmp_path: Path) -> None:
    """A module without its bytecode, or with one of another time than its source's, because layers round times,
    would be compiled anew by each start."""
    with Host("alone") as host:
        assert say(host, tmp_path, "/opt/kubeproxy/bin/python", "-c", IMPORT_ALL) == ""


def test_no_library_is_missing(tmp_path: Path) -> None:
    """Debian's packages were removed against their dependencies; what is left finds all that it links."""
    find = "find /usr /opt -type f -name '*.so*' -o -type f -perm /111"
    script = find + " | while read -r file; do ldd $file 2>/dev/null || true; done"
    with Host("alone") as host:
        linked = say(host, tmp_path, "sh", "-c", script)
    assert "libc.so.6 => /" in linked
    assert [line for line in linked.splitlines() if "not found" in line] == []
