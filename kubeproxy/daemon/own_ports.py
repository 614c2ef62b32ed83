"""Decides how many frontends have a listener of their own. All others share a few listeners
(`proxier/shared_ports`)."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from kubeproxy.config.schema import Configuration
from kubeproxy.dataplane.workers.count import workers_for

PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
SHARED_PORTS: Final = 16
"""The number of ports of --proxy-port-range that are reserved for shared listeners."""


def own_ports(configuration: Configuration) -> int:
    """Return how many frontends may have a listener of their own on this host, given its limits at the start."""
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    workers = workers_for(configuration.kubeproxy.workers.number)
    wanted = configuration.port_range
    if wanted:
        size = wanted.last - wanted.first + 1
        ports = size - min(SHARED_PORTS, size // 2)
    else:
        try:
            first, last = map(int, PORT_RANGE.read_text().split())
        except (OSError, ValueError):
            first, last = 32768, 60999  # the kernel's default range
        ports = (last - first + 1) // 2
    return most(descriptors, workers, ports)


def most(descriptors: int, workers: int, ports: int) -> int:
    """Return how many listeners these limits allow.

    A listener takes one descriptor in each worker, and up to one per worker in the control process. Most descriptors
    are left for clients (in the workers) and for node ports (in the control process). `ports` is the number of ports
    available for listeners.
    """
    return min(descriptors // (4 * max(1, workers)), ports)
