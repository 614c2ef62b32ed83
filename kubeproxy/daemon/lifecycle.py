"""The life story of the process: start, ready, reload, drain, stop. Read `Daemon.live` from top to bottom.

Clients may be waiting when it begins, and importing is most of what there is to do. What has to do with HTTP is
imported later, by `reception`.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import cast

import structlog
import uvloop

from kubeproxy.config.reload import compare, effective
from kubeproxy.config.schema import Configuration
from kubeproxy.daemon import startup_progress
from kubeproxy.daemon.admin import AdminServers
from kubeproxy.daemon.data_plane import make_data_plane
from kubeproxy.daemon.event_reporter import Events, ProxierEvents
from kubeproxy.daemon.host import HostState
from kubeproxy.daemon.process_limits import (
    CONTAINER_INIT,
    forbid_core_dumps,
    load_modules,
    raise_descriptor_limit,
    reap_strangers,
    set_oom_score_adj,
    settle_memory,
)
from kubeproxy.daemon.sd_notify import own_notifier
from kubeproxy.daemon.settings import conntrack_limits as wanted_conntrack_limits
from kubeproxy.daemon.settings import periods, port_range, restrictions, tune
from kubeproxy.daemon.shutdown import Shutdown, last_s, rules_at_exit
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.sources import Sources, source_names
from kubeproxy.daemon.takeover import reexec
from kubeproxy.daemon.takeover.instances import InstanceMarker
from kubeproxy.daemon.takeover.rule_transfer import RuleTransfer
from kubeproxy.daemon.takeover.takeover import OwnerCallbacks, Takeover
from kubeproxy.dataplane.workers.pool import WorkerDataPlane
from kubeproxy.model.errors import ConfigError, KernelError, KubeproxyError
from kubeproxy.model.version import __version__
from kubeproxy.netfilter.cleanup import cleanup_all, pause_stale_rules
from kubeproxy.netfilter.conntrack import sysctls
from kubeproxy.netfilter.conntrack.kernel import KernelConntrack
from kubeproxy.netfilter.conntrack.reconcile import NoConntrack
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.port_holders import Holders
from kubeproxy.netfilter.select import select
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.logs import setup
from kubeproxy.observability.logs.access_log import AccessLog
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.monitor.loop import Monitor
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.proxier.tracker import START_GRACE_S, Tracker
from kubeproxy.runtime import privileges
from kubeproxy.runtime.restart import kept_running
from kubeproxy.runtime.tasks import TaskSet
from kubeproxy.runtime.threads import in_thread

log = structlog.get_logger(__name__)

EXIT_FAILURE = 1

FIRST_S = 1.0
"""How long nothing is done but what clients wait for. Whoever asks for our health may have to wait so much longer."""
OTHERS_LOOK_S = 0.5
"""How often we look, until we serve, whether those who do are still there."""


def run(configuration: Configuration, *, reload: Callable[[], Configuration]) -> int:
    """Serve until told to stop; the exit status.

    `reload` reads the configuration again (ConfigError when it is faulty).
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(Daemon(configuration, reload).live())
        except ConfigError:
            raise
        except KubeproxyError as error:
            log.error("cannot start", reason=str(error))
            return EXIT_FAILURE


