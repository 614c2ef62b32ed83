"""Sets the size and timeouts of the kernel's connection tracking at start, as kube-proxy does.

Every redirected connection has an entry in the conntrack table. The settings stay when the process ends, as with
kube-proxy. In a container /proc/sys is read-only, so a privileged init container sets them (`kubeproxy run
--init-only`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from kubeproxy.netfilter.conntrack.flow_records import dump_request
from kubeproxy.netfilter.netlink.messages import NETLINK_NETFILTER, open_netlink

log = structlog.get_logger(__name__)

DIRECTORY = Path("/proc/sys/net/netfilter")
"""The settings of this process's network namespace. The files do not exist until the kernel module nf_conntrack is
loaded."""

_MAX, _BUCKETS = "nf_conntrack_max", "nf_conntrack_buckets"
_ENTRIES_PER_BUCKET = 4
"""The number of entries per hash bucket, as in kube-proxy (cmd/kube-proxy/app/conntrack.go). With fewer buckets every
look-up would be slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackLimits:
    """The wanted settings from KubeProxyConfiguration. With 0 a setting is not changed."""

    max_per_core: int = 0
    min: int = 0
    """The least size of the table. It has no effect if `max_per_core` is 0."""
    tcp_established_s: float = 0.0
    tcp_close_wait_s: float = 0.0
    udp_s: float = 0.0
    """The timeout of UDP flows that have no answer yet."""
    udp_stream_s: float = 0.0
    """The timeout of UDP flows with packets in both directions."""
    tcp_be_liberal: bool = False
    """Whether packets outside the window are accepted as valid. False does not change the setting."""

    def table_size(self, cores: int) -> int:
        """Return the least number of connections for which the table must have room, or 0 if the size is not to be
        changed."""
        return max(self.min, self.max_per_core * cores) if self.max_per_core > 0 else 0

    def settings(self) -> Mapping[str, int]:
        """Return the sysctls to set to exact values."""
        timeouts = {
            "nf_conntrack_tcp_timeout_established": self.tcp_established_s,
            "nf_conntrack_tcp_timeout_close_wait": self.tcp_close_wait_s,
            "nf_conntrack_udp_timeout": self.udp_s,
            "nf_conntrack_udp_timeout_stream": self.udp_stream_s,
        }
        wanted = {name: math.ceil(seconds) for name, seconds in timeouts.items() if seconds > 0}
        return {**wanted, "nf_conntrack_tcp_be_liberal": 1} if self.tcp_be_liberal else wanted


TCP_TIMEOUTS: Mapping[str, tuple[str, int]] = {
    "syn_recv": ("nf_conntrack_tcp_timeout_syn_recv", 60),
    "established": ("nf_conntrack_tcp_timeout_established", 432_000),
    "fin_wait": ("nf_conntrack_tcp_timeout_fin_wait", 120),
    "close_wait": ("nf_conntrack_tcp_timeout_close_wait", 60),
    "last_ack": ("nf_conntrack_tcp_timeout_last_ack", 30),
    "time_wait": ("nf_conntrack_tcp_timeout_time_wait", 120),
    "close": ("nf_conntrack_tcp_timeout_close", 10),
    "retrans": ("nf_conntrack_tcp_timeout_max_retrans", 300),
    "unack": ("nf_conntrack_tcp_timeout_unacknowledged", 300),
}
"""The setting of the timeout for each state of an answered connection (by nft's name), and the kernel's default in
seconds (net/netfilter/nf_conntrack_proto_tcp.c)."""


def tcp_timeouts(limits: ConntrackLimits = ConntrackLimits(), *, directory: Path = DIRECTORY) -> dict[str, int]:
    """Return how many seconds the kernel keeps an idle connection, by state, once `limits` are applied.

    For a setting that cannot be read, the kernel's default is returned."""
    wanted = limits.settings()
    return {
        state: wanted[name] if name in wanted else _read(directory / name, default)
        for state, (name, default) in TCP_TIMEOUTS.items()
    }


def udp_timeouts(*, directory: Path = DIRECTORY) -> tuple[int, int]:
    """Return how many seconds the kernel keeps a UDP flow after its last packet: first for flows without an answer,
    then for flows with packets in both directions."""
    return _read(directory / "nf_conntrack_udp_timeout", 30), _read(directory / "nf_conntrack_udp_timeout_stream", 120)


def _read(path: Path, default: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return default


def require_module(*, directory: Path = DIRECTORY) -> None:
    """Load the kernel module nf_conntrack if it is missing. (Otherwise the first rules of a daemon would load it.)"""
    if not (directory / _MAX).exists():
        with suppress(OSError), open_netlink(NETLINK_NETFILTER) as netlink:
            netlink.send(dump_request(1))


def enforce(limits: ConntrackLimits) -> None:
    """Apply the settings to this network namespace. Each setting that the kernel refuses is logged."""
    if reasons := apply(limits):
        log.warning("cannot size connection tracking", reason="; ".join(reasons), remedy=_REMEDY)


_REMEDY = "in a container a privileged init container (--init-only); sysctl on the host; or 0 in group conntrack"


def apply(limits: ConntrackLimits, *, cores: int | None = None, directory: Path = DIRECTORY) -> list[str]:
    """Apply the settings. Return those that could not be set, one line each.

    The table is never made smaller. Its size can be set only in the initial network namespace, so in any other it is
    left alone. `cores` is by default the number of cores that this process may use.
    """
    failures = [_set(directory / name, value, at_least=False) for name, value in limits.settings().items()]
    if size := limits.table_size(cores or len(os.sched_getaffinity(0))):
        failures.append(_set(directory / _MAX, size, at_least=True))
        failures.append(_set(directory / _BUCKETS, size // _ENTRIES_PER_BUCKET, at_least=True))
    return [failure for failure in failures if failure]


def _set(path: Path, wanted: int, *, at_least: bool) -> str:
    """Write a sysctl if its value is not as wanted. Return the reason if that fails, and otherwise an empty text."""
    found = "nothing"
    try:
        found = path.read_text().strip()
        if (int(found) < wanted) if at_least else (int(found) != wanted):
            path.write_text(f"{wanted}\n")
    except FileNotFoundError:
        return f"{path.name}: {wanted} is wanted, but the kernel has no such setting; is nf_conntrack loaded?"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a number"
        return f"{path.name}: {wanted} is wanted, {found} is there and stays: {reason}"
    return ""
