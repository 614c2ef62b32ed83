"""Who moves the bytes: workers, as many as the configuration wants, or this very process."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.takeover.control_socket import PREFIX
from kubeproxy.daemon.takeover.instances import InstanceMarker
from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.dataplane.workers.count import workers_for
from kubeproxy.dataplane.workers.pool import WorkerDataPlane
from kubeproxy.dataplane.workers.supervisor import WorkerEnd

log = structlog.get_logger(__name__)


def make_data_plane(
    configuration: Configuration,
    *,
    instance_marker: InstanceMarker,
    on_crash: Callable[[str, BaseException], None],
) -> LocalDataPlane | WorkerDataPlane:
    """To be called inside a running event loop; workers start at once, and keep the name `presence` alive."""
    count = workers_for(configuration.kubeproxy.workers.number)
    log.info("data plane", workers=count)
    if count == 0:
        return LocalDataPlane()
    return WorkerDataPlane(
        count,
        on_end=_tell,
        on_crash=on_crash,
        run=instance_marker.run,
        owner_prefix=PREFIX,
        inherit=(instance_marker.fileno(),),
    )


def _tell(end: WorkerEnd) -> None:
    log.error(
        "a worker has ended; its connections are lost, another takes its place",
        worker=end.number,
        pid=end.pid,
        reason=end.reason,
        restarts_in_s=end.restarts_in_s,
    )
