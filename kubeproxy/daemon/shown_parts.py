"""Holds all parts of the control process, for the pages that show them to operators."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from kubeproxy.daemon.control_plane import ControlPlane
from kubeproxy.daemon.current_configuration import CurrentConfiguration
from kubeproxy.daemon.data_plane_choice import AnyDataPlane
from kubeproxy.daemon.kernel_access import KernelAccess
from kubeproxy.daemon.kernel_path_runtime import KernelPath
from kubeproxy.daemon.ownership import Ownership
from kubeproxy.daemon.process_start import Process
from kubeproxy.daemon.reporting import Reporting
from kubeproxy.observability.picture import Picture


@dataclass(frozen=True, slots=True)
class ShownParts:
    """The parts of which operators can see something."""

    process: Process
    configuration: CurrentConfiguration
    data_plane: AnyDataPlane
    kernel: KernelAccess
    ownership: Ownership
    reporting: Reporting
    control_plane: ControlPlane
    kernel_path: KernelPath

    def picture(self) -> Picture:
        """Return the present state of the control plane."""
        control_plane = self.control_plane
        return dataclasses.replace(
            control_plane.sources.picture(control_plane.proxier.view.snapshot()),
            data_path=self.kernel.data_paths.policy.wanted,
            rescue=self.kernel_path.rescue.state(),
            kernel_flows=self.kernel_path.flows.state(),
            stale=control_plane.state_keeper.stale,
            conntrack=self.kernel.host_facts.conntrack_room,
            reasons=self.reporting.health.at(time.monotonic()).reasons,
        )
