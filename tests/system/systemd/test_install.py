"""`make install` into a directory of its own, and `make uninstall`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kubeproxy.model.version import __version__
from tests.system.deploy.registry import index_answers

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Target:
    """A directory that stands for a whole host."""

    directory: Path

    def make(self, what: str, *variables: str) -> str:
        done = self.try_to_make(what, *variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def try_to_make(self, what: str, *variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "--no-print-directory", what, f"DESTDIR={self.directory}", "PREFIX=/usr", *variables],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )

    @property
    def kube_proxy(self) -> Path:
        return self.directory / "usr/bin/kube-proxy"

    def files(self) -> set[str]:
        return {
            str(path.relative_to(self.directory))
            for path in self.directory.rglob("*")
            if not path.is_dir() and "usr/lib/kubeproxy" not in str(path)
        }


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if not index_answers():
        pytest.skip("the package index cannot be reached from here")
    built = Target(tmp_path_factory.mktemp("built") / "root")
    (built.directory / "etc/kubeproxy").mkdir(parents=True)
    (built.directory / "etc/kubeproxy/config.yaml").write_text("mine\n")
    built.kube_proxy.parent.mkdir(parents=True)
    built.kube_proxy.write_text(FOREIGN)
    printed = built.make("install")
    assert f"kept: {built.directory}/etc/kubeproxy/config.yaml\n" in printed
    assert f"kept: {built.kube_proxy}, which is not kubeproxy's\n" in printed
    # What a package carries elsewhere must not remember where it was made.
    moved = Target(built.directory.with_name("elsewhere"))
    built.directory.rename(moved.directory)
    yield moved
    shutil.rmtree(moved.directory)


FOREIGN = "kube-proxy's own program\n"
FILES = {
    "usr/bin/kubeproxy",
    "usr/bin/kube-proxy",
    "usr/share/bash-completion/completions/kubeproxy",
    "usr/share/zsh/vendor-completions/_kubeproxy",
    "usr/share/fish/vendor_completions.d/kubeproxy.fish",
    "usr/lib/systemd/system/kubeproxy-controllers.service",
    "usr/lib/systemd/system/kubeproxy.service",
    "usr/lib/sysusers.d/kubeproxy.conf",
    "usr/lib/tmpfiles.d/kubeproxy.conf",
    "etc/kubeproxy/config.yaml",
    "etc/kubeproxy/environment",
    "etc/kubeproxy/manifests/example.yaml.disabled",
}


@pytest.mark.timeout(150)
def test_what_is_installed(installed: Target) -> None:
    man = {"usr/share/man/man8/kubeproxy.8"} if (ROOT / "docs/kubeproxy.8").exists() else set()
    assert installed.files() == FILES | man
    unit = (installed.directory / "usr/lib/systemd/system/kubeproxy.service").read_text()
    assert "ExecStart=/usr/bin/kubeproxy run" in unit
    assert "@" not in unit.replace("@system-service", "").replace("@privileged", "").replace("@resources", "")
    assert (installed.directory / "etc/kubeproxy/config.yaml").read_text() == "mine\n", "it is the administrator's"


def test_it_runs_wherever_it_was_moved(installed: Target) -> None:
    venv = installed.directory / "usr/lib/kubeproxy"
    python = venv / "bin/python"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert (installed.directory / "usr/bin/kubeproxy").readlink() == Path("../lib/kubeproxy/bin/kubeproxy")
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        text = (venv / "bin" / name).read_text()
        assert text.startswith("#!/usr/lib/kubeproxy/bin/python\n")
        assert f"from {module} import {function}\n" in text
    done = subprocess.run(
        [python, venv / "bin/kubeproxy", "version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"kubeproxy {__version__}\n"
    imports = (
        "import kubeproxy.daemon.lifecycle, kubeproxy.kubernetes.client.credentials, iptc, kubernetes_asyncio.client"
    )
    subprocess.run([python, "-I", "-c", imports], check=True, timeout=60, env={"PATH": os.environ["PATH"]})


def test_nothing_for_building_is_left_and_everything_is_compiled(installed: Target) -> None:
    (site,) = (installed.directory / "usr/lib/kubeproxy/lib").glob("python3*/site-packages")
    assert not (site / "pip").exists()
    assert not (site / "setuptools").exists()
    for source in (site / "kubeproxy").rglob("*.py"):
        assert list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")), source


def test_another_program_of_the_same_name_stays(installed: Target) -> None:
    assert installed.kube_proxy.read_text() == FOREIGN
    assert "kept" in installed.make("install", "ALIAS=1")
    assert installed.kube_proxy.read_text() == FOREIGN, "not even where the alias is asked for"
    program = installed.directory / "usr/bin/kubeproxy"
    ours = program.readlink()
    program.unlink()
    program.write_text(FOREIGN)
    refused = installed.try_to_make("install")
    assert refused.returncode != 0
    assert "is another program" in refused.stderr
    assert program.read_text() == FOREIGN
    program.unlink()
    program.symlink_to(ours)


def test_uninstalling_leaves_the_administrators_files(installed: Target) -> None:
    installed.make("uninstall")
    left = {path for path in installed.files() if "manifests" not in path}
    assert left == {
        "usr/bin/kube-proxy",
        "etc/kubeproxy/config.yaml",
        "etc/kubeproxy/environment",
    }
    assert not (installed.directory / "usr/lib/kubeproxy").exists()
    assert installed.kube_proxy.read_text() == FOREIGN


@pytest.mark.timeout(150)
def test_the_alias_is_made_and_removed(installed: Target) -> None:
    """After the tests above: nothing is installed any more."""
    installed.kube_proxy.unlink()
    installed.make("install", "ALIAS=1")
    assert installed.kube_proxy.readlink() == Path("../lib/kubeproxy/bin/kube-proxy")
    installed.make("uninstall")
    assert not installed.kube_proxy.is_symlink()
