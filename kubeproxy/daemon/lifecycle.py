"""The life of the control process: start, ready, reload, re-exec, drain, stop. Read `live` from top to bottom.

`assembly` makes the parts. Clients may be waiting, and imports take most of the time until the first answer: what has
to do with HTTP or the API server is imported later.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog
import uvloop

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon import startup_progress
from kubeproxy.daemon.assembly import Parts, build
from kubeproxy.daemon.host_facts import node_name_of
from kubeproxy.daemon.process_limits import (
    forbid_core_dumps,
    load_modules,
    raise_descriptor_limit,
    reap_adopted,
    set_oom_score_adj,
    settle_memory,
)
from kubeproxy.daemon.sd_notify import own_notifier
from kubeproxy.daemon.settings import conntrack_limits as wanted_conntrack_limits
from kubeproxy.daemon.shutdown import RulesAtExit, last_s, rules_at_exit
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.takeover import reexec
from kubeproxy.daemon.takeover.instances import of_other_users
from kubeproxy.daemon.takeover.serves_enough import TakeoverRefusedError
from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.model import Protocol
from kubeproxy.model.errors import ConfigError, KernelError, KubeproxyError
from kubeproxy.model.version import __version__
from kubeproxy.netfilter.cleanup import cleanup_all, pause_stale_rules
from kubeproxy.netfilter.conntrack import sysctls
from kubeproxy.netfilter.port_holders import Holders
from kubeproxy.observability.picture import Picture
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.tracker import START_GRACE_S
from kubeproxy.runtime import privileges
from kubeproxy.runtime.keep_running import kept_running

log = structlog.get_logger(__name__)

EXIT_FAILURE = 1

FIRST_S = 1.0
"""How long the start of the HTTP servers waits for clients to be served first."""
SOURCES_LOOK_S = 0.02
"""How often a new instance looks whether its sources are complete, before it compares itself with its predecessor."""
OTHERS_LOOK_S = 0.5
"""How often a start looks whether earlier instances still live."""
FORGET_S, FORGET_SHARE = 2.0, 20
"""How often it forgets the connections that these end, and at most in one of so many parts of the time."""


def run(configuration: Configuration, *, reload: Callable[[], Configuration], file: str = "") -> int:
    """Serve until a signal or a takeover ends it; the exit status.

    `reload` reads the configuration again (ConfigError when it is faulty), from `file` and flags.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(live(configuration, reload, file=file))
        except ConfigError as error:
            return refuse(error)
        except KubeproxyError as error:
            log.error("cannot start", reason=str(error))
            return EXIT_FAILURE


def refuse(error: ConfigError) -> int:
    """Log why a configuration cannot be used; the exit status."""
    for fault in error.faults:
        log.error("cannot start", reason=fault)
    return ConfigError.EXIT_STATUS


async def live(configuration: Configuration, read_configuration: Callable[[], Configuration], *, file: str = "") -> int:
    """From start to stop."""
    began = time.time()
    signals = Signals()
    signals.listen()
    notifier = own_notifier()
    notifier.starting("starting")
    log.info("kubeproxy starts", version=__version__, pid=os.getpid(), node=node_name_of(configuration))
    find_holders = Holders()
    look_at_own_ports(find_holders, configuration)
    restrict_process(configuration)
    async with AsyncExitStack() as closing:
        closing.callback(notifier.close)
        parts = await build(
            configuration,
            read_configuration,
            file=file,
            signals=signals,
            notifier=notifier,
            find_holders=find_holders,
            closing=closing,
        )
        daemon = Daemon(parts, closing, began=began)
        await daemon.find_predecessor()
        if not signals.stop.is_set():
            await daemon.start()
            settle_memory()
            await daemon.end()
    log.info("kubeproxy has stopped")
    return 0


def look_at_own_ports(find_holders: Holders, configuration: Configuration) -> None:
    """Find out who has the ports of this daemon's servers, as long as sockets of other processes can be looked at.

    Without the capabilities a message could only name the user, and the first to have such a port is kube-proxy."""
    for address in (configuration.healthz_bind_address, configuration.metrics_bind_address):
        if address.served:
            with contextlib.suppress(OSError):
                find_holders(Protocol.TCP, address.address, address.port)


def restrict_process(configuration: Configuration) -> None:
    """Set limits and drop capabilities: before the first thread, and before anything is read from the network."""
    forbid_core_dumps()
    raise_descriptor_limit()
    set_oom_score_adj(configuration.oom_score_adj)
    order = configuration.netfilter_order
    if order and (order[0] == "iptables" or ("iptables" in order and shutil.which("nft") is None)):
        load_modules()  # programs load them, and cannot do so without these capabilities
    try:
        privileges.restrict()
    except OSError as error:
        log.warning("cannot drop capabilities", reason=error.strerror)


