"""What a large list costs the control process: memory at its most and afterwards, and CPU until all is listed.

``python -m tests.tools.bench.lists [SERVICES ...] [--kib N] [--endpoints N]``, as root. Each number of Services is
listed by
a daemon of its own; `--kib` of annotations each, and one more Service with so many endpoints in slices of a hundred.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.lab import Daemon, make_network
from tests.system.e2e.api import ApiHost
from tests.system.e2e.stage import Object, endpoints, service, until
from tests.system.e2e.test_kubernetes import in_step


def objects(services: int, kib: int, number: int) -> list[Object]:
    """One Service to ask for, heavy ones, and the slices of the one that has so many endpoints."""
    note = {"annotations": {"note": "x" * (kib << 10)}}
    found = [service(), endpoints("web", [0])]
    found += [service(f"heavy-{it}", f"10.97.{it >> 8}.{it & 255}", metadata=note) for it in range(services)]
    if number:
        found.append(service("many", "10.96.0.20"))
    for first in range(0, number, 100):
        slice_ = endpoints(
            "many", [f"10.{64 + (it >> 16)}.{it >> 8 & 255}.{it & 255}" for it in range(first, first + 100)]
        )
        slice_["metadata"]["name"] = f"many-{first}"
        found.append(slice_)
    return found


def status(pid: int, what: str) -> float:
    """A figure of /proc/PID/status, in MiB."""
    found = re.search(rf"^{what}:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def cpu_s(pid: int) -> float:
    """User and system time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure(services: int, kib: int, number: int) -> None:
    """List it once."""
    with make_network(pods=1) as network, ApiHost(network.client, *objects(services, kib, number)) as api:
        options: dict[str, Any] = {"manifests": None, "options": ["--workers=1", f"--master={api.url}"]}
        with Daemon(network.node, **options) as daemon:
            until(lambda: in_step(daemon), "all is listed", within_s=120)
            pid = daemon.process.pid
            print(
                f"{services:6} Services of {kib} KiB, {number:7} endpoints: most {status(pid, 'VmHWM'):6.1f} MiB, "
                f"afterwards {status(pid, 'VmRSS'):6.1f} MiB, CPU {cpu_s(pid):5.2f} s",
                flush=True,
            )


def main(arguments: Sequence[str]) -> None:
    """As typed."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.lists", description=__doc__)
    parser.add_argument("services", type=int, nargs="*", default=[0, 260, 1000])
    parser.add_argument("--kib", type=int, default=256)
    parser.add_argument("--endpoints", type=int, default=0)
    own = parser.parse_args(arguments)
    for services in own.services:
        measure(services, own.kib, own.endpoints)


if __name__ == "__main__":
    main(sys.argv[1:])
