"""Who moves the bytes: workers, as many as the configuration wants, or this very process."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.dataplane.cores import workers_for
from kubeproxy.dataplane.local import LocalDataPlane
from kubeproxy.dataplane.supervisor import WorkerEnd
from kubeproxy.dataplane.workers import WorkerDataPlane
from kubeproxy.presence import Presence
from kubeproxy.succession import OWNER

log = structlog.get_logger(__name__)


def make_data_plane(
    configuration: Configuration,
    *,
    presence: Presence,
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
        run=presence.run,
        owner_name=OWNER,
        inherit=(presence.fileno(),),
    )


def _tell(end: WorkerEnd) -> None:
    log.error(
        "a worker has ended; its connections are lost, another takes its place",
        worker=end.number,
        pid=end.pid,
        reason=end.reason,
        restarts_in_s=end.restarts_in_s,
    )
