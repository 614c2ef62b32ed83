"""`make install` into a directory of its own, `make uninstall`, and the Debian package of the same files.

The environment is built once: all other installations here, and the package, get a copy of it.
`bash tests/system/systemd/try.sh deb` installs, upgrades, rolls back, removes and purges the package under a real
systemd.
"""

from __future__ import annotations

import os
import shutil
import stat
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


def run(*command: str | Path, timeout: float = 60) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True, slots=True)
class Target:
    """A directory that stands for a whole host."""

    directory: Path
    sources: Path
    """The tree whose make targets are called."""

    def make(self, what: str, *variables: str) -> str:
        done = self.try_to_make(what, *variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def try_to_make(self, what: str, *variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "--no-print-directory", what, f"DESTDIR={self.directory}", "PREFIX=/usr", *variables],
            cwd=self.sources,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
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


def sources_with(environment: Path, directory: Path) -> Path:
    """Make a tree of sources in `directory` whose installations get a copy of `environment`, and return it."""
    deploy = directory / "deploy"
    deploy.mkdir(parents=True)
    for here in (ROOT, ROOT / "deploy"):
        for path in here.iterdir():
            link = directory / path.relative_to(ROOT)
            if not link.exists():
                link.symlink_to(path)
    (deploy / "venv.sh").unlink()
    (deploy / "venv.sh").write_text(f'rm -rf "$2" && cp -a {environment} "$2"\n')
    return directory


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if not index_answers():
        pytest.skip("the package index cannot be reached from here")
    directory = tmp_path_factory.mktemp("built")
    built = Target(directory / "root", ROOT)
    (built.directory / "etc/kubeproxy").mkdir(parents=True)
    (built.directory / "etc/kubeproxy/config.yaml").write_text("mine\n")
    built.kube_proxy.parent.mkdir(parents=True)
    built.kube_proxy.write_text(FOREIGN)
    printed = built.make("install")
    assert f"kept: {built.directory}/etc/kubeproxy/config.yaml\n" in printed
    assert f"kept: {built.kube_proxy}, which is not kubeproxy's\n" in printed
    # What a package carries elsewhere must not remember where it was made.
    moved = directory / "elsewhere"
    built.directory.rename(moved)
    environment = directory / "environment"
    shutil.copytree(moved / "usr/lib/kubeproxy", environment, symlinks=True)
    yield Target(moved, sources_with(environment, directory / "sources"))
    shutil.rmtree(directory)


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


@pytest.mark.timeout(420)
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
    assert done.stdout == f"kubeproxy {__version__}\nbyte path: compiled\n"
    modules = (
        "kubeproxy.daemon.control_process",
        "kubeproxy.kubernetes.client.credentials",
        "iptc",
        "kubernetes_asyncio.client",
    )
    imports = f"import {', '.join(modules)}"
    subprocess.run([python, "-I", "-c", imports], check=True, timeout=60, env={"PATH": os.environ["PATH"]})


def test_nothing_for_building_is_left_and_everything_is_compiled(installed: Target) -> None:
    (site,) = (installed.directory / "usr/lib/kubeproxy/lib").glob("python3*/site-packages")
    assert not (site / "pip").exists()
    assert not (site / "setuptools").exists()
    assert not (site / "mypy").exists()
    for source in (site / "kubeproxy").rglob("*.py"):
        assert list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")), source


@pytest.fixture(scope="module")
def package(installed: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built with the Python of this host."""
    if shutil.which("dpkg-shlibdeps") is None:
        pytest.skip("dpkg-dev is not here")
    if not Path("/usr/bin/python3").exists():
        pytest.skip("there is no Python of the distribution")
    directory = tmp_path_factory.mktemp("deb")
    tools = tmp_path_factory.mktemp("tools")
    (tools / "dpkg-deb").write_text(f'#!/bin/sh\n{shutil.which("dpkg-deb")} "$@" && ls {directory} >>{tools}/built\n')
    (tools / "dpkg-deb").chmod(0o755)
    # What is built here is never downloaded: most of the time would be for packing.
    variables = (f"PATH={tools}:{os.environ['PATH']}", "DPKG_DEB_COMPRESSOR_LEVEL=0")
    run("env", *variables, "bash", installed.sources / "deploy/build-deb.sh", directory)
    (found,) = directory.iterdir()
    assert found.suffix == ".deb"
    assert (tools / "built").read_text() == f"{found.name}.new\n", "nobody meets half a package"
    return found


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the package, its control files in ``DEBIAN``."""
    directory = tmp_path_factory.mktemp("unpacked") / "root"
    run("dpkg-deb", "-R", package, directory)
    return directory


def test_what_is_in_the_package(package: Path, unpacked: Path) -> None:
    fields = run("dpkg-deb", "-f", package, "Package", "Version", "Architecture", "Depends")
    assert f"Version: {__version__}-1\n" in fields
    assert f"Architecture: {run('dpkg', '--print-architecture')}" in fields
    assert "nftables | iptables" in fields
    assert "python3 (>= 3." in fields
    assert (unpacked / "DEBIAN/conffiles").read_text().split() == [
        "/etc/kubeproxy/config.yaml",
        "/etc/kubeproxy/environment",
        "/etc/kubeproxy/manifests/example.yaml.disabled",
    ]
    assert (unpacked / "usr/lib/systemd/system/kubeproxy.service").is_file()
    assert (unpacked / "usr/share/man/man8/kubeproxy.8.gz").is_file()
    (iptc,) = unpacked.glob("usr/lib/kubeproxy/lib/python3.*/site-packages/iptc")
    assert iptc.is_dir(), "the legacy tables work in every installation of ours"


def test_the_package_replaces_no_program_of_others(unpacked: Path) -> None:
    assert [path.name for path in (unpacked / "usr/bin").iterdir()] == ["kubeproxy"]
    assert not (unpacked / "usr/local").exists()
    control = (unpacked / "DEBIAN/control").read_text()
    for relation in ("Replaces", "Conflicts", "Provides"):
        assert f"{relation}:" not in control


def test_all_files_of_the_package_are_roots_and_only_root_may_write_them(package: Path, unpacked: Path) -> None:
    listing = run("dpkg-deb", "-c", package).splitlines()
    assert all(line.split()[1] == "root/root" for line in listing)
    for path in unpacked.rglob("*"):
        if not path.is_symlink():
            assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), path


def test_the_program_of_the_package_runs_from_where_it_is_unpacked(unpacked: Path) -> None:
    python = unpacked / "usr/lib/kubeproxy/bin/python"
    said = run(python, unpacked / "usr/lib/kubeproxy/bin/kubeproxy", "version")
    assert said == f"kubeproxy {__version__}\nbyte path: compiled\n"


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
