"""What the other parts report to, and what is therefore created before them: metrics, health, Events, and answers to
load balancers."""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.daemon.current_configuration import CurrentConfiguration
from kubeproxy.daemon.kernel_access import KernelAccess
from kubeproxy.daemon.load_balancers import LoadBalancers
from kubeproxy.daemon.ownership import Ownership
from kubeproxy.daemon.service_events import Events
from kubeproxy.observability.health import ProxyHealth, Reason
from kubeproxy.observability.metrics.control_plane import Metrics
from kubeproxy.observability.picture import ConfigurationState
from kubeproxy.proxier.tracker import Tracker


@dataclass(frozen=True, slots=True)
class Reporting:
    """The metrics, health, Events and load balancer answers of this process."""

    metrics: Metrics
    health: ProxyHealth
    events: Events
    load_balancers: LoadBalancers

    @classmethod
    def create(
        cls, configuration: CurrentConfiguration, tracker: Tracker, kernel: KernelAccess, ownership: Ownership
    ) -> Reporting:
        """Create them, with this configuration as the first one."""
        families = kernel.host_facts.families
        metrics, events = Metrics(families=families), Events(tracker.owner_of)
        health = ProxyHealth(timeout_s=2 * configuration.value.sync_period_s, families=families)
        metrics.configuration(configuration.state)
        load_balancers = LoadBalancers(health, events, kernel.host_facts, ownership.taken)
        return cls(metrics, health, events, load_balancers)

    def configured(self, state: ConfigurationState) -> None:
        """Record the result of loading the configuration."""
        refused = "the file is refused, and the previous configuration is in effect" if state.faults else None
        self.health.degraded(Reason.CONFIGURATION, refused)
        self.metrics.configuration(state)
