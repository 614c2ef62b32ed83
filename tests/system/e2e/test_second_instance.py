"""A second `kubeproxy run`, and `kubeproxy cleanup`, beside a daemon that serves: neither takes Services away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.support.lab.daemon import KUBEPROXY, environment
from tests.system.e2e import kernel_state
from tests.system.e2e.stage import QUICK, Stage, endpoints, service, until

pytestmark = pytest.mark.netns

USER = 65534
CAPS = "+net_admin,+net_raw,+net_bind_service"
QUIET = ("--healthz-bind-address=0.0.0.0:0", "--metrics-bind-address=127.0.0.1:0")


def run(stage: Stage, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of kubeproxy on the node, to its end."""
    return stage.node.run([KUBEPROXY, *words], env=environment(tmp_path), check=False)


def second(stage: Stage, tmp_path: Path, manifests: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A second daemon that ends by itself."""
    return run(stage, tmp_path, "run", f"--manifests={manifests}", "--netfilter=nftables", *QUIET, *options)


def others(directory: Path, objects: Sequence[object]) -> Path:
    """Another directory of manifests."""
    directory.mkdir(exist_ok=True)
    (directory / "one.yaml").write_text(yaml.safe_dump_all(objects))
    return directory


def test_it_does_not_take_over_with_other_sources(stage: Stage, tmp_path: Path) -> None:
    stage.write_service([0, 1])
    first = stage.daemon(QUICK)
    stage.await_answers(0, 1)
    empty = others(tmp_path / "empty", [])
    refused = second(stage, tmp_path, empty)
    assert refused.returncode == 1, refused.stderr
    assert "cannot start" in refused.stderr
    assert f"the running kubeproxy (pid {first.process.pid}, version" in refused.stderr
    assert f"serves from manifests {stage.manifests}, and this process from manifests {empty}" in refused.stderr
    assert "--takeover=force" in refused.stderr
    assert first.process.poll() is None
    stage.await_answers(0, 1)
    more = stage.daemon(QUICK, f"--manifests={empty}")
    until(lambda: first.process.poll() == 0, "an instance with further sources takes over")
    assert f"predecessor={first.process.pid}" in _plain(more.log())
    stage.await_answers(0, 1)


def test_it_does_not_take_over_for_much_less(stage: Stage, tmp_path: Path) -> None:
    """The running daemon serves the last good version of a manifest that has become faulty; a new one cannot."""
    for index in range(3):
        name = f"web-{index}"
        stage.write(name, service(name, f"10.96.0.{10 + index}"), endpoints(name, [0]))
    first = stage.daemon(QUICK)
    stage.await_answers(0, address=("10.96.0.12", 80))
    for index in range(2):
        (stage.manifests / f"web-{index}.yaml").write_text("kind: Service\n  broken")
    until(lambda: first.log().count("manifest") >= 2, "the faults are noticed")
    refused = second(stage, tmp_path, stage.manifests)
    assert refused.returncode == 1, refused.stderr
    assert "serves 3 Services, and this process would serve 1" in refused.stderr
    assert first.process.poll() is None
    for index in range(3):
        stage.await_answers(0, address=(f"10.96.0.{10 + index}", 80))
    forced = stage.daemon(QUICK, "--takeover=force")
    until(lambda: first.process.poll() == 0, "by force it takes over")
    assert "services=3" in _plain(forced.log())
    stage.await_answers(0, address=("10.96.0.12", 80))


def test_a_missing_source_fails_the_start(stage: Stage, tmp_path: Path) -> None:
    """Before anything is started, in words or in JSON."""
    missing = tmp_path / "missing"
    failed = second(stage, tmp_path, missing)
    assert failed.returncode == 64
    assert f"found {missing} (No such file or directory)" in failed.stderr
    failed = second(stage, tmp_path, missing, "--logging-format=json", f"--access-log={missing}/log")
    lines = [json.loads(line) for line in failed.stderr.splitlines()]
    reasons = [line["reason"] for line in lines if line["msg"] == "cannot start"]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "kubeproxy.manifests.paths[0]",
        "kubeproxy.accessLog",
    ]
    assert kernel_state.ours(stage.node) == []


def test_beside_a_daemon_of_another_user(stage: Stage, tmp_path: Path) -> None:
    """As the systemd unit runs: the two cannot speak with each other, and would fight over the rules."""
    public = Path(tempfile.mkdtemp(prefix="kubeproxy-e2e-"))
    try:
        public.chmod(0o755)
        others(public, [service(), endpoints("web", [0])])
        as_other = f"setpriv --reuid={USER} --regid={USER} --clear-groups --inh-caps={CAPS} --ambient-caps={CAPS}"
        options = (QUICK, "--workers=0", f"--manifests={public}")
        first = stage.daemon(*options, manifests=None, command=[*as_other.split(), KUBEPROXY])
        stage.await_answers(0)
        refused = second(stage, tmp_path, public)
        assert refused.returncode == 1, refused.stderr
        seen = f"(pid {first.process.pid}, user {USER})"
        assert f"a kubeproxy runs on this host already {seen}" in refused.stderr
        assert seen in run(stage, tmp_path, "cleanup").stderr
        stage.await_answers(0)
        assert "rules replaced ours" not in first.log()
    finally:
        shutil.rmtree(public)


LISTENING = """
import socket, time
with socket.create_server(("0.0.0.0", 10249)):
    print(flush=True)
    time.sleep(600)
"""


def test_kube_proxy_that_has_the_port_is_named(stage: Stage) -> None:
    """The first day's mistake: kube-proxy was not stopped. It is looked up before the capabilities are dropped."""
    stage.write_service([0])
    command = ["bash", "-c", 'exec -a kube-proxy "$@"', "bash", sys.executable, "-S", "-c", LISTENING]
    other = stage.node.popen(command, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline()
    try:
        daemon = stage.daemon(QUICK, metrics=("0.0.0.0", 10249))
        until(lambda: "cannot listen, trying again" in daemon.log(), "it reports the port")
    finally:
        other.kill()
        other.wait()
    log = _plain(daemon.log())
    assert f'reason="Address already in use by process {other.pid} (kube-proxy' in log
    assert f"of user {os.geteuid()}: stop it first (docs/migration.md)" in log
    until(lambda: "server=metrics" in daemon.log(), "it listens once the port is free")


def test_cleanup_beside_a_daemon(stage: Stage, tmp_path: Path) -> None:
    stage.write_service([0])
    first = stage.daemon(QUICK)
    stage.await_answers(0)
    refused = run(stage, tmp_path, "cleanup")
    assert refused.returncode == 1
    assert f"a kubeproxy runs on this host (pid {first.process.pid}, user 0)" in refused.stderr
    listed = run(stage, tmp_path, "cleanup", "--dry-run")
    assert (listed.returncode, listed.stdout) == (0, "would remove nftables: table inet kubeproxy\n")
    before = kernel_state.redirects(stage.node)
    assert before
    forced = run(stage, tmp_path, "cleanup", "--force")
    assert (forced.returncode, forced.stdout) == (0, "nftables: table inet kubeproxy\n")
    until(lambda: kernel_state.redirects(stage.node) == before, "the daemon restores its rules")
    first.terminate()
    assert run(stage, tmp_path, "cleanup").returncode == 0
    assert run(stage, tmp_path, "cleanup", "--dry-run").stdout == "nothing to remove\n"


def _plain(log: str) -> str:
    return log.replace("\x1b[36m", "").replace("\x1b[35m", "").replace("\x1b[0m", "")
