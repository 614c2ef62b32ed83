"""What a build executes is what was locked: finding 11 of the attack review."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.system.deploy.manifests import DEPLOY

ROOT = DEPLOY.parent
SCRIPTS = [ROOT / "Dockerfile", ROOT / "tests/tools/setup.sh", *sorted(DEPLOY.glob("*.sh"))]
LOCKS = sorted(ROOT.glob("requirements*.lock"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_everything_that_is_locked_has_a_hash(lock: Path) -> None:
    entries = re.split(r"\n(?=\S)", lock.read_text().strip())
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_nothing_is_installed_without_hashes(script: Path) -> None:
    """Ourselves apart, from the sources at hand."""
    for line in script.read_text().splitlines():
        if "pip install" in line and not line.startswith("#"):
            assert "--require-hashes" in line or "--no-deps --no-build-isolation --editable ." in line, line


@pytest.mark.parametrize("script", [ROOT / "tests/tools/setup.sh", DEPLOY / "venv.sh"], ids=lambda path: path.name)
def test_build_tools_come_first_and_no_others_are_fetched(script: Path) -> None:
    """By itself pip fetches the newest build tools for a source package, without a look at any lock."""
    lines = [line for line in script.read_text().splitlines() if re.search(r" -r requirements\S*\.lock$", line)]
    first, second = lines
    assert "--only-binary :all:" in first
    assert first.endswith("-r requirements-build.lock")
    assert "--no-build-isolation" in second
    assert not second.endswith("requirements-build.lock")


def test_the_base_of_the_image_is_a_digest() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/debian:[\w.-]+-slim@sha256:[0-9a-f]{64}", base)
    stages = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert stages == ["${BASE}", "${BASE}", "scratch"], "nothing else comes from a registry"


def test_the_context_of_a_build_has_all_that_the_image_copies() -> None:
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {source for line in copied for source in line.split()} == kept


def test_an_image_without_a_registry_is_not_pushed() -> None:
    """The build would take minutes before the push fails."""
    done = subprocess.run(
        ["bash", str(DEPLOY / "build-image.sh")],
        env={**os.environ, "PUSH": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 64
    assert "names no registry; for example TAG=registry.example.com/kubeproxy" in done.stderr


def test_debootstrap_demands_signatures() -> None:
    (line,) = re.findall(r"^ +debootstrap .*$", (DEPLOY / "build-image.sh").read_text(), re.MULTILINE)
    assert "--force-check-gpg" in line


def test_with_these_options_pip_refuses_what_has_another_hash(tmp_path: Path) -> None:
    """And it says so before it executes anything."""
    wheel = tmp_path / "tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tool-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n")
        archive.writestr("tool-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tool-1.0.dist-info/RECORD", "")
    lock = tmp_path / "requirements-build.lock"
    lock.write_text(f"tool==1.0 --hash=sha256:{'0' * 64}\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path)),
            *("--target", str(tmp_path / "target"), "--only-binary", ":all:", "--require-hashes", "-r", str(lock)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
