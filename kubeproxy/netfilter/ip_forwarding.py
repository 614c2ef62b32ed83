"""Finds out whether this node's kernel forwards packets. Without that, clients on other hosts cannot reach endpoints on
the kernel path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kubeproxy.model import Family

DIRECTORY = Path("/proc/sys/net")
"""The settings of this process's network namespace."""

SETTINGS: Mapping[Family, str] = {Family.IPV4: "ipv4/ip_forward", Family.IPV6: "ipv6/conf/all/forwarding"}


def forwarded_families(*, directory: Path = DIRECTORY) -> frozenset[Family]:
    """Return the families whose packets this host forwards. Families that the kernel lacks are not included."""
    return frozenset(family for family, name in SETTINGS.items() if is_on(directory / name))


def is_on(path: Path) -> bool:
    """Return whether a setting is on. A missing setting counts as off."""
    try:
        return path.read_text().strip() not in ("", "0")
    except OSError:
        return False
