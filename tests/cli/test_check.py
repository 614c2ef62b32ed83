"""``kubeproxy check``."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.cli import main
from tests.config.files import write

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
"""


def test_a_good_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["check", "--config", write(tmp_path, "ipvs: {scheduler: rr}")]) == 0
    out, err = capsys.readouterr()
    assert out == "configuration is valid\n"
    assert err == "warning: accepted, but without effect: ipvs.scheduler\n"


def test_every_fault_of_a_configuration_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["check", "--config", write(tmp_path, "mode: a\nbindAddress: b\n")]) == 64
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["mode", "bindAddress"]


def test_good_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yaml").write_text(SERVICE)
    assert main.status_of(["check", "--manifests", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        "configuration and manifests are valid: 1 Service and 0 EndpointSlices in 1 manifest\n"
    )


def test_faulty_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yaml").write_text(SERVICE.replace("port: 80", "port: 65536"))
    (tmp_path / "other.yaml").write_text("a: [")
    assert main.status_of(["check", "--manifests", str(tmp_path)]) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "web.yaml" in err
    assert "other.yaml" in err


def test_an_enforced_namespace_applies_to_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yaml").write_text(SERVICE)
    assert main.status_of(["check", "--manifests", str(tmp_path), "--namespace", "other"]) == 64
    assert "other" in capsys.readouterr().err