class Daemon:
    """One process's life: `find_predecessor`, `start`, `end`, in this order."""

    def __init__(self, parts: Parts, closing: AsyncExitStack, *, began: float) -> None:
        """`began`: when the process did, in Unix seconds."""
        self._parts = parts
        self._closing = closing
        self._began = began
        self._reporting: asyncio.Task[None] | None = None
        """Writes the drain reports."""
        self._refused = asyncio.Event()
        self._refusal: TakeoverRefusedError | None = None
        """Why this instance does not take over; with `_refused`."""

    # Start

    async def find_predecessor(self) -> None:
        """Find the owner of the node, if there is one; without earlier instances clients wait until this one serves."""
        parts = self._parts
        if parts.rule_transfer.name == "none":
            return  # no rules lead to such instances, so several may run side by side
        self._require_own_user()
        owner = await parts.takeover.begin(given_up=parts.signals.stop.is_set)
        if owner is not None:
            parts.data_plane.share(True)
            log.info(
                "taking over from running kubeproxy",
                predecessor=owner.pid,
                version=owner.version,
                services=max(0, owner.offer.services),
                sources=", ".join(owner.offer.sources),
            )
            # Everything is prepared beside it, but the rules stay its own until it is known what we would serve.
            await parts.proxier.hold(True)
        if parts.instance_marker.others():
            # They serve meanwhile: take over only when everything is known.
            parts.tracker.start_within(math.inf)
            parts.tasks.start(kept_running("others", self._outlive_others), name="others")
        else:
            await self._disarm()

    async def _compare_with_predecessor(self) -> None:
        """Let the rules lead here if this instance serves enough; otherwise refuse the takeover."""
        parts = self._parts
        while not all(parts.tracker.sources().values()):
            if parts.takeover.predecessor is None or parts.takeover.predecessor.gone:
                break  # some Services are better than none
            await asyncio.sleep(SOURCES_LOOK_S)
        try:
            parts.takeover.require_enough_services()
        except TakeoverRefusedError as error:
            self._refusal = error
            self._refused.set()
        else:
            await parts.proxier.hold(False)

    def _require_own_user(self) -> None:
        """TakeoverRefusedError if a kubeproxy of another user runs: it cannot be asked to yield, so the two would
        fight over the rules."""
        if self._parts.reloader.configuration.kubeproxy.takeover == "force":
            return
        for other in of_other_users():
            raise TakeoverRefusedError("a kubeproxy", f"runs on this host already ({other})")

    async def _outlive_others(self) -> None:
        """Start with what is known if earlier instances end first: some Services are better than none. When the rules
        are ours, forget the connections that the others end."""
        parts, clock = self._parts, asyncio.get_running_loop().time
        while not parts.rule_transfer.taken.is_set():
            if not parts.instance_marker.others():
                log.warning("earlier instances have ended", serving="what is known", within_s=START_GRACE_S)
                parts.tracker.start_within(START_GRACE_S)
                await parts.state_keeper.recall()
                return
            await asyncio.sleep(OTHERS_LOOK_S)
        forget_at = clock()
        while parts.instance_marker.others():
            if clock() >= forget_at:
                began = clock()
                await parts.proxier.kernel.forget_ended(ours=False)
                forget_at = clock() + max(FORGET_S, FORGET_SHARE * (clock() - began))
            await asyncio.sleep(OTHERS_LOOK_S)
        await parts.proxier.kernel.forget_ended(ours=False)

    async def _recall_later(self) -> None:
        """Serve the state of an earlier run if the sources are not complete soon; a predecessor serves a better one."""
        await asyncio.sleep(START_GRACE_S)
        if self._parts.takeover.predecessor is None:
            await self._parts.state_keeper.recall()

    async def _disarm(self) -> None:
        """Remove redirects to ports that no process has any more, or that another may get. What the kernel leads to
        endpoints by itself stays."""
        try:
            for adapter in await pause_stale_rules():
                log.info("earlier run's redirects paused", adapter=adapter)
        except KernelError as error:
            log.warning("cannot remove earlier run's redirects", reason=str(error))

    async def start(self) -> None:
        """Start every part that runs for as long as the process."""
        parts, tasks = self._parts, self._parts.tasks
        configuration = parts.reloader.configuration
        parts.proxier.use(
            dataclasses.replace(parts.proxier.settings, facts=parts.host_facts.facts())
        )  # the search for a predecessor may have taken long
        parts.takeover.server.answer()
        parts.tracker.notify_node(self._on_node)
        tasks.start(parts.notifier.beat(self._status), name="service manager")
        as_text = configuration.logging.format == "text"
        tasks.start(
            startup_progress.show(
                parts.proxier.view.summary, parts.proxier.serving, as_text=as_text, trouble=parts.sources.trouble
            ),
            name="progress",
        )
        # A predecessor serves meanwhile; and an address that is in use, if that is to fail the start, has to do so
        # before the rules lead to us.
        http_later = parts.takeover.predecessor is None and not configuration.bind_address_hard_fail
        if not http_later:
            await self._open_http_servers()
        tasks.start(kept_running("rescue", parts.rescue.run), name="rescue")
        if not parts.instance_marker.others() and await parts.state_keeper.recall(at_once=True):
            await self._serve()
            await tasks.first_of(parts.proxier.serving.wait(), parts.signals.stop.wait(), asyncio.sleep(FIRST_S))
            await parts.sources.start(self._closing)
        else:
            await parts.sources.start(self._closing)
            await self._serve()
            tasks.start(kept_running("recall", self._recall_later), name="recall")
        if parts.takeover.predecessor is not None:
            tasks.start(self._compare_with_predecessor(), name="comparison")
        tasks.start(kept_running("host_facts", self._follow_host_facts), name="host_facts")
        tasks.start(kept_running("reload", self._follow_reloads), name="reload")
        tasks.start(kept_running("re-exec", self._follow_reexecs), name="re-exec")
        tasks.start(kept_running("children of others", reap_adopted), name="children of others")
        tasks.start(kept_running("monitor", parts.monitor.run), name="monitor")
        tasks.start(parts.monitor.measure_lag(), name="loop lag")
        tasks.start(kept_running("access log", parts.access_log.run), name="access log")
        tasks.start(kept_running("operator", parts.operator.run), name="operator")
        tasks.start(kept_running("kernel flows", parts.kernel_flows.run), name="kernel flows")
        tasks.start(kept_running("state", parts.state_keeper.run), name="state")
        self._reporting = tasks.start(kept_running("drain reports", self._report_drains), name="drain reports")
        tasks.start(self._settle_in(), name="settling in")
        if http_later:
            await tasks.first_of(parts.proxier.serving.wait(), parts.signals.stop.wait(), asyncio.sleep(FIRST_S))
            await self._open_http_servers()

    async def _serve(self) -> None:
        """Let the rules lead clients here as soon as there is something to serve."""
        await self._parts.rescue.ready()
        self._parts.reloader.use_access_log()  # before rules lead clients by the kernel path
        self._parts.tasks.start(kept_running("proxier", self._parts.proxier.run), name="proxier")

    async def _open_http_servers(self) -> None:
        """Start the HTTP servers: health, metrics, status."""
        parts = self._parts
        await parts.http_servers.open(
            parts.proxier,
            began=self._began,
            picture=self._picture,
            ports_in_use=parts.takeover.predecessor is not None,
            kernel_flows=parts.kernel_flows,
            closing=self._closing,
        )

    def _picture(self) -> Picture:
        """The state of the control plane."""
        parts = self._parts
        return dataclasses.replace(
            parts.sources.picture(parts.proxier.view.snapshot()),
            data_path=parts.data_paths.policy.wanted,
            rescue=parts.rescue.state(),
            kernel_flows=parts.kernel_flows.state(),
            stale=parts.state_keeper.stale,
            conntrack=parts.host_facts.conntrack_room,
            reasons=parts.health.at(time.monotonic()).reasons,
        )

    # Life

    async def _settle_in(self) -> None:
        """Do what can wait until clients are served.

        The rules of another adapter, from an earlier run, would still catch clients; and connection tracking
        has its settings only since there are rules that need it.
        """
        parts, ours = self._parts, self._parts.rule_transfer.name
        await parts.proxier.serving.wait()
        await parts.http_servers.opened.wait()  # a status request right after READY=1 gets an answer
        if not parts.signals.stop.is_set():
            parts.notifier.ready(self._status())
        gc.freeze()  # the cluster's objects stay, too
        sysctls.enforce(wanted_conntrack_limits(parts.reloader.configuration))
        parts.tasks.start(kept_running("leftovers", lambda: parts.host_facts.follow_leftovers(ours)), name="leftovers")
        for removed in await cleanup_all(keep=ours):
            log.info("removed leftovers of earlier run", what=removed)

    async def _follow_host_facts(self) -> None:
        """Follow this node's addresses."""
        parts = self._parts

        def on_landing() -> None:
            parts.proxier.use(dataclasses.replace(parts.proxier.settings, landing=parts.host_facts.landing))

        def on_facts(facts: NodeFacts) -> None:
            parts.proxier.use(dataclasses.replace(parts.proxier.settings, facts=facts))
            parts.http_servers.move()

        await parts.host_facts.follow(on_landing=on_landing, on_facts=on_facts)

    def _on_node(self) -> None:
        """The Node object has changed."""
        parts, node = self._parts, self._parts.tracker.node
        parts.health.node_eligible(node is not None and node.eligible, exists=node is not None)
        parts.proxier.use(dataclasses.replace(parts.proxier.settings, facts=parts.host_facts.facts()))

    async def _report_drains(self) -> None:
        """Answer the drain requests of rollouts once the rules lead here; until then a predecessor answers them."""
        await self._parts.rule_transfer.taken.wait()
        await self._parts.sources.report_drains()

    async def _follow_reloads(self) -> None:
        """Reload on SIGHUP."""
        notifier = self._parts.notifier
        await self._parts.reloader.follow(on_begin=notifier.reloading, on_end=lambda: notifier.ready(self._status()))

    async def _follow_reexecs(self) -> None:
        """Re-exec on SIGUSR2: run the code on disk under the same process number, unless that costs connections."""
        parts = self._parts
        while True:
            await parts.signals.renew.wait()
            parts.signals.renew.clear()
            words = reexec.command()
            reason = reexec.obstacle(
                holds_connections=isinstance(parts.data_plane, LocalDataPlane),
                settled=parts.rule_transfer.taken.is_set() and not parts.takeover.server.superseded.is_set(),
            )
            reason = reason or await parts.reloader.why_not() or await reexec.why_not(words)
            if reason is not None:
                log.error("re-exec refused", reason=reason)
                continue
            log.info("re-executing, clients are served meanwhile", command=" ".join(words))
            parts.notifier.reloading()
            await parts.state_keeper.write()
            parts.rescue.bridge()
            reexec.renew(words)

    def _status(self) -> str:
        """One line for `systemctl status`."""
        parts = self._parts
        return startup_progress.status(
            parts.proxier.view.summary(),
            connections=parts.data_plane.open_connections,
            serving=parts.proxier.serving.is_set(),
            stopping=parts.signals.stop.is_set() or parts.takeover.server.stop_requested.is_set(),
        )

    # End

    async def end(self) -> None:
        """Wait for a takeover or for the request to stop, and shut down. A takeover may come while it drains, too.

        TakeoverRefusedError: this instance would serve much less than its predecessor.
        """
        parts, server = self._parts, self._parts.takeover.server
        await parts.tasks.first_of(
            server.superseded.wait(), parts.signals.stop.wait(), server.stop_requested.wait(), self._refused.wait()
        )
        if self._refusal is not None:
            await parts.shutdown.leave(RulesAtExit.LEAVE, within_s=0.0)
            raise self._refusal
        own, clock = parts.reloader.configuration.kubeproxy, asyncio.get_running_loop().time
        grace_s = own.shutdown_grace.seconds
        ends_at = clock() + grace_s
        if not server.superseded.is_set():
            parts.health.draining()
            parts.notifier.stopping(self._status(), takes_s=grace_s)
            await parts.shutdown.wind_down(grace_s)
        if self._reporting is not None:
            await parts.tasks.end(self._reporting)
        await parts.state_keeper.write()
        if server.superseded.is_set():
            leaving = parts.tasks.start(kept_running("drain reports", parts.sources.report_leaving), name="leaving")
            await parts.shutdown.drain_after_takeover(max(0.0, ends_at - clock()))
            await parts.tasks.end(leaving)
            return
        ours = parts.rule_transfer.taken.is_set() or not parts.instance_marker.others()
        if ours:
            await parts.sources.end_drain_reports()
        requested = server.stop_requested.is_set()  # then clients wait for the other instance
        rules = rules_at_exit(ours=ours, cleanup_on_exit=own.cleanup_on_exit and not requested)
        await parts.shutdown.leave(rules, within_s=last_s(grace_s))
        if requested and not parts.signals.stop.is_set():
            parts.instance_marker.close()
            server.release()
            await parts.shutdown.remain_if_container_init()
