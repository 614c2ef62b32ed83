"""The life of the daemon: start, ready, reload, re-exec, drain, stop.

Clients may be waiting, and imports take most of the time until the first client is served. So everything for HTTP or
the API server is imported later, by `http_servers` and `sources`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace

import structlog

from kubeproxy.daemon import startup_progress
from kubeproxy.daemon.control_plane import ControlPlane
from kubeproxy.daemon.current_configuration import CurrentConfiguration
from kubeproxy.daemon.data_plane_choice import AnyDataPlane, make_data_plane
from kubeproxy.daemon.drain_hook import DrainHook
from kubeproxy.daemon.kernel_access import KernelAccess
from kubeproxy.daemon.kernel_path_runtime import KernelPath
from kubeproxy.daemon.operator_view import OperatorView
from kubeproxy.daemon.ownership import Ownership
from kubeproxy.daemon.pod_drains import PodDrains
from kubeproxy.daemon.process_limits import reap_adopted
from kubeproxy.daemon.process_start import Process, on_crash
from kubeproxy.daemon.reload import Reloader
from kubeproxy.daemon.reporting import Reporting
from kubeproxy.daemon.settings import conntrack_limits
from kubeproxy.daemon.shown_parts import ShownParts
from kubeproxy.daemon.shutdown import RulesAtExit, Shutdown, last_s, rules_at_exit
from kubeproxy.daemon.sources import source_names, source_texts
from kubeproxy.daemon.succession import Succession
from kubeproxy.daemon.takeover import reexec
from kubeproxy.daemon.takeover.instances import InstanceMarker
from kubeproxy.daemon.takeover.owner import Owner
from kubeproxy.daemon.takeover.protocol import Order
from kubeproxy.daemon.takeover.serves_enough import Offer
from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.dataplane.interface import Entrances
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.dataplane.workers.pool import WorkerDataPlane
from kubeproxy.netfilter.cleanup import cleanup_all
from kubeproxy.netfilter.conntrack import sysctls
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.tracker import Tracker
from kubeproxy.runtime.keep_running import kept_running

log = structlog.get_logger(__name__)

FIRST_S = 1.0
"""How long the HTTP servers wait with their start until clients are served. If a recalled state is served, the sources
wait for the same time."""


class Daemon(Owner):
    """The life of the control process: `find_predecessor`, `start`, `end`, in this order.

    As the owner of the node it also answers new instances, at any time in between.
    """

    @classmethod
    async def create(cls, configuration: CurrentConfiguration, process: Process) -> Daemon:
        """Start the workers, and create every part. Raise KernelError if no adapter of the packet filter works."""
        marker = InstanceMarker()
        data_plane = make_data_plane(configuration.value, instance_marker=marker, on_crash=on_crash)
        process.closing.push_async_callback(data_plane.close)
        tracker = Tracker(source_names(configuration.value))
        kernel = await KernelAccess.create(configuration.value, process, tracker, data_plane)
        return cls(configuration, process, marker, data_plane, tracker, kernel)

    def __init__(
        self,
        configuration: CurrentConfiguration,
        process: Process,
        marker: InstanceMarker,
        data_plane: AnyDataPlane,
        tracker: Tracker,
        kernel: KernelAccess,
    ) -> None:
        """Create the parts, each from those before it. Only the workers are running so far."""
        wanted = configuration.value
        self._configuration = configuration
        self._process = process
        self._data_plane = data_plane
        self._kernel = kernel
        # The takeover calls this object only after `find_predecessor` has bound the control socket.
        self._ownership = ownership = Ownership(wanted, process, self, marker, kernel, data_plane)
        process.closing.push_async_callback(process.tasks.close)
        self._reporting = reporting = Reporting.create(configuration, tracker, kernel, ownership)
        self._control_plane = control_plane = ControlPlane.create(
            wanted, process, tracker, kernel, ownership, reporting, data_plane
        )
        self._kernel_path = KernelPath(wanted, process, kernel, ownership, reporting, control_plane, data_plane)
        parts = ShownParts(
            process, configuration, data_plane, kernel, ownership, reporting, control_plane, self._kernel_path
        )
        self._pod_drains = PodDrains(control_plane.proxier.view.local_pods, control_plane.pods_leave)
        self._drain_hook = DrainHook(self._pod_drains)
        control_plane.proxier.view.local_pods.on_first = self._answer_hooks
        self._operator_view = OperatorView(parts, self._pod_drains)
        self._reloader = Reloader(parts, self._operator_view, self._use_drain_hook)
        self._succession = Succession(configuration, process, ownership, control_plane, data_plane)
        self._shutdown = Shutdown(
            signals=process.signals,
            takeover=ownership.server,
            proxier=control_plane.proxier,
            data_plane=data_plane,
            access_log=self._operator_view.access_log,
            tasks=process.tasks,
        )
        self._drain_reports: asyncio.Task[None] | None = None
        """The task that writes the drain reports."""

    # The start.

    async def find_predecessor(self) -> None:
        """Find the owner of the node, if there is one. Raise TakeoverRefusedError if this instance must not take over
        from it."""
        await self._succession.find_predecessor()

    async def start(self) -> None:
        """Start every part that runs until the process ends."""
        control_plane, tasks, stop = self._control_plane, self._process.tasks, self._process.signals.stop
        serving, follows = control_plane.proxier.serving, self._ownership.has_predecessor()
        control_plane.node_changed()  # The facts may have changed during the search for a predecessor.
        self._ownership.server.answer()
        control_plane.tracker.notify_node(self._on_node)
        self._show_progress()
        # With a predecessor, clients are served meanwhile, so the HTTP servers can start now. They also start now if an
        # address in use has to fail the start (bindAddressHardFail), which must happen before the rules redirect to us.
        http_later = not follows and not self._configuration.value.bind_address_hard_fail
        if not http_later:
            await self._operator_view.http_servers.open()
        self._kernel_path.run(tasks)
        if not self._ownership.marker.others() and await control_plane.state_keeper.recall(at_once=True):
            # If a recalled state is served, the sources start only after the first clients are served. They do not wait
            # for the rescue process, which may take seconds to start.
            tasks.start(self._serve(), name="serve")
            await tasks.first_of(serving.wait(), stop.wait(), asyncio.sleep(FIRST_S))
            await control_plane.sources.start(self._process.closing)
        else:
            await control_plane.sources.start(self._process.closing)
            await self._serve()
            tasks.start(kept_running("recall", self._succession.recall_later), name="recall")
        if follows:
            tasks.start(self._succession.compare_with_predecessor(), name="comparison")
        tasks.start(kept_running("host_facts", self._follow_host_facts), name="host_facts")
        tasks.start(kept_running("reload", self._follow_reloads), name="reload")
        tasks.start(kept_running("re-exec", self._follow_reexecs), name="re-exec")
        tasks.start(kept_running("children of others", reap_adopted), name="children of others")
        self._operator_view.run(tasks)
        tasks.start(kept_running("state", control_plane.state_keeper.run), name="state")
        self._drain_reports = tasks.start(kept_running("drain reports", self._report_drains), name="drain reports")
        tasks.start(self._settle_in(), name="settling in")
        if http_later:
            await tasks.first_of(serving.wait(), stop.wait(), asyncio.sleep(FIRST_S))
            await self._operator_view.http_servers.open()

    def _show_progress(self) -> None:
        """Show the progress of the start to the service manager and in the log."""
        proxier, tasks = self._control_plane.proxier, self._process.tasks
        tasks.start(self._process.notifier.beat(self._status), name="service manager")
        tasks.start(
            startup_progress.show(
                proxier.view.summary,
                proxier.serving,
                as_text=self._configuration.value.logging.format == "text",
                trouble=self._control_plane.sources.trouble,
            ),
            name="progress",
        )

    async def _serve(self) -> None:
        """Let the rules redirect clients to this process as soon as there is something to serve."""
        await self._kernel_path.rescue.ready()
        # The access log is opened before rules use the kernel path, because the kernel does not report the end of
        # connections that are older than the subscription.
        self._operator_view.use_access_log(self._configuration.value)
        self._use_drain_hook()
        self._process.tasks.start(kept_running("pod drains", self._drain_pods), name="pod drains")
        self._process.tasks.start(kept_running("proxier", self._control_plane.proxier.run), name="proxier")

    def _use_drain_hook(self) -> None:
        """Begin to answer preStop hooks, or stop if the configuration has switched that off."""
        proxier, hook = self._control_plane.proxier, self._drain_hook
        if not (self._configuration.value.kubeproxy.drain_hook_port and self._ownership.has_netfilter):
            hook.close()
        elif not hook.port:
            try:
                hook.bind(proxier.settings.families)
            except OSError as error:
                log.warning("preStop hooks not answered", reason=error.strerror or str(error))
            self._answer_hooks()
        proxier.use(replace(proxier.settings, drain_hook=hook.port))

    def _answer_hooks(self) -> None:
        """Listen for preStop hooks, if this node has a pod that can use them and the rules redirect them here."""
        if self._ownership.taken.is_set() and self._control_plane.proxier.view.local_pods.ports:
            self._drain_hook.listen()

    async def _drain_pods(self) -> None:
        """Drain pods whose preStop hooks ask, until cancelled. Until the rules redirect to this process, hooks ask its
        predecessor."""
        await self._ownership.taken.wait()
        self._answer_hooks()
        await self._pod_drains.run()

    # After the daemon is ready.

    async def _settle_in(self) -> None:
        """Do what can wait until clients are served.

        Rules that another adapter left behind would still redirect clients, so they are removed. The settings of
        connection tracking are applied now, because the kernel has them only once rules use connection tracking.
        """
        ours, host_facts = self._kernel.netfilter.name, self._kernel.host_facts
        await self._control_plane.proxier.serving.wait()
        # So that a status request right after READY=1 gets an answer.
        await self._operator_view.http_servers.opened.wait()
        if not self._process.signals.stop.is_set():
            self._process.notifier.ready(self._status())
        gc.freeze()  # The objects of the cluster live long, so the garbage collector need not look at them.
        sysctls.enforce(conntrack_limits(self._configuration.value))
        self._process.tasks.start(
            kept_running("leftovers", lambda: host_facts.follow_leftovers(ours)), name="leftovers"
        )
        for removed in await cleanup_all(keep=ours):
            log.info("removed leftovers of earlier run", what=removed)

    async def _follow_host_facts(self) -> None:
        """Follow changes of this node's addresses, until cancelled."""
        proxier = self._control_plane.proxier

        def on_facts(facts: NodeFacts) -> None:
            proxier.use(replace(proxier.settings, facts=facts))
            self._reporting.load_balancers.move()

        await self._kernel.host_facts.follow(on_landing=self._control_plane.landing_changed, on_facts=on_facts)

    def _on_node(self) -> None:
        """Handle a change of the Node object."""
        node = self._control_plane.tracker.node
        self._reporting.health.node_eligible(node is not None and node.eligible, exists=node is not None)
        self._control_plane.node_changed()

    async def _report_drains(self) -> None:
        """Report drain requests to rollouts once the rules redirect to this process. Until then a predecessor reports
        them."""
        await self._ownership.taken.wait()
        await self._control_plane.sources.report_drains(self._kernel_path.flows.open_to)

    def _status(self) -> str:
        """Return one line for `systemctl status`."""
        return startup_progress.status(
            self._control_plane.proxier.view.summary(),
            connections=self._data_plane.open_connections,
            serving=self._control_plane.proxier.serving.is_set(),
            stopping=self._process.signals.stop.is_set() or self._ownership.server.stop_requested.is_set(),
        )

    # Reloads.

    async def _follow_reloads(self) -> None:
        """Reload the configuration on each SIGHUP."""
        notifier = self._process.notifier
        await self._reloader.follow(on_begin=notifier.reloading, on_end=lambda: notifier.ready(self._status()))

    async def _follow_reexecs(self) -> None:
        """On SIGUSR2, replace this program by the one on disk and keep the process id, unless that would cost
        connections."""
        renew = self._process.signals.renew
        while True:
            await renew.wait()
            renew.clear()
            command = reexec.command()
            reason = reexec.obstacle(
                holds_connections=isinstance(self._data_plane, LocalDataPlane),
                settled=self._ownership.owns_rules(),
            )
            reason = reason or await self._configuration.why_unusable() or await reexec.why_not(command)
            if reason is not None:
                log.error("re-exec refused", reason=reason)
                continue
            log.info("re-executing, clients are served meanwhile", command=" ".join(command))
            self._process.notifier.reloading()
            await self._let_workers_serve_on()
            reexec.renew(command)

    async def _let_workers_serve_on(self) -> None:
        """Prepare for the end of this process. The workers and the kernel keep serving until another control process
        takes them over."""
        await self._control_plane.state_keeper.write()
        await self._drain_hook.end()
        self._kernel_path.rescue.bridge()

    # Drain and stop.

    async def end(self) -> None:
        """Wait for a takeover or a request to stop, and shut down. A takeover may also come during the drain. If an
        instance of another protocol version waits for the node, end at once and leave the workers to that instance.

        Raise TakeoverRefusedError if this instance would serve much less than its predecessor.
        """
        server, process, shutdown = self._ownership.server, self._process, self._shutdown
        await process.tasks.first_of(
            server.superseded.wait(),
            process.signals.stop.wait(),
            server.stop_requested.wait(),
            self._succession.refused.wait(),
        )
        if self._succession.refusal is not None:
            await shutdown.leave(RulesAtExit.LEAVE, within_s=0.0)
            raise self._succession.refusal
        clock, own = asyncio.get_running_loop().time, self._configuration.value.kubeproxy
        grace_s = own.shutdown_grace.seconds
        ends_at = clock() + grace_s
        has_workers = isinstance(self._data_plane, WorkerDataPlane)
        reliefs = (server.superseded, server.stop_requested) if has_workers else (server.superseded,)
        if not any(relief.is_set() for relief in reliefs):
            self._reporting.health.draining()
            process.notifier.stopping(self._status(), takes_s=grace_s)
            await shutdown.wind_down(grace_s, until=reliefs)
        if has_workers and server.stop_requested.is_set():
            process.notifier.stopping(self._status(), takes_s=0.0)
            await self._let_workers_serve_on()
            reexec.leave()
        if self._drain_reports is not None:
            await process.tasks.end(self._drain_reports)
        await self._control_plane.state_keeper.write()
        if server.superseded.is_set():
            await self._drain_hook.end()
            sources = self._control_plane.sources
            leaving = process.tasks.start(kept_running("drain reports", sources.report_leaving), name="leaving")
            await shutdown.drain_after_takeover(max(0.0, ends_at - clock()))
            await process.tasks.end(leaving)
        else:
            await self._stop(grace_s, cleanup_on_exit=own.cleanup_on_exit)

    async def _stop(self, grace_s: float, *, cleanup_on_exit: bool) -> None:
        """Stop without a successor."""
        server, marker = self._ownership.server, self._ownership.marker
        ours = self._ownership.taken.is_set() or not marker.others()
        if ours:
            await self._control_plane.sources.end_drain_reports()
        requested = server.stop_requested.is_set()  # Another instance waits, and its clients with it.
        rules = rules_at_exit(ours=ours, cleanup_on_exit=cleanup_on_exit and not requested)
        await self._shutdown.leave(rules, within_s=last_s(grace_s))
        await self._drain_hook.end()

    # The methods of `Owner`.

    def share(self, on: bool) -> None:
        """See `Owner.share`."""
        self._data_plane.share(on)

    async def hold(self, on: bool) -> None:
        """See `Owner.hold`."""
        await self._control_plane.proxier.hold(on)

    async def leads_here(self) -> bool:
        """See `Owner.leads_here`."""
        return await self._control_plane.proxier.leads_here()

    async def bindings(self) -> Sequence[RestoreBindings]:
        """See `Owner.bindings`."""
        return await self._data_plane.bindings()

    async def adopt(self) -> Entrances:
        """See `Owner.adopt`."""
        return await self._data_plane.adopt()

    async def yield_all(self) -> None:
        """See `Owner.yield_all`."""
        await self._operator_view.http_servers.release_ports()

    def grace_s(self) -> float:
        """See `Owner.grace_s`."""
        return self._configuration.value.kubeproxy.shutdown_grace.seconds

    def offer(self) -> Offer:
        """See `Owner.offer`."""
        return Offer(self._control_plane.tracker.services, source_texts(self._configuration.value))

    async def obey(self, order: Order) -> str | None:
        """See `Owner.obey`."""
        return await self._operator_view.orders.obey(order)
