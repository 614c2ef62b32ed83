"""A release is made of what is committed. With KUBEPROXY_RELEASE=dist, what `make release` made is looked at."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kubeproxy.model.version import __version__
from tests.system.deploy.manifests import ROOT

RELEASE = Path(os.environ.get("KUBEPROXY_RELEASE", ""))

made = pytest.mark.skipif(
    not os.environ.get("KUBEPROXY_RELEASE"), reason="no release to look at: `make release`, and KUBEPROXY_RELEASE=dist"
)


def test_uncommitted_changes_are_refused(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "deploy").mkdir(parents=True)
    shutil.copy(ROOT / "deploy/release.sh", checkout / "deploy")
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    command = ["bash", str(checkout / "deploy/release.sh"), str(tmp_path / "dist")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "release: commit or remove these first:\n?? deploy/" in done.stderr
    assert not (tmp_path / "dist").exists()


@made
def test_its_sums_hold() -> None:
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=RELEASE, check=True)
    named = {line.split()[1] for line in (RELEASE / "SHA256SUMS").read_text().splitlines()}
    assert named == {file.name for file in RELEASE.glob("kubeproxy*")}


@made
@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not here (make test fetches it)")
def test_helm_reads_the_chart() -> None:
    chart = RELEASE / f"kubeproxy-chart-{__version__}.tgz"
    command = ["helm", "template", str(chart), "--set=image.repository=it,apiServer.host=192.0.2.1"]
    assert "kind: DaemonSet" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@made
def test_the_sboms_list_what_is_locked() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9._-]+)==([^ ;]+)", lock, re.MULTILINE))
    boms = sorted(RELEASE.glob("*.cdx.json"))
    assert boms
    for bom in boms:
        components = json.loads(bom.read_text())["components"]
        listed = {(it["name"].lower().replace("_", "-"), it.get("version")) for it in components}
        assert locked - listed == set(), bom.name
