"""`kubeproxy bugreport`: what is in the archive, and that no planted secret is."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeproxy.cli import main
from kubeproxy.observability.redaction import HIDDEN
from tests.support.lab.daemon import KUBEPROXY
from tests.system.browser.shop import Shop, open_shop

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJwbGFudGVkIn0.c2lnbmF0dXJl"
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEplantedkey\n-----END RSA PRIVATE KEY-----"
PLANTED = ("planted-password", "planted-query", "MIIEplantedkey", TOKEN, "planted-opaque")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with open_shop(tmp_path_factory.mktemp("manifests")) as opened:
        yield opened


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


@pytest.mark.netns
def test_the_archive_has_what_a_stranger_needs_and_no_secret(shop: Shop, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nkubeproxy:\n"
        "  manifests: {paths: ['https://me:planted-password@host/?q=planted-query']}\n"
        f"# token: planted-opaque {TOKEN}\n" + "".join(f"# {line}\n" for line in KEY.splitlines())
    )
    sleeper = shop.network.node.popen(
        ["sh", "-c", "sleep 60; :", "kubeproxy", "--password=planted-password", f"--bearer-token={TOKEN}"]
    )
    try:
        archive = tmp_path / "report.tar.gz"
        command = [KUBEPROXY, "bugreport", "-o", str(archive), "--config", str(config)]
        done = shop.network.node.run(command, check=False)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert (done.returncode, done.stderr) == (0, "")
    assert str(archive) in done.stdout
    assert archive.stat().st_mode & 0o777 == 0o600
    found = unpacked(archive)
    assert "shop/web" in found["status.txt"]
    assert "kubeproxy_connections_accepted_total" in found["metrics.txt"]
    assert "KubeProxyConfiguration" in found["config.yaml"]
    assert "10.96.0.1" in found["rules/nftables-own.txt"]
    assert "default via" in found["network/routes4.txt"] or "10.3." in found["network/routes4.txt"]
    assert "net.ipv4.ip_forward = " in found["sysctls.txt"]
    assert "Max open files" in found["processes.txt"]
    assert "kubeproxy_" not in found["versions/kubeproxy.txt"]
    assert "log.txt" in found["manifest.txt"], "the log, or why it is not there"
    assert HIDDEN in found["config.yaml"]
    assert HIDDEN in found["processes.txt"], "the process with a password was seen"
    leaked = [(name, secret) for name, text in found.items() for secret in PLANTED if secret in text]
    assert leaked == []


def test_without_a_daemon_the_manifest_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "report.tar.gz"
    words = ["bugreport", "-o", str(archive), "--address=127.0.0.1:1", f"--config={tmp_path / 'none.yaml'}"]
    assert main.status_of(words) == 0
    missing = [line for line in unpacked(archive)["manifest.txt"].splitlines() if "MISSING" in line]
    assert any(line.startswith("status.txt: MISSING: no daemon answers at 127.0.0.1:1") for line in missing)
    assert any(line.startswith("config.yaml: MISSING") for line in missing)
    assert main.status_of(words) == 1, "an archive is never overwritten"
    assert "File exists" in capsys.readouterr().err
