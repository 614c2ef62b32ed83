"""The machine: what it is, and the programs that the benchmark needs on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubeproxy import __version__
from tests.support.lab.privilege import in_user_namespace
from tests.tools.bench.cpu_pinning import Cores

PROGRAMS = {"haproxy": "haproxy", "nginx": "nginx", "wrk": "wrk", "taskset": "util-linux", "ip": "iproute2"}
"""Program -> the package of Debian and Ubuntu that brings it."""
NGINX_STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
_NGINX_STREAM_PACKAGE = "libnginx-mod-stream"
_NO_SERVICES = Path("/usr/sbin/policy-rc.d")
"""Debian asks this program whether what it installs may be started."""


def missing_packages() -> list[str]:
    """What is to be installed first."""
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    return sorted(missing if NGINX_STREAM.exists() else missing | {_NGINX_STREAM_PACKAGE})


def require_programs() -> None:
    """Back when all are there. As root on Debian and Ubuntu the missing ones are installed; elsewhere exit status 1,
    and what to install."""
    missing = missing_packages()
    if not missing:
        return
    if os.geteuid() != 0 or in_user_namespace() or shutil.which("apt-get") is None:
        sys.exit(
            "bench: these packages are missing; install them, then run this again:\n"
            f"  apt-get install {' '.join(missing)}"
        )
    print(f"bench: installing {' '.join(missing)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_services():
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
            done = subprocess.run(["apt-get", *command], env=environment, stdout=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                sys.exit(f"bench: apt-get {' '.join(command)} failed; install {' '.join(missing)}, then run this again")


@contextmanager
def _no_services() -> Iterator[None]:
    """What is installed meanwhile is not started: nginx and HAProxy would take ports of this host."""
    if _NO_SERVICES.exists():
        yield
        return
    _NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
    _NO_SERVICES.chmod(0o755)
    try:
        yield
    finally:
        _NO_SERVICES.unlink()


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def _cpu_model() -> str:
    with open("/proc/cpuinfo") as info:
        for line in info:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def facts(cores: Cores) -> dict[str, Any]:
    """What a reader of the figures should know about where they were made."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "proxy_cores": list(cores.proxy),
        "load_cores": list(cores.load),
        "load_average_before": os.getloadavg()[0],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "kubeproxy": __version__,
        "commit": _first_line("git", "describe", "--always", "--dirty"),
        "haproxy": _first_line("haproxy", "-v"),
        "nginx": _first_line("nginx", "-v"),
        "wrk": _first_line("wrk", "-v"),
    }
