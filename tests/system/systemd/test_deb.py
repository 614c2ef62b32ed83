"""The Debian package: its contents, what it needs, and what its scripts do not do.

`bash tests/system/systemd/try.sh deb` installs, upgrades, rolls back, removes and purges it under a real systemd.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from kubeproxy.model.version import __version__
from tests.system.deploy.manifests import DEPLOY, ROOT
from tests.system.deploy.registry import index_answers

SCRIPTS = [DEPLOY / "deb" / name for name in ("postinst", "prerm", "postrm")]

pytestmark = pytest.mark.skipif(shutil.which("dpkg-shlibdeps") is None, reason="dpkg-dev is not here")


def run(*command: str | Path, timeout: float = 60) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built with the Python of this host."""
    if not index_answers():
        pytest.skip("the package index cannot be reached from here")
    if not Path("/usr/bin/python3").exists():
        pytest.skip("there is no Python of the distribution")
    directory = tmp_path_factory.mktemp("deb")
    tools = tmp_path_factory.mktemp("tools")
    (tools / "dpkg-deb").write_text(f'#!/bin/sh\n{shutil.which("dpkg-deb")} "$@" && ls {directory} >>{tools}/built\n')
    (tools / "dpkg-deb").chmod(0o755)
    # What is built here is never downloaded: most of the time would be for packing.
    variables = (f"PATH={tools}:{os.environ['PATH']}", "DPKG_DEB_COMPRESSOR_LEVEL=0")
    run("env", *variables, "bash", DEPLOY / "build-deb.sh", directory, timeout=220)
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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_are_understood_and_end_at_the_first_error(script: Path) -> None:
    run("sh", "-n", script)
    assert "\nset -e\n" in script.read_text()
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.parametrize("action", ["upgrade", "abort-upgrade", "failed-upgrade", "deconfigure", "disappear"])
def test_an_upgrade_ends_nothing_and_cleans_nothing(script: Path, action: str, tmp_path: Path) -> None:
    """Only the configuration of the new version signals the daemon."""
    called = tmp_path / "called"
    for name in ("systemctl", "kubeproxy", "systemd-sysusers", "systemd-tmpfiles"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >>{called}\n')
        program.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    subprocess.run([script, action, "0.0.9"], env={"PATH": path}, check=True, timeout=60)
    lines = called.read_text().splitlines() if called.exists() else []
    assert [line for line in lines if line != "systemctl daemon-reload"] == []


SHADOW = """set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /usr/local/bin
printf '#!/bin/sh\\necho called >/run/called\\n' >/usr/local/bin/kubeproxy
chmod 755 /usr/local/bin/kubeproxy
touch /run/xtables.lock
exec 9</run/xtables.lock
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
sh "$1" remove 2>&1
sh "$2" remove
sh "$2" purge
ls /run
"""


@pytest.mark.netns
def test_removal_and_purge_leave_what_others_use() -> None:
    """Neither another program of the same name runs, nor does the lock go that another program holds."""
    _, before, after = SCRIPTS
    done = run("unshare", "--mount", "--net", "bash", "-c", SHADOW, "shadow", before, after)
    assert done.splitlines()[-1] == "xtables.lock", done


@pytest.mark.long
@pytest.mark.timeout(240)
def test_what_is_in_it(package: Path, unpacked: Path) -> None:
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


@pytest.mark.long
def test_it_replaces_no_program_of_others(unpacked: Path) -> None:
    assert [path.name for path in (unpacked / "usr/bin").iterdir()] == ["kubeproxy"]
    assert not (unpacked / "usr/local").exists()
    control = (unpacked / "DEBIAN/control").read_text()
    for relation in ("Replaces", "Conflicts", "Provides"):
        assert f"{relation}:" not in control


@pytest.mark.long
def test_all_files_are_roots_and_only_root_may_write_them(package: Path, unpacked: Path) -> None:
    listing = run("dpkg-deb", "-c", package).splitlines()
    assert all(line.split()[1] == "root/root" for line in listing)
    for path in unpacked.rglob("*"):
        if not path.is_symlink():
            assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), path


@pytest.mark.long
def test_the_program_runs_from_where_it_is_unpacked(unpacked: Path) -> None:
    python = unpacked / "usr/lib/kubeproxy/bin/python"
    said = run(python, unpacked / "usr/lib/kubeproxy/bin/kubeproxy", "version")
    assert said == f"kubeproxy {__version__}\n"
