"""The kernel path at run time: the rescue of failed connections, and the counting of connections."""

from __future__ import annotations

from dataclasses import replace

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.control_plane import ControlPlane
from kubeproxy.daemon.data_plane_choice import AnyDataPlane
from kubeproxy.daemon.flow_accounting import FlowAccounting
from kubeproxy.daemon.kernel_access import KernelAccess
from kubeproxy.daemon.kernel_path_counters import KernelTraffic
from kubeproxy.daemon.ownership import Ownership
from kubeproxy.daemon.process_start import Process, on_crash
from kubeproxy.daemon.reporting import Reporting
from kubeproxy.daemon.rescue_control import Rescue
from kubeproxy.daemon.settings import conntrack_limits
from kubeproxy.proxier.data_path_choice import DataPathPolicy, Wanted
from kubeproxy.runtime.keep_running import kept_running
from kubeproxy.runtime.tasks import TaskSet


class KernelPath:
    """The rescue, the flows and the traffic counters of the kernel path. Rescue and flows follow the policy of data
    paths."""

    def __init__(
        self,
        configuration: Configuration,
        process: Process,
        kernel: KernelAccess,
        ownership: Ownership,
        reporting: Reporting,
        control_plane: ControlPlane,
        data_plane: AnyDataPlane,
    ) -> None:
        proxier = control_plane.proxier
        self._proxier = proxier
        self.rescue = Rescue(
            netfilter=kernel.netfilter,
            proxier=proxier,
            data_plane=data_plane,
            data_paths=kernel.data_paths,
            limits=conntrack_limits(configuration),
            on_crash=on_crash,
        )
        self.flows = FlowAccounting(
            rules=lambda: proxier.kernel.in_force,
            holder=proxier.view.holder_of,
            taken=ownership.taken,
            superseded=ownership.superseded,
            has_predecessor=ownership.has_predecessor,
            on_skipped=reporting.metrics.workers.skip_log,
        )
        self.traffic = KernelTraffic(lambda: proxier.view.snapshot().frontends, self.flows)
        self._ownership = ownership
        process.closing.callback(self.flows.close)
        kernel.data_paths.notify(self._policy_changed)
        self._expect_flows(kernel.data_paths.policy)

    def run(self, tasks: TaskSet) -> None:
        """Start the tasks of the kernel path."""
        tasks.start(kept_running("rescue", self.rescue.run), name="rescue")
        tasks.start(kept_running("kernel flows", self.flows.run), name="kernel flows")
        tasks.start(self._begin_to_count(), name="kernel traffic")

    async def _begin_to_count(self) -> None:
        """Start to count at once, or after a predecessor has handed the rules over. Until then the predecessor
        counts."""
        if self._ownership.has_predecessor():
            await self._ownership.taken.wait()
        await self.traffic.begin()

    def _policy_changed(self, policy: DataPathPolicy) -> None:
        """Apply a new policy, which selects another data path or says that another one has become possible."""
        self._proxier.use(replace(self._proxier.settings, data_path=policy))
        self.rescue.policy_changed()
        self._expect_flows(policy)

    def _expect_flows(self, policy: DataPathPolicy) -> None:
        if policy.wanted is not Wanted.USERSPACE:
            self.flows.expect()