class Daemon:
    """One process's life."""

    def __init__(self, configuration: Configuration, reload: Callable[[], Configuration]) -> None:
        self._began = time.time()
        self._configuration = configuration
        self._read_configuration = reload
        self._tasks = TaskSet(self._crashed)
        self._signals = Signals()
        self._instance_marker = InstanceMarker()
        self._takeover = Takeover(
            OwnerCallbacks(
                share=lambda on: self._data_plane.share(on),
                hold=lambda on: self._proxier.hold(on),
                leads_here=lambda: self._proxier.leads_here(),
                bindings=lambda: self._data_plane.bindings(),
                yield_all=lambda: self._admin_servers.give_away(),
            ),
            version=__version__,
            others=self._instance_marker.others,
        )
        self._tracker = Tracker(source_names(configuration))
        self._host_state = HostState(configuration, node=lambda: self._tracker.node)
        self._events = Events()
        self._sources = Sources(
            configuration,
            node_name=self._host_state.node_name,
            tracker=self._tracker,
            events=self._events,
            tasks=self._tasks,
        )
        self._notifier = own_notifier()

    async def live(self) -> int:
        """From start to stop."""
        self._signals.listen()
        self._notifier.starting("starting")
        log.info("kubeproxy starts", version=__version__, pid=os.getpid(), node=self._host_state.node_name)
        forbid_core_dumps()
        raise_descriptor_limit()
        set_oom_score_adj(self._configuration.oom_score_adj)
        self._give_up_privileges()
        async with AsyncExitStack() as self._closing:
            await self._look_around()
            if not self._signals.stop.is_set():
                await self._begin()
                settle_memory()
                await self._end()
        log.info("kubeproxy has stopped")
        return 0

    # Start

    def _give_up_privileges(self) -> None:
        """Before the first thread, and before anything is read from the network. The legacy tables' modules are
        loaded by programs, which can no longer do so afterwards."""
        order = self._configuration.netfilter_order
        if order and (order[0] == "iptables" or ("iptables" in order and shutil.which("nft") is None)):
            load_modules()
        try:
            privileges.restrict()
        except OSError as error:
            log.warning("cannot drop capabilities", reason=error.strerror)

    async def _look_around(self) -> None:
        """What this kernel can do, and who serves here already."""
        self._closing.callback(self._notifier.close)
        self._data_plane = make_data_plane(
            self._configuration,
            instance_marker=self._instance_marker,
            on_crash=self._crashed,
        )
        self._closing.push_async_callback(self._data_plane.close)
        # The workers start while the kernel is asked.
        _, (netfilter, why) = await asyncio.gather(
            self._data_plane.send([tune(self._configuration)]), select(self._configuration.netfilter_order)
        )
        log.info("packet filter", choice=why)
        self._closing.push_async_callback(netfilter.close)
        await self._host_state.look_whether_addresses_can_be_preserved(netfilter)
        self._can_guard_sockets = await self._host_state.can_guard_sockets(netfilter)
        await self._host_state.look_whether_dials_are_marked(netfilter)
        self._closing.callback(self._instance_marker.close)
        self._closing.push_async_callback(self._takeover.close)
        # Where no rules lead to us there is nothing to follow one another in, and several may stand side by side.
        self._predecessor = (
            await self._takeover.begin(given_up=self._signals.stop.is_set) if netfilter.name != "none" else None
        )
        if self._predecessor is not None:
            self._data_plane.share(True)
        conntrack = KernelConntrack() if netfilter.name != "none" else NoConntrack()
        self._rule_transfer = RuleTransfer(
            netfilter, conntrack, self._takeover, self._data_plane, on_taken=self._on_taken
        )
        self._netfilter = cast(Netfilter, self._rule_transfer)
        if netfilter.name != "none":
            if self._instance_marker.others():
                # They serve meanwhile: nothing is taken from them before all is known.
                self._tracker.start_within(math.inf)
                self._tasks.start(kept_running("others", self._outlive_others), name="others")
            else:
                await self._disarm()

    async def _outlive_others(self) -> None:
        """Who served before us may end before all is known, be it a predecessor or its orphans; then some Services are
        better than none."""
        while not self._rule_transfer.taken.is_set():
            if not self._instance_marker.others():
                log.warning("those who served before have gone; serves what is known", within_s=START_GRACE_S)
                self._tracker.start_within(START_GRACE_S)
                return
            await asyncio.sleep(OTHERS_LOOK_S)

    async def _disarm(self) -> None:
        """Whatever rules are there lead to ports that are nobody's, or will be somebody else's."""
        try:
            for adapter in await pause_stale_rules():
                log.info("clients wait until we serve: rules of an earlier run led them to nobody", adapter=adapter)
        except KernelError as error:
            log.warning("rules of an earlier run stay until ours are in force", reason=str(error))

    async def _begin(self) -> None:
        """Everything that runs for as long as we do."""
        configuration = self._configuration
        self._metrics = Metrics(families=self._host_state.families)
        self._health = ProxyHealth(timeout_s=2 * configuration.sync_period_s, families=self._host_state.families)
        self._admin_servers = AdminServers(
            lambda: self._configuration,
            host_state=self._host_state,
            data_plane=self._data_plane,
            health=self._health,
            metrics=self._metrics,
            events=self._events,
            taken=self._rule_transfer.taken,
            tasks=self._tasks,
        )
        self._proxier = self._make_proxier(self._netfilter)
        self._takeover.answer()
        self._events.owner_of = self._proxier.owner_of
        self._tracker.notify_node(self._on_node)
        self._closing.push_async_callback(self._tasks.close)
        self._tasks.start(self._notifier.beat(self._status), name="service manager")
        as_text = configuration.logging.format == "text"
        self._tasks.start(
            startup_progress.show(self._proxier.summary, self._proxier.serving, as_text=as_text), name="progress"
        )
        # A predecessor serves meanwhile; and an address that cannot be had, if that is to fail the start, has to before
        # the rules lead to us.
        may_be_seen_later = self._predecessor is None and not configuration.bind_address_hard_fail
        if not may_be_seen_later:
            await self._open_to_view()
        await self._sources.start(self._closing)
        self._tasks.start(kept_running("proxier", self._proxier.run), name="proxier")
        self._tasks.start(kept_running("host_state", self._follow_surroundings), name="host_state")
        self._tasks.start(kept_running("reload", self._follow_reloads), name="reload")
        self._tasks.start(kept_running("renewal", self._follow_renewals), name="renewal")
        if os.getpid() == CONTAINER_INIT:
            self._tasks.start(kept_running("children of others", reap_strangers), name="children of others")
        monitor = Monitor(
            data_plane=self._data_plane,
            health=self._health,
            metrics=self._metrics,
            checks={**self._host_state.complaints, "log": setup.writer_problem, "kubernetes": self._sources.complaint},
        )
        self._tasks.start(kept_running("monitor", monitor.run), name="monitor")
        self._tasks.start(monitor.measure_lag(), name="loop lag")
        self._access_log = AccessLog(self._data_plane.ended, on_lost=self._metrics.access_log_lost)
        self._use_access_log()
        self._tasks.start(kept_running("access log", self._access_log.run), name="access log")
        self._tasks.start(self._settle_in(self._netfilter.name), name="settling in")
        if may_be_seen_later:
            await self._tasks.first_of(self._proxier.serving.wait(), self._signals.stop.wait(), asyncio.sleep(FIRST_S))
            await self._open_to_view()

    async def _open_to_view(self) -> None:
        """Answer those who ask how we are."""
        await self._admin_servers.open(
            self._proxier,
            began=self._began,
            picture=lambda: self._sources.picture(self._proxier.snapshot()),
            ports_in_use=self._predecessor is not None,
            closing=self._closing,
        )

    def _make_proxier(self, netfilter: Netfilter) -> Proxier:
        configuration = self._configuration
        return Proxier(
            tracker=self._tracker,
            data_plane=self._data_plane,
            netfilter=netfilter,
            reserver=self._data_plane,
            port_range=port_range(configuration),
            periods=periods(configuration),
            families=self._host_state.families,
            facts=self._host_state.facts(),
            restrictions=restrictions(configuration),
            find_holders=Holders(),
            landing=self._host_state.landing,
            bind=self._host_state.bind,
            guard_sockets=self._can_guard_sockets,
            conntrack=self._rule_transfer,
            rival_lives=self._takeover.rival_lives,
            on_rival=self._takeover.yield_to_rival,
            observer=ProxierEvents(
                self._health,
                self._metrics,
                adapter=netfilter.name,
                events=self._events,
                on_service_health=self._admin_servers.ask_after,
            ),
        )

    # Life

    async def _settle_in(self, ours: str) -> None:
        """What can wait until we serve. An earlier run may have used another adapter, whose rules would still catch
        clients; and connection tracking has its settings only since there are rules that need it."""
        await self._proxier.serving.wait()
        await self._admin_servers.opened.wait()  # who asks for our status as soon as we are said to be ready gets it
        if not self._signals.stop.is_set():
            self._notifier.ready(self._status())
        gc.freeze()  # the cluster's objects stay, too
        for failure in sysctls.apply(wanted_conntrack_limits(self._configuration)):
            log.info("cannot size connection tracking; goes on as it is", reason=failure)
        self._tasks.start(kept_running("leftovers", lambda: self._host_state.follow_leftovers(ours)), name="leftovers")
        for removed in await cleanup_all(keep=ours):
            log.info("removed what an earlier run left", what=removed)

    async def _follow_surroundings(self) -> None:
        def on_landing() -> None:
            self._proxier.set_landing(self._host_state.landing, self._host_state.bind)

        def on_facts(facts: NodeFacts) -> None:
            self._proxier.set_facts(facts)
            self._admin_servers.move()

        await self._host_state.follow(on_landing=on_landing, on_facts=on_facts)

    def _on_node(self) -> None:
        """The Node object has changed."""
        node = self._tracker.node
        self._health.node_eligible(node is not None and node.eligible, exists=node is not None)
        self._proxier.set_facts(self._host_state.facts())

    async def _follow_reloads(self) -> None:
        while True:
            await self._signals.reload.wait()
            self._signals.reload.clear()
            if served := self._proxier.serving.is_set() and not self._signals.stop.is_set():
                self._notifier.reloading()
            try:
                await self._reload()
                await self._sources.reload()
            except (KubeproxyError, MemoryError):
                self._signals.reload.set()  # it is still to be done
                raise
            finally:
                if served and not self._signals.stop.is_set():
                    self._notifier.ready(self._status())

    async def _reload(self) -> None:
        """Read the configuration again, and take over what can be taken over. A faulty one is refused whole."""
        try:
            new = await in_thread(self._read_configuration)
        except ConfigError as error:
            for fault in error.faults:
                log.error("configuration is faulty; the old one stays", fault=fault)
            return
        difference = compare(self._configuration, new)
        self._configuration = new = effective(self._configuration, new)
        setup.configure(verbosity=new.logging.verbosity, fmt=new.logging.format)
        self._proxier.set_periods(periods(new))
        self._proxier.set_port_range(port_range(new))
        self._proxier.set_restrictions(restrictions(new))
        self._health.timeout_s = 2 * new.sync_period_s
        await self._data_plane.send([tune(new)])
        self._use_access_log()
        log.info("configuration reloaded", changed=list(difference.live))
        if difference.restart:
            log.warning("changed, but only after a restart", fields=list(difference.restart))

    def _use_access_log(self) -> None:
        wanted = self._configuration
        self._access_log.use(wanted.kubeproxy.access_log, as_json=wanted.logging.format == "json")

    async def _follow_renewals(self) -> None:
        """Become the code on disk under the same process number, unless that would cost connections."""
        while True:
            await self._signals.renew.wait()
            self._signals.renew.clear()
            words = reexec.command()
            why = reexec.obstacle(
                workers=isinstance(self._data_plane, WorkerDataPlane),
                settled=self._rule_transfer.taken.is_set() and not self._takeover.superseded.is_set(),
            ) or await reexec.why_not(words)
            if why is not None:
                log.error("cannot execute itself anew; goes on as it is", reason=why)
                continue
            log.info("executes itself anew; the workers go on meanwhile", command=" ".join(words))
            self._notifier.reloading()
            reexec.renew(words)

    def _status(self) -> str:
        """One line for `systemctl status`."""
        return startup_progress.status(
            self._proxier.summary(),
            connections=self._data_plane.open_connections,
            serving=self._proxier.serving.is_set(),
            stopping=self._signals.stop.is_set(),
        )

    def _crashed(self, name: str, error: BaseException) -> None:
        log.error("a background task ended by an internal error", task=name, exc_info=error)

    # End

    async def _end(self) -> None:
        """A successor takes over, or the word to stop comes; and though it has come, a successor may still."""
        await self._tasks.first_of(self._takeover.superseded.wait(), self._signals.stop.wait())
        own, clock = self._configuration.kubeproxy, asyncio.get_running_loop().time
        grace_s = own.shutdown_grace.seconds
        ends_at = clock() + grace_s
        shutdown = Shutdown(
            signals=self._signals,
            takeover=self._takeover,
            proxier=self._proxier,
            data_plane=self._data_plane,
            access_log=self._access_log,
            tasks=self._tasks,
        )
        if not self._takeover.superseded.is_set():
            self._health.draining()
            self._notifier.stopping(self._status(), takes_s=grace_s)
            await shutdown.wind_down(grace_s)
        if self._takeover.superseded.is_set():
            await shutdown.make_way(max(0.0, ends_at - clock()))
        else:
            ours = self._rule_transfer.taken.is_set() or not self._instance_marker.others()
            rules = rules_at_exit(ours=ours, cleanup_on_exit=own.cleanup_on_exit)
            await shutdown.leave(rules, within_s=last_s(grace_s))

    # Takeover

    async def _on_taken(self) -> None:
        """The rules lead to us, for the first time."""
        if self._netfilter.name != "none":
            self._takeover.own()
        self._takeover.in_force()
        self._data_plane.share(False)
        if self._predecessor is not None:
            self._admin_servers.expect_ports()
