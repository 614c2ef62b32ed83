"""What operators see and use: the monitor, the HTTP servers, the access log, and orders on this node."""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.http_servers import HttpServers
from kubeproxy.daemon.operator_orders import OperatorOrders
from kubeproxy.daemon.pod_drains import PodDrains
from kubeproxy.daemon.shown_parts import ShownParts
from kubeproxy.dataplane.interface import Ended
from kubeproxy.observability.health import Reason
from kubeproxy.observability.logs import setup
from kubeproxy.observability.logs.access_log import AccessLog
from kubeproxy.observability.monitor.monitor import Monitor
from kubeproxy.runtime.keep_running import kept_running
from kubeproxy.runtime.tasks import TaskSet


class OperatorView:
    """Reads all parts. It changes them only on an operator's order."""

    def __init__(self, parts: ShownParts, drains: PodDrains) -> None:
        control_plane, rescue, reporting = parts.control_plane, parts.kernel_path.rescue, parts.reporting
        self._data_plane = parts.data_plane
        self._flows = parts.kernel_path.flows
        self._health = reporting.health
        self.http_servers = HttpServers(parts)
        self.access_log = AccessLog(self._ended, on_lost=reporting.metrics.access_log_lost)
        self.orders = OperatorOrders(control_plane.proxier, rescue, control_plane.sources, drains)
        self._monitor = Monitor(
            data_plane=parts.data_plane,
            health=reporting.health,
            metrics=reporting.metrics,
            is_endpoint=control_plane.proxier.view.has_endpoint,
            on_lost=reporting.events.endpoint_lost,
            checks={
                **parts.kernel.host_facts.complaints,
                Reason.LOG: setup.writer_problem,
                Reason.ACCESS_LOG: self.access_log.complaint,
                Reason.KUBERNETES: control_plane.sources.kubernetes_complaint,
                Reason.MANIFESTS: control_plane.sources.manifests_complaint,
                Reason.STALE: control_plane.state_keeper.complaint,
                Reason.RESCUE: rescue.complaint,
                Reason.SLOTS: control_plane.proxier.view.slots_complaint,
                Reason.OPERATOR: self.orders.complaint,
            },
        )

    def run(self, tasks: TaskSet) -> None:
        """Start the tasks that run until the process ends. `http_servers` are opened separately."""
        tasks.start(kept_running("monitor", self._monitor.run), name="monitor")
        tasks.start(self._monitor.measure_lag(), name="loop lag")
        tasks.start(kept_running("access log", self.access_log.run), name="access log")
        tasks.start(kept_running("operator", self.orders.run), name="operator")

    def use(self, configuration: Configuration) -> None:
        """Apply the settings that can change while the daemon runs."""
        self._health.timeout_s = 2 * configuration.sync_period_s
        self.use_access_log(configuration)

    def use_access_log(self, configuration: Configuration) -> None:
        """Write the access log to the place that the configuration names."""
        where = configuration.kubeproxy.access_log
        self._flows.use_ends(bool(where))
        self.access_log.use(where, as_json=configuration.logging.format == "json")

    async def _ended(self) -> Sequence[Ended]:
        """Return the connections of both data paths that have ended since the last call."""
        return [*await self._data_plane.ended(), *await self._flows.ended()]
