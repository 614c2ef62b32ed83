"""What the scripts of the Debian package do not do. test_install.py has the package itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.deploy.manifests import DEPLOY, ROOT

SCRIPTS = [DEPLOY / "deb" / name for name in ("postinst", "prerm", "postrm")]

pytestmark = pytest.mark.skipif(shutil.which("dpkg-shlibdeps") is None, reason="dpkg-dev is not here")


def run(*command: str | Path, timeout: float = 60) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
