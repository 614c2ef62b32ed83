"""Checks of kubeproxy.service, by systemd and by its settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kubeproxy.config.load import load
from kubeproxy.config.schema import Configuration
from kubeproxy.model.errors import ConfigError
from kubeproxy.runtime.sd_notify import Notifier

SOURCES = Path(__file__).parents[3] / "systemd"
NEEDED_CAPABILITIES = {"CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW"}

systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here (package systemd)"
)


def settings() -> Mapping[str, Sequence[str]]:
    """Every setting of the unit, with its values in their order."""
    found: dict[str, list[str]] = {}
    for line in (SOURCES / "kubeproxy.service").read_text().splitlines():
        if match := re.fullmatch(r"([A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(ms|s|min|)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"ms": 0.001, "s": 1, "": 1, "min": 60}[unit]


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The installed unit, with a program that exists in the place of ours."""
    program = tmp_path / "bin/kubeproxy"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = tmp_path / "kubeproxy.service"
    path.write_text((SOURCES / "kubeproxy.service").read_text().replace("@PREFIX@", str(tmp_path)))
    return path


def analyze(*args: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@systemd
def test_systemd_accepts_the_unit_without_warnings(unit: Path) -> None:
    assert analyze("verify", "--man=no", str(unit)) == ""


@systemd
def test_the_exposure_level_is_low(unit: Path) -> None:
    judgement = analyze("security", "--offline=true", "--no-pager", "--threshold=30", str(unit))
    exposure = re.search(r"Overall exposure level for kubeproxy.service: ([\d.]+)", judgement)
    assert exposure is not None
    assert float(exposure[1]) <= 3.0


def test_the_watchdog_leaves_time_for_more_than_one_beat() -> None:
    (period,) = settings()["WatchdogSec"]
    notifier = Notifier("@absent", watchdog_s=seconds(period))
    notifier.close()
    assert notifier.beat_s <= seconds(period) / 2


def test_stopping_outlasts_the_grace_by_default() -> None:
    (patience,) = settings()["TimeoutStopSec"]
    assert seconds(patience) >= Configuration().kubeproxy.shutdown_grace.seconds + 10


def test_workers_outlive_a_crash_of_the_control_process() -> None:
    assert settings()["KillMode"] == ["process"]
    assert settings()["OOMPolicy"] == ["continue"]
    assert settings()["Restart"] == ["always"]


def test_a_faulty_configuration_does_not_start_again_and_again() -> None:
    assert settings()["RestartPreventExitStatus"] == [str(ConfigError.EXIT_STATUS)]


def test_the_configuration_is_checked_before_it_is_reloaded() -> None:
    check, signal = settings()["ExecReload"]
    (start,) = settings()["ExecStart"]
    assert check.split()[1] == "check"
    assert check.split()[2:] == start.split()[2:], "the check reads what the daemon reads"
    assert signal == "kill -HUP $MAINPID"


def test_it_has_the_capabilities_that_it_needs_and_no_other() -> None:
    for setting in ("CapabilityBoundingSet", "AmbientCapabilities"):
        (capabilities,) = settings()[setting]
        assert set(capabilities.split()) == NEEDED_CAPABILITIES


def test_workers_may_drop_capabilities_and_helpers_may_lower_their_priority() -> None:
    allowed = settings()["SystemCallFilter"][-1].split()
    assert {"capset", "prlimit64", "setpriority"} <= set(allowed)


def test_the_example_configuration_is_valid_and_every_setting_has_an_effect() -> None:
    loaded = load({"config": [str(SOURCES / "etc/config.yaml")]})
    assert loaded.warnings == ()
    assert loaded.configuration.kubeproxy.manifests.paths == ("/etc/kubeproxy/manifests",)


def test_the_example_manifest_is_valid_and_not_taken_by_itself(tmp_path: Path) -> None:
    from kubeproxy.sources.manifests.check import check

    (example,) = (SOURCES / "etc/manifests").iterdir()
    shutil.copy(example, tmp_path)
    assert (check([str(tmp_path)]).faults, check([str(tmp_path)]).manifests) == ((), 0)
    enabled = tmp_path / "example.yaml"
    (tmp_path / example.name).rename(enabled)
    survey = check([str(enabled)])
    assert survey.faults == ()
    assert survey.services > 0
    enabled.write_text(enabled.read_text().replace("clusterIP: 10.96.0.10", "clusterIP: 10.96.0.300"))
    assert check([str(enabled)]).faults != ()


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not here (package systemd)")
def test_the_user_and_the_lock_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "run").mkdir()
    subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", "-"],
        input=(SOURCES / "kubeproxy.sysusers").read_text(),
        text=True,
        check=True,
        timeout=60,
    )
    (line,) = [line for line in (tmp_path / "etc/passwd").read_text().splitlines() if line.startswith("kubeproxy:")]
    assert line.endswith("nologin")
    for line in (SOURCES / "kubeproxy.tmpfiles").read_text().splitlines():
        if not line.startswith("#"):
            assert line.split()[2:5] == ["0660", "root", "kubeproxy"]
