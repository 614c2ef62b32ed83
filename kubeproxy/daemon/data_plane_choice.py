"""Creates the data plane: as many worker processes as configured, or this process alone, or none."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.takeover.control_socket import PREFIX
from kubeproxy.daemon.takeover.instances import InstanceMarker
from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.dataplane.ports_only import PortsOnly
from kubeproxy.dataplane.workers.count import workers_for
from kubeproxy.dataplane.workers.pool import WorkerDataPlane
from kubeproxy.dataplane.workers.supervisor import WorkerEnd

log = structlog.get_logger(__name__)

AnyDataPlane = LocalDataPlane | WorkerDataPlane | PortsOnly


def make_data_plane(
    configuration: Configuration,
    *,
    instance_marker: InstanceMarker,
    on_crash: Callable[[str, BaseException], None],
) -> AnyDataPlane:
    """Create the data plane. Call this in a running event loop. Workers start at once, and inherit the instance
    marker."""
    if configuration.kubeproxy.userspace_fallback == "never":
        log.info("data plane", workers=0, effect="clients that the kernel cannot serve are refused")
        return PortsOnly()
    count = workers_for(configuration.kubeproxy.workers.number)
    log.info("data plane", workers=count)
    if count == 0:
        return LocalDataPlane()
    return WorkerDataPlane(
        count,
        on_end=_log_end,
        on_crash=on_crash,
        marker=instance_marker.fileno(),
        owner_prefix=PREFIX,
    )


def _log_end(end: WorkerEnd) -> None:
    log.error(
        "worker process has ended",
        worker=end.number,
        pid=end.pid,
        reason=end.reason,
        effect="its connections are lost",
        restarts_in_s=end.restarts_in_s,
    )
