"""Failures of the kernel or of nft: the error has the reason, a retry works, and nothing is left half done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.netfilter.iptables.test_adapter import contains
from tests.netfilter.stage import dump, settled
from tests.support.lab import Host, Network

pytestmark = pytest.mark.netns

ONE = {"one": "10.96.0.1"}
TWO = {"one": "10.96.0.1", "limited": "10.96.0.2"}

WRAPPER = """#!/bin/sh
[ -e {fault} ] || exec {nft} "$@"
case "$(cat {fault})" in
  hang) exec sleep 60;;
  killed-before) kill -KILL $$;;
  killed-after) case "$*" in *-f*) {nft} "$@"; rm {fault}; kill -KILL $$;; *) exec {nft} "$@";; esac;;
  *) cat {fault} >&2; exit 1;;
esac
"""


class Proxied:
    """A Proxier on a host."""

    def __init__(self, host: Host, adapter: str, env: Mapping[str, str], *, path: str = "") -> None:
        self._process = host.popen(
            ["env", f"PATH={path or env['PATH']}", sys.executable, "-m", "tests.netfilter.proxier_process", adapter],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(env),
        )

    def ask(self, services: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The state after these have become all Services."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({} if services is None else {"services": services}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def wait(self, condition: Callable[[dict[str, Any]], bool], *, within_s: float = 20.0) -> dict[str, Any]:
        """Wait for a state; AssertionError with the last one if it does not come."""
        deadline = time.monotonic() + within_s
        while not condition(state := self.ask()):
            assert time.monotonic() < deadline, state
            time.sleep(0.02)
        return state


def at_rest(state: dict[str, Any]) -> bool:
    return not state["pending"] and state["failing"] is None


@pytest.fixture
def fault(tmp_path: Path, environment: dict[str, str]) -> Path:
    """A file: while it is there, nft does what stands in it."""
    nft = shutil.which("nft")
    path = tmp_path / "fault"
    wrapper = tmp_path / "bin" / "nft"
    wrapper.parent.mkdir()
    wrapper.write_text(WRAPPER.format(fault=path, nft=nft))
    wrapper.chmod(0o755)
    environment["PATH"] = f"{wrapper.parent}:{os.environ['PATH']}"
    return path


FAULTS = {
    "hang": "did not end within 1 s; it was killed",
    "killed-before": "exit status -9, no message",
    "Error: Could not process rule: Device or resource busy": "Device or resource busy",
    "Error: Could not process rule: No buffer space available": "No buffer space available",
    "Error: Could not process rule: Cannot allocate memory": "Cannot allocate memory",
    "Error: Could not process rule: Operation not permitted": "it needs CAP_NET_ADMIN",
    "netlink: Error: cache initialization failed: Resource temporarily unavailable": "temporarily unavailable",
}


@pytest.mark.parametrize("what", FAULTS)
def test_nft_fails_for_a_while(network: Network, environment: dict[str, str], fault: Path, what: str) -> None:
    proxied = Proxied(network.node, "nftables", environment)
    proxied.ask(ONE)
    proxied.wait(at_rest)
    before = settled(dump(network.node))
    assert "10.96.0.1 . tcp . 80" in before
    fault.write_text(what)
    proxied.ask(TWO)
    state = proxied.wait(lambda it: it["failing"] is not None)
    assert FAULTS[what] in state["failing"]
    assert state["failing"].startswith("netfilter: ")
    assert settled(dump(network.node)) == before, "what works goes on working"
    fault.unlink()
    proxied.wait(at_rest)
    assert "10.96.0.2 . tcp . 80" in dump(network.node)


def test_nft_is_killed_after_the_kernel_took_it(network: Network, environment: dict[str, str], fault: Path) -> None:
    proxied = Proxied(network.node, "nftables", environment)
    proxied.ask(ONE)
    proxied.wait(at_rest)
    fault.write_text("killed-after")
    proxied.ask(TWO)
    proxied.wait(lambda it: at_rest(it) and not fault.exists())
    whole = settled(dump(network.node))
    assert "10.96.0.2 . tcp . 80" in whole
    proxied.ask(ONE)
    proxied.ask(TWO)
    proxied.wait(at_rest)


def test_nft_is_not_there_at_the_start(network: Network, environment: dict[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    proxied = Proxied(network.node, "nftables", environment, path=str(empty))
    proxied.ask(ONE)
    state = proxied.wait(lambda it: it["failing"] is not None)
    assert "cannot run nft: No such file or directory; is it installed and in PATH?" in state["failing"]
    proxied.wait(lambda it: it["failures"] >= 2)
    (empty / "nft").symlink_to(str(shutil.which("nft")))
    proxied.wait(at_rest)
    assert "10.96.0.1 . tcp . 80" in dump(network.node)


def test_another_holds_the_lock(network: Network, environment: dict[str, str], lock_file: Path) -> None:
    proxied = Proxied(network.node, "iptables", environment)
    proxied.ask(ONE)
    proxied.wait(at_rest)
    before = settled(dump(network.node))
    with contains(lock_file) as holder:
        proxied.ask(TWO)
        assert proxied.ask()["pending"], "it waits, and answers all the same"
        state = proxied.wait(lambda it: it["failures"] >= 2)
        assert f"(process {holder.pid}) has held {lock_file}" in state["failing"]
        assert settled(dump(network.node)) == before
        holder.communicate("\n")
    proxied.wait(at_rest)
    assert "-d 10.96.0.2/32" in dump(network.node)


def test_the_lock_is_released_during_the_wait(network: Network, environment: dict[str, str], lock_file: Path) -> None:
    proxied = Proxied(network.node, "iptables", environment)
    with contains(lock_file) as holder:
        proxied.ask(ONE)
        holder.communicate("\n")
    proxied.wait(at_rest)
    assert "-d 10.96.0.1/32" in dump(network.node)


@pytest.mark.parametrize("adapter", ["nftables", "iptables"])
def test_flushed_rules_are_restored_long_before_the_next_sync(
    network: Network, environment: dict[str, str], adapter: str
) -> None:
    proxied = Proxied(network.node, adapter, environment)
    proxied.ask(TWO)
    proxied.wait(at_rest)
    whole = settled(dump(network.node))
    if adapter == "nftables":
        network.node.run(["nft", "flush", "ruleset"])
    else:
        for table in ("nat", "filter"):
            network.node.run(["iptables-legacy", "-t", table, "-F"], env=environment)
    deadline = time.monotonic() + 20
    while settled(dump(network.node)) != whole:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # The next one comes later, in case two programs disagree.
    if adapter == "nftables":
        network.node.run(["nft", "delete", "element", "inet", "kubeproxy", "redirects4", "{ 10.96.0.2 . tcp . 80 }"])
        while settled(dump(network.node)) != whole:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    proxied.wait(at_rest)
