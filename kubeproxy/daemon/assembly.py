"""Makes every part of the control process and connects them, before `lifecycle` starts any.

What has to do with HTTP or the API server is imported later, by `http_servers` and `sources`: clients may be waiting,
and imports take most of the time until the first answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.data_paths import DataPaths
from kubeproxy.daemon.data_plane import AnyDataPlane, make_data_plane
from kubeproxy.daemon.drain_reporter import DrainReporter
from kubeproxy.daemon.host_facts import HostFacts
from kubeproxy.daemon.http_servers import HttpServers
from kubeproxy.daemon.kernel_flows import KernelFlows
from kubeproxy.daemon.operator import Operator
from kubeproxy.daemon.proxier_events import ProxierEvents
from kubeproxy.daemon.reload import Reloader
from kubeproxy.daemon.rescue_control import Rescue
from kubeproxy.daemon.sd_notify import Notifier
from kubeproxy.daemon.service_events import Events
from kubeproxy.daemon.settings import conntrack_limits, proxier_settings, tune
from kubeproxy.daemon.shutdown import Shutdown
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.sources import Sources, source_names, source_texts
from kubeproxy.daemon.state_keeper import StateKeeper, state_file
from kubeproxy.daemon.takeover.instances import InstanceMarker
from kubeproxy.daemon.takeover.owner import OwnerCallbacks
from kubeproxy.daemon.takeover.rule_transfer import RuleTransfer
from kubeproxy.daemon.takeover.serves_enough import Offer
from kubeproxy.daemon.takeover.takeover import Takeover
from kubeproxy.dataplane.interface import Ended
from kubeproxy.model.version import __version__
from kubeproxy.netfilter.conntrack.delete_flows import KernelConntrack
from kubeproxy.netfilter.conntrack.stale_flows import NoConntrack
from kubeproxy.netfilter.port_holders import Holders
from kubeproxy.netfilter.select import select
from kubeproxy.observability.health import ProxyHealth, Reason
from kubeproxy.observability.logs import setup
from kubeproxy.observability.logs.access_log import AccessLog
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.monitor.monitor import Monitor
from kubeproxy.proxier.data_path import DataPathPolicy, Wanted
from kubeproxy.proxier.host_ports import HostPorts
from kubeproxy.proxier.kernel_sync import Kernel
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.tracker import Tracker
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """Every part of the control process, connected; nothing but the workers runs yet."""

    signals: Signals
    notifier: Notifier
    tasks: TaskSet
    host_facts: HostFacts
    instance_marker: InstanceMarker
    takeover: Takeover
    rule_transfer: RuleTransfer
    """The `Netfilter` that the proxier uses."""
    data_plane: AnyDataPlane
    tracker: Tracker
    proxier: Proxier
    data_paths: DataPaths
    rescue: Rescue
    operator: Operator
    kernel_flows: KernelFlows
    sources: Sources
    state_keeper: StateKeeper
    events: Events
    metrics: Metrics
    health: ProxyHealth
    monitor: Monitor
    access_log: AccessLog
    http_servers: HttpServers
    reloader: Reloader
    shutdown: Shutdown


async def build(
    configuration: Configuration,
    read_configuration: Callable[[], Configuration],
    *,
    file: str = "",
    signals: Signals,
    notifier: Notifier,
    find_holders: Holders,
    closing: AsyncExitStack,
) -> Parts:
    """Make all parts: start the workers, choose the packet filter's adapter, and ask the kernel what it can do.

    `file`: the configuration's; empty: flags alone. `find_holders` names processes that have a port. `closing` closes
    the parts in the opposite order. KernelError when no adapter works.
    """
    tasks = TaskSet(on_crash)
    tracker = Tracker(source_names(configuration))
    host_facts = HostFacts(configuration, node=lambda: tracker.node)
    instance_marker = InstanceMarker()
    data_plane = make_data_plane(configuration, instance_marker=instance_marker, on_crash=on_crash)
    closing.push_async_callback(data_plane.close)
    # The workers start while the kernel is asked.
    _, (netfilter, choice) = await asyncio.gather(
        data_plane.send([tune(configuration)]), select(configuration.netfilter_order)
    )
    log.info("packet filter", choice=choice)
    closing.push_async_callback(netfilter.close)
    await host_facts.look_whether_addresses_can_be_preserved(netfilter)
    guard_sockets = await host_facts.can_guard_sockets(netfilter)
    await host_facts.look_whether_dials_are_marked(netfilter)

    data_paths = DataPaths(netfilter)
    await data_paths.use(configuration)

    # The callbacks find the parts that are made below: the control socket is bound only after this function.
    takeover = Takeover(
        OwnerCallbacks(
            share=data_plane.share,
            hold=lambda on: proxier.hold(on),
            leads_here=lambda: proxier.leads_here(),
            bindings=data_plane.bindings,
            yield_all=lambda: http_servers.release_ports(),
            grace_s=lambda: reloader.configuration.kubeproxy.shutdown_grace.seconds,
            offer=lambda: Offer(tracker.services, source_texts(configuration)),
            obey=lambda order: operator.obey(order),
        ),
        version=__version__,
        others=instance_marker.others,
        forced=configuration.kubeproxy.takeover == "force",
    )
    # The name is released last: an instance that waits for it finds nothing else of this one.
    closing.push_async_callback(takeover.close)
    closing.callback(instance_marker.close)
    conntrack = KernelConntrack()
    rule_transfer = RuleTransfer(
        netfilter,
        conntrack if netfilter.name != "none" else NoConntrack(),
        takeover,
        data_plane,
        on_taken=lambda: on_taken(),
    )
    closing.push_async_callback(tasks.close)

    events = Events()
    metrics = Metrics(families=host_facts.families)
    drain_reporter = DrainReporter(
        host_facts.node_name,
        data_plane=data_plane,
        node=lambda: tracker.node,
        translated_to=lambda addresses: kernel_flows.open_to(addresses),
        on_written=metrics.drain_report_written,
    )
    sources = Sources(
        configuration,
        node_name=host_facts.node_name,
        tracker=tracker,
        events=events,
        drain_reporter=drain_reporter,
        tasks=tasks,
    )
    health = ProxyHealth(timeout_s=2 * configuration.sync_period_s, families=host_facts.families)
    http_servers = HttpServers(
        lambda: reloader.configuration,
        configuration_state=lambda: reloader.state,
        why_not_served=sources.why_not_served,
        find_holders=find_holders,
        host_facts=host_facts,
        data_plane=data_plane,
        health=health,
        metrics=metrics,
        events=events,
        taken=rule_transfer.taken,
        tasks=tasks,
    )
    proxier = Proxier(
        tracker=tracker,
        data_plane=data_plane,
        kernel=Kernel(rule_transfer, rule_transfer, takeover.server),
        ports=HostPorts(data_plane, find_holders),
        settings=proxier_settings(
            configuration,
            ProxierSettings(
                families=frozenset(host_facts.families),
                facts=host_facts.facts(),
                landing=host_facts.landing,
                bind=host_facts.bind,
                guard_sockets=guard_sockets,
                data_path=data_paths.policy,
            ),
        ),
        observer=ProxierEvents(
            health,
            metrics,
            adapter=netfilter.name,
            events=events,
            on_service_health=http_servers.ask_after,
            on_drains=drain_reporter.drains_changed,
        ),
    )
    events.owner_of = proxier.view.owner_of
    state_keeper = StateKeeper(
        state_file(configuration) if netfilter.name != "none" else None,
        tracker,
        owns_rules=lambda: rule_transfer.taken.is_set() and not takeover.server.superseded.is_set(),
        behind_s=sources.behind_s,
    )
    rescue = Rescue(
        netfilter=netfilter,
        proxier=proxier,
        data_plane=data_plane,
        data_paths=data_paths,
        limits=conntrack_limits(configuration),
        on_crash=on_crash,
    )

    operator = Operator(
        set_aside=lambda targets: proxier.use(replace(proxier.settings, aside=targets)),
        restore=rescue.restore,
        retry=lambda: sources.retry(),
    )

    kernel_flows = KernelFlows(
        rules=lambda: proxier.kernel.in_force,
        holder=proxier.view.holder_of,
        taken=rule_transfer.taken,
        superseded=takeover.server.superseded,
        has_predecessor=lambda: takeover.predecessor is not None,
        on_skipped=metrics.workers.skip_log,
    )
    closing.callback(kernel_flows.close)

    def on_policy(policy: DataPathPolicy) -> None:
        """Another data path is wanted, or possible."""
        proxier.use(replace(proxier.settings, data_path=policy))
        rescue.policy_changed()
        if policy.wanted is not Wanted.USERSPACE:
            kernel_flows.expect()

    data_paths.on_change = on_policy
    if data_paths.policy.wanted is not Wanted.USERSPACE:
        kernel_flows.expect()

    def on_taken() -> None:
        """The rules lead to us, and the predecessor has released everything."""
        if netfilter.name != "none":
            takeover.server.own()
        takeover.in_force()
        data_plane.share(False)
        if takeover.predecessor is not None:
            http_servers.expect_ports()

    async def ended() -> Sequence[Ended]:
        """The connections of both data paths that have ended."""
        return [*await data_plane.ended(), *await kernel_flows.ended()]

    access_log = AccessLog(ended, on_lost=metrics.access_log_lost)
    reloader = Reloader(
        configuration,
        read_configuration,
        signals=signals,
        proxier=proxier,
        data_plane=data_plane,
        health=health,
        access_log=access_log,
        kernel_flows=kernel_flows,
        sources=sources,
        metrics=metrics,
        file=file,
        data_paths=data_paths,
        drain_reporter=drain_reporter,
    )
    reloader.use_drain_reports()
    return Parts(
        signals=signals,
        notifier=notifier,
        tasks=tasks,
        host_facts=host_facts,
        instance_marker=instance_marker,
        takeover=takeover,
        rule_transfer=rule_transfer,
        data_plane=data_plane,
        tracker=tracker,
        proxier=proxier,
        data_paths=data_paths,
        rescue=rescue,
        operator=operator,
        kernel_flows=kernel_flows,
        sources=sources,
        state_keeper=state_keeper,
        events=events,
        metrics=metrics,
        health=health,
        monitor=Monitor(
            data_plane=data_plane,
            health=health,
            metrics=metrics,
            is_endpoint=proxier.view.has_endpoint,
            on_lost=events.endpoint_lost,
            checks={
                **host_facts.complaints,
                Reason.LOG: setup.writer_problem,
                Reason.KUBERNETES: sources.complaint,
                Reason.STALE: state_keeper.complaint,
                Reason.RESCUE: rescue.complaint,
                Reason.OPERATOR: operator.complaint,
            },
        ),
        access_log=access_log,
        http_servers=http_servers,
        reloader=reloader,
        shutdown=Shutdown(
            signals=signals,
            takeover=takeover.server,
            proxier=proxier,
            data_plane=data_plane,
            access_log=access_log,
            tasks=tasks,
        ),
    )


def on_crash(task: str, error: BaseException) -> None:
    """Log a background task that ended by an exception."""
    log.error("background task failed", task=task, exc_info=error)
