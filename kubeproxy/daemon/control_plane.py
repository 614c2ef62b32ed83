"""The control plane: the sources, the proxier that puts their objects into effect, and the state saved for the next
start."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.data_plane_choice import AnyDataPlane
from kubeproxy.daemon.drain_reporter import DrainReporter
from kubeproxy.daemon.host_state import HostFacts
from kubeproxy.daemon.kernel_access import KernelAccess
from kubeproxy.daemon.own_ports import own_ports
from kubeproxy.daemon.ownership import Ownership
from kubeproxy.daemon.process_start import Process
from kubeproxy.daemon.proxier_events import ProxierEvents
from kubeproxy.daemon.reporting import Reporting
from kubeproxy.daemon.settings import proxier_settings
from kubeproxy.daemon.sources import Sources
from kubeproxy.daemon.state_keeper import StateKeeper, state_file
from kubeproxy.proxier.kernel_sync import Kernel
from kubeproxy.proxier.local_pods import Leaving
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.tracker import Tracker


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The sources, the tracker that they fill, the proxier that reads the tracker, and the file of the last state."""

    tracker: Tracker
    sources: Sources
    drain_reporter: DrainReporter
    proxier: Proxier
    state_keeper: StateKeeper
    host_facts: HostFacts

    @classmethod
    def create(
        cls,
        configuration: Configuration,
        process: Process,
        tracker: Tracker,
        kernel: KernelAccess,
        ownership: Ownership,
        reporting: Reporting,
        data_plane: AnyDataPlane,
    ) -> ControlPlane:
        """Create the parts and connect them. Nothing is started."""
        host_facts = kernel.host_facts
        drain_reporter = DrainReporter(
            host_facts.node_name,
            data_plane=data_plane,
            node=lambda: tracker.node,
            on_written=reporting.metrics.drain_report_written,
        )
        sources = Sources(
            configuration,
            node_name=host_facts.node_name,
            tracker=tracker,
            events=reporting.events,
            drain_reporter=drain_reporter,
            tasks=process.tasks,
        )
        proxier = Proxier(
            tracker=tracker,
            data_plane=data_plane,
            kernel=Kernel(kernel.netfilter, kernel.conntrack, ownership.server, ownership.rule_transfer),
            ports=PortSystemCalls(data_plane, process.find_holders),
            settings=proxier_settings(
                configuration,
                ProxierSettings(
                    families=frozenset(host_facts.families),
                    facts=host_facts.facts(),
                    own_ports=own_ports(configuration),
                    landing=host_facts.landing,
                    bind=host_facts.bind,
                    guard_sockets=kernel.guards_sockets,
                    data_path=kernel.data_paths.policy,
                ),
            ),
            observer=ProxierEvents(
                reporting.health,
                reporting.metrics,
                adapter=kernel.netfilter.name,
                events=reporting.events,
                on_service_health=reporting.load_balancers.set_services,
                on_drains=drain_reporter.drains_changed,
            ),
        )
        state_keeper = StateKeeper(
            state_file(configuration) if ownership.has_netfilter else None,
            tracker,
            owns_rules=ownership.owns_rules,
            behind_s=sources.behind_s,
        )
        drain_reporter.use(configuration.kubeproxy.drain_reports)
        return cls(tracker, sources, drain_reporter, proxier, state_keeper, host_facts)

    def use(self, configuration: Configuration) -> None:
        """Apply the settings that can change while the daemon runs."""
        self.proxier.use(proxier_settings(configuration, self.proxier.settings))
        self.drain_reporter.use(configuration.kubeproxy.drain_reports)

    def node_changed(self) -> None:
        """Give the proxier the present facts about this node."""
        self.proxier.use(replace(self.proxier.settings, facts=self.host_facts.facts()))

    def pods_leave(self, leaving: frozenset[Leaving]) -> None:
        """Stop new connections to these pods, and allow them again to all other pods."""
        self.proxier.use(replace(self.proxier.settings, leaving=leaving))

    def landing_changed(self) -> None:
        """Give the proxier the present addresses to which clients are redirected."""
        self.proxier.use(replace(self.proxier.settings, landing=self.host_facts.landing))
