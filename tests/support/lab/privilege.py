"""Running a program of the laboratory as an ordinary user: as root of a user namespace, where the host allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.support.lab.host import can_make_hosts

_AGAIN = "KUBEPROXY_LAB_IN_USER_NAMESPACE"


def in_user_namespace() -> bool:
    """Whether this process was started again by `require_hosts`."""
    return _AGAIN in os.environ


def require_hosts(module: str) -> None:
    """Back if this process can make hosts. If not, `python -m module` is started again, with the same arguments, as
    root of a user namespace; where that is not allowed either, exit status 1 and what would help."""
    # ip, nft and haproxy stand where Debian does not look for ordinary users.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    if can_make_hosts():
        return
    allowed = not in_user_namespace() and shutil.which("unshare") is not None
    if allowed:
        probe = subprocess.run(["unshare", "-Urn", "true"], capture_output=True, text=True, check=False)
        seen = probe.stderr.strip()
        allowed = probe.returncode == 0
    else:
        seen = "unshare: not found (package util-linux)" if not in_user_namespace() else "no network namespaces there"
    if not allowed:
        sys.exit(
            f"{module}: needs network namespaces, and this user may not make any ({seen}).\n"
            "Run it as root, or allow user namespaces to ordinary users: one of\n"
            "  sysctl -w user.max_user_namespaces=15000\n"
            "  sysctl -w kernel.unprivileged_userns_clone=1                (Debian before 11)\n"
            "  sysctl -w kernel.apparmor_restrict_unprivileged_userns=0    (Ubuntu from 23.10 on)"
        )
    os.environ[_AGAIN] = "1"
    command = ["unshare", "-Urn", sys.executable, "-m", module, *sys.argv[1:]]
    sys.stdout.flush()
    os.execvp(command[0], command)
