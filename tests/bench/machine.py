"""The machine: what it is, and the programs that the benchmark needs on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from typing import Any

from kubeproxy import __version__
from tests.bench.cores import Cores
from tests.lab.privilege import in_user_namespace

PROGRAMS = {"haproxy": "haproxy", "wrk": "wrk", "taskset": "util-linux", "ip": "iproute2"}
"""Program -> the package of Debian and Ubuntu that brings it."""


def require_programs() -> None:
    """Back when all are there. As root on Debian and Ubuntu the missing ones are installed; elsewhere exit status 1,
    and what to install."""
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.geteuid() != 0 or in_user_namespace() or shutil.which("apt-get") is None:
        sys.exit(
            "bench: these packages are missing; install them, then run this again:\n"
            f"  apt-get install {' '.join(missing)}"
        )
    print(f"bench: installing {' '.join(missing)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        subprocess.run(["apt-get", *command], env=environment, stdout=subprocess.DEVNULL, check=True)


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
        "wrk": _first_line("wrk", "-v"),
    }
