"""The life story of the process: start, ready, reload, drain, stop. Read `Daemon.live` from top to bottom.

Clients may be waiting when it begins, and importing is most of what there is to do. What has to do with HTTP is
imported later, by `reception`.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import cast

import structlog
import uvloop

from kubeproxy import progress, renewal
from kubeproxy.announcer import Announcer, Events
from kubeproxy.config.reload import compare, take_over
from kubeproxy.config.schema import Configuration
from kubeproxy.dataplane.workers import WorkerDataPlane
from kubeproxy.departure import Departure, bequest, last_s
from kubeproxy.errors import ConfigError, KernelError, KubeproxyError
from kubeproxy.handover import Handover
from kubeproxy.inputs import Inputs, source_names
from kubeproxy.netfilter import conntrack_limits
from kubeproxy.netfilter.cleanup import cleanup_all, disarm
from kubeproxy.netfilter.conntrack import NoConntrack
from kubeproxy.netfilter.conntrack_kernel import KernelConntrack
from kubeproxy.netfilter.holders import Holders
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.select import select
from kubeproxy.notify import own_notifier
from kubeproxy.observability import logging
from kubeproxy.observability.access_log import AccessLog
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.metrics import Metrics
from kubeproxy.observability.pulse import Pulse
from kubeproxy.orders import Orders
from kubeproxy.presence import Presence
from kubeproxy.process import (
    CONTAINER_INIT,
    forbid_core_dumps,
    raise_descriptor_limit,
    reap_strangers,
    set_oom_score_adj,
    settle_memory,
)
from kubeproxy.proxier.facts import NodeFacts
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.proxier.tracker import START_GRACE_S, Tracker
from kubeproxy.reception import Reception
from kubeproxy.settings import conntrack_limits as wanted_conntrack_limits
from kubeproxy.settings import periods, port_range, restrictions, tune
from kubeproxy.succession import Duties, Succession
from kubeproxy.surroundings import Surroundings
from kubeproxy.tasks import TaskSet
from kubeproxy.threads import in_thread
from kubeproxy.upkeep import kept_running
from kubeproxy.version import __version__
from kubeproxy.workforce import make_data_plane

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
        self._orders = Orders()
        self._presence = Presence()
        self._succession = Succession(
            Duties(
                share=lambda on: self._data_plane.share(on),
                hold=lambda on: self._proxier.hold(on),
                bindings=lambda: self._data_plane.bindings(),
                yield_all=lambda: self._reception.give_away(),
            ),
            version=__version__,
            others=self._presence.others,
        )
        self._tracker = Tracker(source_names(configuration))
        self._surroundings = Surroundings(configuration, node=lambda: self._tracker.node)
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
        self._orders.listen()
        self._notifier.starting("starting")
        log.info("kubeproxy starts", version=__version__, pid=os.getpid(), node=self._surroundings.node_name)
        forbid_core_dumps()
        raise_descriptor_limit()
        set_oom_score_adj(self._configuration.oom_score_adj)
        async with AsyncExitStack() as self._closing:
            await self._look_around()
            if not self._orders.stop.is_set():
                await self._begin()
                settle_memory()
                await self._end()
        log.info("kubeproxy has stopped")
        return 0

    # Start

    async def _look_around(self) -> None:
        """What this kernel can do, and who serves here already."""
        self._closing.callback(self._notifier.close)
        self._data_plane = make_data_plane(
            self._configuration,
            presence=self._presence,
            on_crash=self._crashed,
        )
        self._closing.push_async_callback(self._data_plane.close)
        # The workers start while the kernel is asked.
        _, (netfilter, why) = await asyncio.gather(
            self._data_plane.send([tune(self._configuration)]), select(self._configuration.netfilter_order)
        )
        log.info("packet filter", choice=why)
        self._closing.push_async_callback(netfilter.close)
        await self._surroundings.look_whether_addresses_can_be_preserved(netfilter)
        self._can_guard_sockets = await self._surroundings.can_guard_sockets(netfilter)
        await self._surroundings.look_whether_dials_are_marked(netfilter)
        self._closing.callback(self._presence.close)
        self._closing.push_async_callback(self._succession.close)
        # Where no rules lead to us there is nothing to follow one another in, and several may stand side by side.
        self._predecessor = (
            await self._succession.begin(given_up=self._orders.stop.is_set) if netfilter.name != "none" else None
        )
        if self._predecessor is not None:
            self._data_plane.share(True)
        conntrack = KernelConntrack() if netfilter.name != "none" else NoConntrack()
        self._handover = Handover(netfilter, conntrack, self._succession, self._data_plane, on_taken=self._on_taken)
        self._netfilter = cast(Netfilter, self._handover)
        if netfilter.name != "none":
            if self._presence.others():
                # They serve meanwhile: nothing is taken from them before all is known.
                self._tracker.start_within(math.inf)
                self._tasks.start(kept_running("others", self._outlive_others), name="others")
            else:
                await self._disarm()

    async def _outlive_others(self) -> None:
        """Who served before us may end before all is known, be it a predecessor or its orphans; then some Services are
        better than none."""
        while not self._handover.taken.is_set():
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
        self._metrics = Metrics(families=self._surroundings.families)
        self._health = ProxyHealth(timeout_s=2 * configuration.sync_period_s, families=self._surroundings.families)
        self._reception = Reception(
            lambda: self._configuration,
            surroundings=self._surroundings,
            data_plane=self._data_plane,
            health=self._health,
            metrics=self._metrics,
            events=self._events,
            taken=self._handover.taken,
            tasks=self._tasks,
        )
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
        if os.getpid() == CONTAINER_INIT:
            self._tasks.start(kept_running("children of others", reap_strangers), name="children of others")
        pulse = Pulse(
            data_plane=self._data_plane,
            health=self._health,
            metrics=self._metrics,
            elsewhere={**self._surroundings.complaints, "log": logging.complaint, "kubernetes": self._inputs.complaint},
        )
        self._tasks.start(kept_running("pulse", pulse.look), name="pulse")
        self._tasks.start(pulse.beat(), name="loop lag")
        self._access_log = AccessLog(self._data_plane.ended, on_lost=self._metrics.access_log_lost)
        self._use_access_log()
        self._tasks.start(kept_running("access log", self._access_log.run), name="access log")
        self._tasks.start(self._settle_in(self._netfilter.name), name="settling in")
        if may_be_seen_later:
            await self._tasks.first_of(self._proxier.serving.wait(), self._orders.stop.wait(), asyncio.sleep(FIRST_S))
            await self._open_to_view()

    async def _open_to_view(self) -> None:
        """Answer those who ask how we are."""
        await self._reception.open(
            self._proxier,
            began=self._began,
            picture=lambda: self._inputs.picture(self._proxier.snapshot()),
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
            families=self._surroundings.families,
            facts=self._surroundings.facts(),
            restrictions=restrictions(configuration),
            find_holders=Holders(),
            landing=self._surroundings.landing,
            bind=self._surroundings.bind,
            guard_sockets=self._can_guard_sockets,
            conntrack=self._handover,
            observer=Announcer(
                self._health,
                self._metrics,
                adapter=netfilter.name,
                events=self._events,
                on_service_health=self._reception.ask_after,
            ),
        )

    # Life

    async def _settle_in(self, ours: str) -> None:
        """What can wait until we serve. An earlier run may have used another adapter, whose rules would still catch
        clients; and connection tracking has its settings only since there are rules that need it."""
        await self._proxier.serving.wait()
        await self._reception.opened.wait()  # who asks for our status as soon as we are said to be ready gets it
        if not self._orders.stop.is_set():
            self._notifier.ready(self._status())
        gc.freeze()  # the cluster's objects stay, too
        for failure in conntrack_limits.apply(wanted_conntrack_limits(self._configuration)):
            log.info("cannot size connection tracking; goes on as it is", reason=failure)
        self._tasks.start(
            kept_running("leftovers", lambda: self._surroundings.follow_leftovers(ours)), name="leftovers"
        )
        for removed in await cleanup_all(keep=ours):
            log.info("removed what an earlier run left", what=removed)

    async def _follow_surroundings(self) -> None:
        def on_landing() -> None:
            self._proxier.set_landing(self._surroundings.landing, self._surroundings.bind)

        def on_facts(facts: NodeFacts) -> None:
            self._proxier.set_facts(facts)
            self._reception.move()

        await self._surroundings.follow(on_landing=on_landing, on_facts=on_facts)

    def _on_node(self) -> None:
        """The Node object has changed."""
        node = self._tracker.node
        self._health.node_eligible(node is not None and node.eligible, exists=node is not None)
        self._proxier.set_facts(self._surroundings.facts())

    async def _follow_reloads(self) -> None:
        while True:
            await self._orders.reload.wait()
            self._orders.reload.clear()
            if served := self._proxier.serving.is_set() and not self._orders.stop.is_set():
                self._notifier.reloading()
            try:
                await self._reload()
                await self._inputs.reload()
            except (KubeproxyError, MemoryError):
                self._orders.reload.set()  # it is still to be done
                raise
            finally:
                if served and not self._orders.stop.is_set():
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
        self._configuration = new = take_over(self._configuration, new)
        logging.configure(verbosity=new.logging.verbosity, fmt=new.logging.format)
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
            await self._orders.renew.wait()
            self._orders.renew.clear()
            words = renewal.command()
            why = renewal.obstacle(
                workers=isinstance(self._data_plane, WorkerDataPlane),
                settled=self._handover.taken.is_set() and not self._succession.superseded.is_set(),
            ) or await renewal.why_not(words)
            if why is not None:
                log.error("cannot execute itself anew; goes on as it is", reason=why)
                continue
            log.info("executes itself anew; the workers go on meanwhile", command=" ".join(words))
            self._notifier.reloading()
            renewal.renew(words)

    def _status(self) -> str:
        """One line for `systemctl status`."""
        return progress.status(
            self._proxier.summary(),
            connections=self._data_plane.open_connections,
            serving=self._proxier.serving.is_set(),
            stopping=self._orders.stop.is_set(),
        )

    def _crashed(self, name: str, error: BaseException) -> None:
        log.error("a background task ended by an internal error", task=name, exc_info=error)

    # End

    async def _end(self) -> None:
        """A successor takes over, or the word to stop comes; and though it has come, a successor may still."""
        await self._tasks.first_of(self._succession.superseded.wait(), self._orders.stop.wait())
        own, clock = self._configuration.kubeproxy, asyncio.get_running_loop().time
        grace_s = own.shutdown_grace.seconds
        ends_at = clock() + grace_s
        departure = Departure(
            orders=self._orders,
            succession=self._succession,
            proxier=self._proxier,
            data_plane=self._data_plane,
            access_log=self._access_log,
            tasks=self._tasks,
        )
        if not self._succession.superseded.is_set():
            self._health.draining()
            self._notifier.stopping(self._status(), takes_s=grace_s)
            await departure.wind_down(grace_s)
        if self._succession.superseded.is_set():
            await departure.make_way(max(0.0, ends_at - clock()))
        else:
            ours = self._handover.taken.is_set() or not self._presence.others()
            rules = bequest(ours=ours, cleanup_on_exit=own.cleanup_on_exit)
            await departure.leave(rules, within_s=last_s(grace_s))

    # Succession

    async def _on_taken(self) -> None:
        """The rules lead to us, for the first time."""
        if self._netfilter.name != "none":
            await self._succession.own()
        self._succession.in_force()
        self._data_plane.share(False)
        if self._predecessor is not None:
            self._reception.expect_ports()
