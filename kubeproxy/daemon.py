"""The life story of the process: start, ready, reload, drain, stop. Read `Daemon.live` from top to bottom.

Clients may be waiting when it begins, and importing is most of what there is to do. So what has to do with HTTP is
imported where it is used, when they are served.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog
import uvloop

from kubeproxy import progress, renewal
from kubeproxy.announcer import Announcer, Events
from kubeproxy.config.dump import go_data
from kubeproxy.config.reload import compare, take_over
from kubeproxy.config.schema import Configuration
from kubeproxy.dataplane.cores import workers_for
from kubeproxy.dataplane.local import LocalDataPlane
from kubeproxy.dataplane.supervisor import WorkerEnd
from kubeproxy.dataplane.workers import WorkerDataPlane
from kubeproxy.errors import ConfigError, KernelError, KubeproxyError
from kubeproxy.handover import Handover
from kubeproxy.inputs import Inputs, source_names
from kubeproxy.model import ServiceName
from kubeproxy.netfilter import conntrack_limits
from kubeproxy.netfilter.cleanup import cleanup_all, disarm
from kubeproxy.netfilter.conntrack_kernel import KernelConntrack
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.select import select
from kubeproxy.notify import own_notifier
from kubeproxy.observability import logging
from kubeproxy.observability.access_log import AccessLog
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.metrics import Metrics
from kubeproxy.observability.pulse import Pulse
from kubeproxy.observability.status_incidents import Incidents
from kubeproxy.observability.views import Picture
from kubeproxy.presence import Presence
from kubeproxy.process import raise_descriptor_limit, set_oom_score_adj, settle_memory
from kubeproxy.proxier.facts import NodeFacts
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.proxier.tracker import START_GRACE_S, Tracker
from kubeproxy.settings import conntrack_limits as wanted_conntrack_limits
from kubeproxy.settings import periods, port_range, tune
from kubeproxy.succession import OWNER, Duties, Succession
from kubeproxy.surroundings import Surroundings
from kubeproxy.tasks import TaskSet
from kubeproxy.upkeep import kept_running
from kubeproxy.version import __version__

if TYPE_CHECKING:
    from kubeproxy.observability.server import HttpServer

log = structlog.get_logger(__name__)

EXIT_FAILURE = 1

FIRST_S = 1.0
"""How long nothing is done but what clients wait for. Whoever asks for our health may have to wait so much longer."""
LAST_S = 1.0
"""How much of the grace is kept for the clients who came last."""
ARRIVAL_S = 0.5
"""How long a client whose packets were on the way to us when the rules changed may take to arrive: a round trip."""
OTHERS_LOOK_S = 0.5
"""How often we look, until we serve, whether those who do are still there."""
CONTAINER_INIT = 1


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
        self._configuration = configuration
        self._read_configuration = reload
        self._tasks = TaskSet(self._crashed)
        self._reload_wanted = asyncio.Event()
        self._renewal_wanted = asyncio.Event()
        self._stop_wanted = asyncio.Event()
        self._stop_at_once = asyncio.Event()
        self._taken = asyncio.Event()
        """Set when the rules lead to us."""
        self._superseded = asyncio.Event()
        """Set when they lead to our successor."""
        self._presence = Presence()
        self._succession = Succession(
            Duties(share=self._share, hold=self._hold, yield_all=self._yield_all),
            version=__version__,
            others=self._presence.others,
        )
        self._tracker = Tracker(source_names(configuration))
        self._surroundings = Surroundings(configuration, node=lambda: self._tracker.node)
        self._servers: Sequence[HttpServer] = ()
        self._in_view = asyncio.Event()
        """Set when they have been started."""
        self._service_health_wanted: Mapping[ServiceName, tuple[int, int]] = {}
        self._service_health_changed = asyncio.Event()
        self._events = Events()
        self._inputs = Inputs(
            configuration,
            node_name=self._surroundings.node_name,
            tracker=self._tracker,
            events=self._events,
            tasks=self._tasks,
        )
        self._notifier = own_notifier()

    async def live(self) -> int:
        """From start to stop."""
        self._listen_to_signals()
        self._notifier.starting("starting")
        log.info("kubeproxy starts", version=__version__, pid=os.getpid(), node=self._surroundings.node_name)
        raise_descriptor_limit()
        set_oom_score_adj(self._configuration.oom_score_adj)
        async with AsyncExitStack() as self._closing:
            await self._look_around()
            if not self._stop_wanted.is_set():
                await self._begin()
                settle_memory()
                await self._end()
        log.info("kubeproxy has stopped")
        return 0

    # Start

    async def _look_around(self) -> None:
        """What this kernel can do, and who serves here already."""
        self._closing.callback(self._notifier.close)
        self._data_plane = self._make_data_plane()
        self._closing.push_async_callback(self._data_plane.close)
        # The workers start while the kernel is asked.
        _, (netfilter, why) = await asyncio.gather(
            self._data_plane.send([tune(self._configuration)]), select(self._configuration.netfilter_order)
        )
        log.info("packet filter", choice=why)
        self._closing.push_async_callback(netfilter.close)
        await self._surroundings.look_whether_addresses_can_be_preserved(netfilter)
        self._can_guard_sockets = await self._surroundings.can_guard_sockets(netfilter)
        self._closing.callback(self._presence.close)
        self._closing.push_async_callback(self._succession.close)
        # Where no rules lead to us there is nothing to follow one another in, and several may stand side by side.
        self._predecessor = (
            await self._succession.begin(given_up=self._stop_wanted.is_set) if netfilter.name != "none" else None
        )
        if self._predecessor is not None:
            self._data_plane.share(True)
        if netfilter.name != "none":
            if self._presence.others():
                # They serve meanwhile: nothing is taken from them before all is known.
                self._tracker.start_within(math.inf)
                self._tasks.start(kept_running("others", self._outlive_others), name="others")
            else:
                await self._disarm()
        self._netfilter = cast(Netfilter, Handover(netfilter, self._predecessor, on_taken=self._on_taken))

    async def _outlive_others(self) -> None:
        """Who served before us may end before all is known, be it a predecessor or its orphans; then some Services are
        better than none."""
        while not self._taken.is_set():
            if not self._presence.others():
                log.warning("those who served before have gone; serves what is known", within_s=START_GRACE_S)
                self._tracker.start_within(START_GRACE_S)
                return
            await asyncio.sleep(OTHERS_LOOK_S)

    async def _disarm(self) -> None:
        """Whatever rules are there lead to ports that are nobody's, or will be somebody else's."""
        try:
            for adapter in await disarm():
                log.info("clients wait until we serve: rules of an earlier run led them to nobody", adapter=adapter)
        except KernelError as error:
            log.warning("rules of an earlier run stay until ours are in force", reason=str(error))

    async def _begin(self) -> None:
        """Everything that runs for as long as we do."""
        configuration = self._configuration
        self._incidents = Incidents()
        self._incidents.listen()
        self._metrics = Metrics(families=self._surroundings.families)
        self._health = ProxyHealth(timeout_s=2 * configuration.sync_period_s, families=self._surroundings.families)
        self._proxier = self._make_proxier(self._netfilter)
        self._events.owner_of = self._proxier.owner_of
        self._tracker.notify_node(self._on_node)
        self._closing.push_async_callback(self._tasks.close)
        self._tasks.start(self._notifier.beat(self._status), name="service manager")
        as_text = configuration.logging.format == "text"
        self._tasks.start(progress.show(self._proxier.summary, self._proxier.serving, as_text=as_text), name="progress")
        # A predecessor serves meanwhile; and an address that cannot be had, if that is to fail the start, has to before
        # the rules lead to us.
        may_be_seen_later = self._predecessor is None and not configuration.bind_address_hard_fail
        if not may_be_seen_later:
            await self._open_to_view()
        await self._inputs.start(self._closing)
        self._tasks.start(kept_running("proxier", self._proxier.run), name="proxier")
        self._tasks.start(kept_running("surroundings", self._follow_surroundings), name="surroundings")
        self._tasks.start(kept_running("reload", self._follow_reloads), name="reload")
        self._tasks.start(kept_running("renewal", self._follow_renewals), name="renewal")
        self._serving_health = self._tasks.start(
            kept_running("service health", self._serve_service_health), name="service health"
        )
        pulse = Pulse(
            data_plane=self._data_plane,
            health=self._health,
            metrics=self._metrics,
            elsewhere={"conntrack": self._surroundings.conntrack_complaint},
        )
        self._tasks.start(kept_running("pulse", pulse.look), name="pulse")
        self._tasks.start(pulse.beat(), name="loop lag")
        self._access_log = AccessLog(self._data_plane.ended, on_lost=self._metrics.access_log_lost)
        self._use_access_log()
        self._tasks.start(kept_running("access log", self._access_log.run), name="access log")
        self._tasks.start(self._settle_in(self._netfilter.name), name="settling in")
        if may_be_seen_later:
            await self._first_of(self._proxier.serving.wait(), self._stop_wanted.wait(), asyncio.sleep(FIRST_S))
            await self._open_to_view()

    async def _open_to_view(self) -> None:
        """Answer those who ask how we are."""
        configuration = self._configuration
        from kubeproxy.onlooker import Onlooker
        from kubeproxy.pages import http_servers

        onlooker = Onlooker(
            node=self._surroundings.node_name,
            proxier=self._proxier,
            data_plane=self._data_plane,
            health=self._health,
            picture=self._picture,
            facts=self._surroundings.facts,
            incidents=self._incidents,
        )
        self._tasks.start(kept_running("status", onlooker.run), name="status")
        self._servers = http_servers(
            configuration,
            health=self._health,
            metrics=self._metrics,
            data_plane=self._data_plane,
            picture=self._picture,
            onlooker=onlooker,
            configz=self._configz,
            on_health_failure=partial(self._events.health_failed, self._surroundings.node_name),
        )
        for server in self._servers:
            self._closing.push_async_callback(server.close)
            if self._predecessor is not None:
                server.expect_port(math.inf)
            await server.start()
        self._in_view.set()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_wanted.set)
        loop.add_signal_handler(signal.SIGUSR2, self._renewal_wanted.set)
        renewal.listen_again()

    def _on_stop_signal(self, number: signal.Signals) -> None:
        if self._stop_wanted.is_set():
            log.info("told to stop again: at once", signal=number.name)
            self._stop_at_once.set()
        else:
            log.info("told to stop", signal=number.name)
            self._stop_wanted.set()

    def _make_data_plane(self) -> LocalDataPlane | WorkerDataPlane:
        own = self._configuration.kubeproxy
        count = workers_for(own.workers.number)
        log.info("data plane", workers=count)
        if count == 0:
            return LocalDataPlane()
        return WorkerDataPlane(
            count,
            on_end=self._worker_ended,
            on_crash=self._crashed,
            transparent=self._surroundings.may_preserve,
            run=self._presence.run,
            owner_name=OWNER,
            inherit=(self._presence.fileno(),),
        )

    def _worker_ended(self, end: WorkerEnd) -> None:
        log.error(
            "a worker has ended; its connections are lost, another takes its place",
            worker=end.number,
            pid=end.pid,
            reason=end.reason,
            restarts_in_s=end.restarts_in_s,
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
            families=self._surroundings.families,
            facts=self._surroundings.facts(),
            landing=self._surroundings.landing,
            bind=self._surroundings.bind,
            guard_sockets=self._can_guard_sockets,
            conntrack=KernelConntrack() if netfilter.name != "none" else None,
            observer=Announcer(
                self._health,
                self._metrics,
                adapter=netfilter.name,
                events=self._events,
                on_service_health=self._service_health,
            ),
        )

    # Life

    async def _settle_in(self, ours: str) -> None:
        """What can wait until we serve. An earlier run may have used another adapter, whose rules would still catch
        clients; and connection tracking has its settings only since there are rules that need it."""
        await self._proxier.serving.wait()
        if not self._stop_wanted.is_set():
            self._notifier.ready(self._status())
        gc.freeze()  # the cluster's objects stay, too
        for failure in conntrack_limits.apply(wanted_conntrack_limits(self._configuration)):
            log.info("cannot size connection tracking; goes on as it is", reason=failure)
        for removed in await cleanup_all(keep=ours):
            log.info("removed what an earlier run left", what=removed)

    async def _follow_surroundings(self) -> None:
        def on_landing() -> None:
            self._proxier.set_landing(self._surroundings.landing, self._surroundings.bind)

        def on_facts(facts: NodeFacts) -> None:
            self._proxier.set_facts(facts)
            self._service_health_changed.set()

        await self._surroundings.follow(on_landing=on_landing, on_facts=on_facts)

    def _on_node(self) -> None:
        """The Node object has changed."""
        node = self._tracker.node
        self._health.node_eligible(node is not None and node.eligible)
        self._proxier.set_facts(self._surroundings.facts())

    def _service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Load balancers ask after these Services."""
        self._service_health_wanted = wanted
        self._service_health_changed.set()

    async def _serve_service_health(self) -> None:
        await self._taken.wait()
        await self._in_view.wait()
        from kubeproxy.observability.service_health import ServiceHealthServers

        servers = ServiceHealthServers(
            health=self._health,
            addresses=self._surroundings.facts().node_addresses,
            on_failure=self._events.health_server_failed,
        )
        try:
            while True:
                await self._service_health_changed.wait()
                self._service_health_changed.clear()
                await servers.set_addresses(self._surroundings.facts().node_addresses)
                await servers.sync(self._service_health_wanted)
        finally:
            await servers.close()

    async def _follow_reloads(self) -> None:
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted.clear()
            if served := self._proxier.serving.is_set() and not self._stop_wanted.is_set():
                self._notifier.reloading()
            try:
                await self._reload()
                await self._inputs.reload()
            finally:
                if served and not self._stop_wanted.is_set():
                    self._notifier.ready(self._status())

    async def _reload(self) -> None:
        """Read the configuration again, and take over what can be taken over. A faulty one is refused whole."""
        try:
            new = self._read_configuration()
        except ConfigError as error:
            for fault in error.faults:
                log.error("configuration is faulty; the old one stays", fault=fault)
            return
        difference = compare(self._configuration, new)
        self._configuration = new = take_over(self._configuration, new)
        logging.configure(verbosity=new.logging.verbosity, fmt=new.logging.format)
        self._proxier.set_periods(periods(new))
        self._proxier.set_port_range(port_range(new))
        self._health.timeout_s = 2 * new.sync_period_s
        await self._data_plane.send([tune(new)])
        self._use_access_log()
        log.info("configuration reloaded", changed=list(difference.live))
        if difference.restart:
            log.warning("changed, but only after a restart", fields=list(difference.restart))

    def _use_access_log(self) -> None:
        configuration = self._configuration
        self._access_log.use(configuration.kubeproxy.access_log, as_json=configuration.logging.format == "json")

    async def _follow_renewals(self) -> None:
        while True:
            await self._renewal_wanted.wait()
            self._renewal_wanted.clear()
            await self._renew()

    async def _renew(self) -> None:
        """Become the code on disk under the same process number, unless that would cost connections."""
        words = renewal.command()
        if isinstance(self._data_plane, LocalDataPlane):
            why: str | None = "without workers every connection would be lost; restart it, or start a successor"
        elif not self._taken.is_set() or self._superseded.is_set():
            why = "it is just taking over, or making way"
        else:
            why = await renewal.why_not(words)
        if why is not None:
            log.error("cannot execute itself anew; goes on as it is", reason=why)
            return
        log.info("executes itself anew; the workers go on meanwhile", command=" ".join(words))
        self._notifier.reloading()
        renewal.renew(words)

    def _picture(self) -> Picture:
        return self._inputs.picture(self._proxier.snapshot())

    def _status(self) -> str:
        """One line for `systemctl status`."""
        summary, connections = self._proxier.summary(), self._data_plane.open_connections
        if self._stop_wanted.is_set():
            return f"draining; open connections: {connections}"
        if not self._proxier.serving.is_set():
            return f"starting; {progress.words(summary)}"
        parts = [f"services: {summary.services}, listeners: {summary.listeners}, open connections: {connections}"]
        if summary.troubled:
            parts.append(f"services with problems: {summary.troubled}")
        if summary.failing:
            parts.append(f"cannot be brought up to date: {summary.failing}")
        return "; ".join(parts)

    def _configz(self) -> Mapping[str, object]:
        return go_data(self._configuration)

    def _crashed(self, name: str, error: BaseException) -> None:
        log.error("a background task ended by an internal error", task=name, exc_info=error)

    # End

    async def _end(self) -> None:
        """A successor takes over, or the word to stop comes; and though it has come, a successor may still."""
        grace_s = self._configuration.kubeproxy.shutdown_grace.seconds
        await self._first_of(self._superseded.wait(), self._stop_wanted.wait())
        ends_at = asyncio.get_running_loop().time() + grace_s
        if not self._superseded.is_set():
            await self._wind_down(grace_s, last_s=min(LAST_S, grace_s / 2))
        if self._superseded.is_set():
            await self._make_way(max(0.0, ends_at - asyncio.get_running_loop().time()))
        else:
            await self._leave(last_s=min(LAST_S, grace_s / 2))

    async def _wind_down(self, grace_s: float, *, last_s: float) -> None:
        """Let the connections that are open finish. The node has no other proxy, so new ones are still taken."""
        self._health.draining()
        self._notifier.stopping(self._status(), takes_s=grace_s)
        log.info("draining", open=self._data_plane.open_connections, grace_s=grace_s)
        await self._first_of(self._drain(grace_s - last_s), self._superseded.wait())
        await self._succession.between()

    async def _leave(self, *, last_s: float) -> None:
        """Clients are made to wait for the next process, and who came last gets a moment, too."""
        ours = self._taken.is_set() or not self._presence.others()
        if not ours:
            log.info("leaves the packet filter's rules alone: they are others', who serve")
        cleanup = ours and self._configuration.kubeproxy.cleanup_on_exit
        try:
            await self._proxier.stop(cleanup=cleanup, pause=ours and not cleanup)
        except KernelError as error:
            log.error("the packet filter's rules stay as they are", reason=str(error))
        await self._let_go(last_s)

    async def _make_way(self, grace_s: float) -> None:
        """The rules lead to our successor. Who was on the way to us still arrives; then what is open may finish."""
        log.info("a successor has taken over; draining", open=self._data_plane.open_connections, grace_s=grace_s)
        await self._proxier.stop(cleanup=False)
        self._proxier.release_claims()
        await self._let_go(grace_s)
        if os.getpid() == CONTAINER_INIT:
            # Were we to end now, we would be started again, and take over in our turn.
            log.info("waits to be told to stop, as a container's first process")
            await self._stop_wanted.wait()

    async def _let_go(self, grace_s: float) -> None:
        """Let those arrive whose packets were on the way to us; then accept no more, and give what is open so long."""
        await self._hurried(asyncio.sleep(min(ARRIVAL_S, grace_s / 2)))
        await self._data_plane.retire()
        await self._drain(grace_s)
        if left := self._data_plane.open_connections:
            log.warning("connections are cut off", open=left)
        await self._access_log.flush()
        await self._data_plane.close()
        self._proxier.close()

    async def _drain(self, grace_s: float) -> None:
        """Wait for the connections open now."""
        await self._hurried(self._data_plane.drain(grace_s))

    async def _hurried(self, patience: Coroutine[Any, Any, Any]) -> None:
        """Wait, unless a second signal says at once."""
        await self._first_of(patience, self._stop_at_once.wait())

    async def _first_of(self, *ends: Coroutine[Any, Any, Any]) -> None:
        """Back with the first of them."""
        waiting = [self._tasks.start(end, name="end") for end in ends]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    # Succession

    async def _on_taken(self) -> None:
        """The rules lead to us, for the first time."""
        self._taken.set()
        if self._netfilter.name != "none":
            await self._succession.own()
        self._succession.in_force()
        self._data_plane.share(False)
        if self._predecessor is not None:
            for server in self._servers:
                server.expect_port()

    def _share(self, on: bool) -> None:
        """A successor is there, which has to hold the node ports that we hold; or it is there no more."""
        self._data_plane.share(on)

    async def _hold(self, on: bool) -> None:
        """The successor turns the rules to itself; or could not."""
        await self._proxier.hold(on)

    async def _yield_all(self) -> None:
        """The rules lead to the successor: it gets what only one can have."""
        await self._in_view.wait()
        for server in self._servers:
            await server.close()
        self._serving_health.cancel()
        await asyncio.wait((self._serving_health,))
        self._superseded.set()
