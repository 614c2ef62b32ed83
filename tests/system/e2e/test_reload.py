"""SIGHUP: the running daemon reads the configuration file again."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.lab import Daemon
from tests.support.lab.daemon import KUBEPROXY, METRICS
from tests.system.e2e import kernel_state
from tests.system.e2e.stage import VIP, Stage, until
from tests.system.e2e.traffic import Traffic

pytestmark = pytest.mark.netns

LONG = {"iptables": {"syncPeriod": "1h", "minSyncPeriod": "20ms"}}
MUTE = "10.3.0.9"
"""A pod address that no host has."""


def write(config: Path, **settings: Any) -> None:
    """Write these settings to the file."""
    head = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
    config.write_text(yaml.safe_dump(head | LONG | settings))


def serve(stage: Stage, config: Path, **settings: Any) -> Daemon:
    """A daemon with that file, and a Service that answers."""
    write(config, **settings)
    stage.write_service([0, 1])
    daemon = stage.daemon(f"--config={config}", "--workers=1")  # all its sockets are open when it is ready
    stage.await_answers(0, 1)
    return daemon


def reload(daemon: Daemon, *, says: str = "configuration reloaded") -> None:
    """Send SIGHUP and wait for the log message of its result."""
    before = daemon.log().count(says)
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.log().count(says) > before, f"it says {says!r}")


def in_effect(daemon: Daemon) -> dict[str, Any]:
    """The iptables group of /configz."""
    found = json.loads(daemon.get("/configz", address=METRICS).body)["kubeproxy.config.k8s.io"]
    (group,) = (value for name, value in found.items() if name.lower() == "iptables")
    assert isinstance(group, dict)
    return group


def test_the_log_level_changes_both_ways(stage: Stage, config: Path) -> None:
    daemon = serve(stage, config)
    assert " debug " not in daemon.log()
    write(config, logging={"verbosity": 8})
    reload(daemon)
    stage.write_service([1])
    until(lambda: " debug " in daemon.log(), "debug lines")
    write(config, logging={"format": "json"})
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: '"configuration reloaded"' in daemon.log(), "JSON lines")
    (line,) = (line for line in daemon.log().splitlines() if '"configuration reloaded"' in line)
    assert json.loads(line)["changed"] == ["logging.format", "logging.verbosity"]


def test_dial_timeouts(stage: Stage, config: Path) -> None:
    daemon = serve(stage, config, kubeproxy={"dialTimeouts": ["1h"]})
    stage.write_service([MUTE], name="mute", vip="10.96.0.20")
    until(lambda: ("10.96.0.20", 80) in kernel_state.redirects(stage.node), "the mute one is known")
    # The address is on the link, but no host answers or refuses.
    stage.node.run(["nft", "-f", "-"], input=f"add rule inet nowhere postrouting ip daddr {MUTE} drop\n")
    with stage.client.connect(("10.96.0.20", 80)) as waiting:
        waiting.settimeout(0.5)
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        write(config, kubeproxy={"dialTimeouts": ["20ms", "20ms"]})
        reload(daemon)
        with stage.client.connect(("10.96.0.20", 80), timeout=10) as sock, pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_the_grace_at_the_end(stage: Stage, config: Path) -> None:
    daemon = serve(stage, config, kubeproxy={"shutdownGrace": "1h"})
    write(config, kubeproxy={"shutdownGrace": "500ms", "cleanupOnExit": True})
    reload(daemon)
    with stage.client.connect((VIP, 80)) as held:
        held.sendall(b"echo\nbefore")
        assert held.recv(100) == b"before"
        assert daemon.terminate() == 0
    assert "connections are cut off open=1" in daemon.log()
    assert kernel_state.ours(stage.node) == []


def test_the_sync_period(stage: Stage, config: Path) -> None:
    daemon = serve(stage, config)
    write(config, iptables={"syncPeriod": "200ms", "minSyncPeriod": "20ms"})
    stage.node.run(["nft", "delete", "table", "inet", "kubeproxy"])
    reload(daemon)
    stage.await_answers(0, 1)
    assert in_effect(daemon)["SyncPeriod"] == "200ms"


def test_a_faulty_file_is_refused_and_the_old_configuration_stays(stage: Stage, config: Path) -> None:
    daemon = serve(stage, config)
    before = in_effect(daemon)
    faults = {
        "syntax": "{",
        "empty": "",
        "value": "iptables: {syncPeriod: soon, minSyncPeriod: -1s}\nkubeproxy: {dialTimeouts: []}",
        "shape": "iptables: [1]",
        "kind": "apiVersion: v1\nkind: ConfigMap\n",
    }
    with Traffic(stage.client) as traffic:
        for name, text in faults.items():
            head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
            config.write_text(head + text if name in ("value", "shape") else text)
            reload(daemon, says="configuration rejected, old one stays")
            assert in_effect(daemon) == before, name
        config.unlink()
        reload(daemon, says="configuration rejected, old one stays")
        traffic.more()
        write(config, iptables={"syncPeriod": "1m", "minSyncPeriod": "20ms"})
        reload(daemon)
        traffic.more()
    assert traffic.failures == []
    assert in_effect(daemon)["SyncPeriod"] == "1m0s"
    for path in ("iptables.syncPeriod", "iptables.minSyncPeriod", "kubeproxy.dialTimeouts"):
        assert f'fault="{path}: found' in daemon.log()
    assert "Traceback" not in daemon.log()


def test_what_waits_for_a_restart_is_named(stage: Stage, config: Path) -> None:
    daemon = serve(stage, config)
    before = kernel_state.redirects(stage.node)
    write(config, bindAddress="127.0.0.1")
    reload(daemon, says="configuration change needs restart")
    assert "bindAddress" in daemon.log().splitlines()[-1]
    assert kernel_state.redirects(stage.node) == before


def test_a_wider_port_range_serves_a_waiting_service_at_once(stage: Stage, config: Path) -> None:
    daemon = serve(stage, config, portRange="20000")
    stage.write_service([2], name="second", vip="10.96.0.20")
    until(lambda: "all TCP ports of --proxy-port-range 20000-20000 are taken" in daemon.log(), "no port is left")
    with Traffic(stage.client) as traffic:
        write(config, portRange="20001-20002")
        reload(daemon)
        stage.await_answers(2, address=("10.96.0.20", 80))
        traffic.more()
    assert traffic.failures == []
    assert kernel_state.redirects(stage.node) == {(VIP, 80): 20000, ("10.96.0.20", 80): 20001}


def test_a_reload_disturbs_no_client(stage: Stage, config: Path) -> None:
    daemon = serve(stage, config)
    sockets = kernel_state.listening(stage.node)
    with Traffic(stage.client) as traffic, stage.client.connect((VIP, 80)) as held:
        held.sendall(b"echo\nbefore")
        assert held.recv(100) == b"before"
        for _ in range(20):
            daemon.process.send_signal(signal.SIGHUP)
            traffic.more(5)
        held.sendall(b"after")
        assert held.recv(100) == b"after"
        held.shutdown(socket.SHUT_WR)
        assert held.recv(100) == b""
    assert traffic.failures == []
    assert kernel_state.listening(stage.node) == sockets


def test_a_refused_reload_is_visible(stage: Stage, tmp_path: Path) -> None:
    """In the status, in metrics, and to a command that meets the same fault in the file."""
    stage.write_service([0])
    config = tmp_path / "config.yaml"
    head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    config.write_text(head)
    daemon = stage.daemon(f"--config={config}")

    def status() -> str:
        done = stage.node.run([KUBEPROXY, "status", "--config", str(config)], check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def metric(name: str) -> float:
        text = daemon.get("/metrics", address=("127.0.0.1", 10249)).body
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))

    def reload(text: str, said: str) -> None:
        config.write_text(head + text)
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: said in daemon.log(), said)

    assert f"config      {config}: in effect since 20" in status()
    loaded_at = metric("kubeproxy_config_last_reload_success_timestamp_seconds")
    reload("udpIdleTimeout: 60\n", "configuration rejected")
    until(lambda: metric("kubeproxy_config_last_reload_successful") == 0, "the metric shows it")
    until(lambda: "\n  configuration: the file is refused" in status(), "the status shows it")
    seen = status()
    assert f"{config}: INVALID since 20" in seen
    assert "udpIdleTimeout: found 60" in seen
    assert metric("kubeproxy_config_last_reload_success_timestamp_seconds") == loaded_at
    reload("healthzBindAddress: 127.0.0.1:1234\n", "configuration change needs restart")
    until(lambda: metric("kubeproxy_config_last_reload_successful") == 1, "it is in effect")
    assert metric("kubeproxy_config_restart_needed_fields") == 1
    until(lambda: "restart needed for: healthzBindAddress" in status(), "the status shows that, too")
    assert "INVALID" not in status()
    assert "the file is refused" not in status()
    assert metric("kubeproxy_config_last_reload_success_timestamp_seconds") > loaded_at
