"""The wheel: installed without a compiler, without python-iptables, and what it says about itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from email.message import Message
from email.parser import Parser
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from kubeproxy.model.version import __version__
from tests.system.deploy.manifests import ROOT
from tests.system.deploy.registry import index_answers

pytestmark = pytest.mark.long

UV = str(Path(sys.executable).with_name("uv"))


def run(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, timeout: float = 110
) -> subprocess.CompletedProcess[str]:
    """Run a command of the tests; its output is text, its status not checked."""
    return subprocess.run(
        [*map(str, command)],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def build(directory: Path, url: str = "") -> Path:
    """Build the wheel with the environment's own build backend."""
    done = run(
        [UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", directory],
        env={"PROJECT_URL": url},
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


def metadata(wheel: Path) -> Message:
    """The core metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a user builds it."""
    return build(tmp_path_factory.mktemp("wheel"))


def test_it_names_its_home_only_if_the_builder_does(wheel: Path, tmp_path: Path) -> None:
    assert metadata(wheel).get_all("Project-URL") is None
    named = metadata(build(tmp_path, "https://git.example.com/kubeproxy/blob/main/"))
    assert set(named.get_all("Project-URL") or []) == {
        "Homepage, https://git.example.com/kubeproxy/blob/main",
        "Documentation, https://git.example.com/kubeproxy/blob/main/docs/install.md",
        "Changelog, https://git.example.com/kubeproxy/blob/main/CHANGELOG.md",
        "Security, https://git.example.com/kubeproxy/blob/main/SECURITY.md",
    }
    refused = run(
        [UV, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", tmp_path],
        env={"PROJECT_URL": "git.example.com"},
    )
    assert refused.returncode != 0
    assert "allowed: a URL that begins with https://" in refused.stderr


def test_it_brings_no_program_of_another_name(wheel: Path) -> None:
    """pip would replace another `kube-proxy` without a word."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert archive.read(name).decode().split("\n", 1)[1].split() == ["kubeproxy", "=", "kubeproxy.cli.main:main"]


def test_only_the_extra_needs_a_compiler(wheel: Path) -> None:
    required = metadata(wheel).get_all("Requires-Dist") or []
    assert [line for line in required if "iptables" in line and "extra" not in line] == []
    assert "python-iptables>=1.2; extra == 'iptables'" in required


def test_one_with_compiled_modules_says_for_which_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler itself is tried where a host installs (tests/system/systemd/test_install.py)."""
    compiled = f"kubeproxy.dataplane.tcp.flow{EXTENSION_SUFFIXES[0]}"
    monkeypatch.setattr(subprocess, "run", lambda command, **_: Path(command[-1], compiled).touch())
    monkeypatch.setenv("HATCH_BUILD_HOOK_ENABLE_CUSTOM", "true")
    (made,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert re.fullmatch(rf"kubeproxy-{__version__}-{tag}-{tag}-linux_\w+\.whl", Path(made).name)
    with zipfile.ZipFile(made) as archive:
        assert f"kubeproxy/compiled/{compiled}" in archive.namelist()
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: false" in archive.read(about).decode()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in an environment for which not one package was compiled; the versions are those of the lock."""
    if not index_answers():
        pytest.skip("the package index cannot be reached from here")
    directory = tmp_path_factory.mktemp("installed")
    venv = directory / "venv"
    done = run([sys.executable, "-m", "venv", "--without-pip", venv])
    assert done.returncode == 0, done.stderr
    constraints = directory / "constraints"
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    constraints.write_text("".join(line.removesuffix(" \\") + "\n" for line in lines if "==" in line))
    install: list[str | Path] = [
        UV,
        "pip",
        "install",
        "--quiet",
        "--no-build",
        "--python",
        venv,
        "--constraint",
        constraints,
        wheel,
    ]
    done = run(install, timeout=220)
    assert done.returncode == 0, done.stderr
    return venv / "bin"


@pytest.mark.timeout(240)
def test_it_is_installed_without_a_compiler(installed: Path) -> None:
    assert run([installed / "kubeproxy", "version"]).stdout == f"kubeproxy {__version__}\nbyte path: pure\n"
    assert run([installed / "python", "-c", "import iptc"]).returncode != 0
    assert run([installed / "kubeproxy", "check", "--config", ROOT / "deploy/base/config.yaml"]).returncode == 0


SERVE = """
ip link set lo up
kubeproxy run --netfilter=$1 --manifests=$2 &
daemon=$!
for _ in $(seq 200); do
  kubeproxy healthcheck >/dev/null 2>&1 && break
  kill -0 $daemon 2>/dev/null || break
  sleep 0.1
done
kubeproxy healthcheck
kill $daemon 2>/dev/null
wait $daemon
"""


def serve(installed: Path, netfilter: str, manifests: Path) -> subprocess.CompletedProcess[str]:
    """Run the daemon in a network namespace until it is ready or ends. The status is the daemon's."""
    path = {"PATH": f"{installed}:{os.environ['PATH']}"}
    return run(["unshare", "--net", "bash", "-c", SERVE, "serve", netfilter, manifests], env=path)


@pytest.mark.netns
@pytest.mark.timeout(240)
def test_without_the_extra_it_serves_by_nftables(installed: Path, tmp_path: Path) -> None:
    done = serve(installed, "nftables", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nftables, as configured" in done.stderr
    assert "python-iptables" not in done.stderr


@pytest.mark.netns
@pytest.mark.timeout(240)
def test_the_legacy_tables_name_the_extra(installed: Path, tmp_path: Path) -> None:
    done = serve(installed, "iptables", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "pip install 'kubeproxy[iptables]'" in done.stderr
    assert "Traceback" not in done.stderr
