"""Reads the configuration again on SIGHUP, and applies what can change while the daemon runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from kubeproxy.config.diff import compare, effective
from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.data_paths import DataPaths
from kubeproxy.daemon.drain_reporter import DrainReporter
from kubeproxy.daemon.kernel_flows import KernelFlows
from kubeproxy.daemon.settings import proxier_settings, tune
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.sources import Sources
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.observability.health import ProxyHealth, Reason
from kubeproxy.observability.logs import setup
from kubeproxy.observability.logs.access_log import AccessLog
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.picture import ConfigurationState
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.runtime.threads import in_thread

log = structlog.get_logger(__name__)


class Reloader:
    """The configuration in force, and its changes."""

    def __init__(
        self,
        configuration: Configuration,
        read: Callable[[], Configuration],
        *,
        signals: Signals,
        proxier: Proxier,
        data_plane: DataPlane,
        health: ProxyHealth,
        access_log: AccessLog,
        kernel_flows: KernelFlows,
        sources: Sources,
        metrics: Metrics,
        file: str,
        data_paths: DataPaths,
        drain_reporter: DrainReporter,
    ) -> None:
        """`read` reads the configuration again, from `file` and flags; ConfigError when it is faulty."""
        self.configuration = configuration
        self.state = ConfigurationState(file, time.time())
        metrics.configuration(self.state)
        self._metrics = metrics
        self._read = read
        self._signals = signals
        self._proxier = proxier
        self._data_plane = data_plane
        self._health = health
        self._access_log = access_log
        self._kernel_flows = kernel_flows
        self._sources = sources
        self._data_paths = data_paths
        self._drain_reporter = drain_reporter

    async def follow(self, *, on_begin: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Reload on every SIGHUP, until cancelled; the callbacks are called around each reload while it serves."""
        while True:
            await self._signals.reload.wait()
            self._signals.reload.clear()
            if served := self._proxier.serving.is_set() and not self._signals.stop.is_set():
                on_begin()
            try:
                await self._reload()
                await self._sources.reload()
            except (KubeproxyError, MemoryError):
                self._signals.reload.set()  # try again
                raise
            finally:
                if served and not self._signals.stop.is_set():
                    on_end()

    async def why_not(self) -> str | None:
        """Why the present configuration cannot be used; None: it can."""
        try:
            await in_thread(self._read)
        except ConfigError as error:
            return "; ".join(error.faults)
        return None

    async def _reload(self) -> None:
        """Read the configuration, and apply it. A faulty one is refused as a whole."""
        try:
            new = await in_thread(self._read)
        except ConfigError as error:
            for fault in error.faults:
                log.error("configuration rejected, old one stays", fault=fault)
            refused_at = self.state.refused_at or time.time()
            self._record(replace(self.state, faults=tuple(error.faults), refused_at=refused_at))
            return
        difference = compare(self.configuration, new)
        self.configuration = new = effective(self.configuration, new)
        setup.configure(verbosity=new.logging.verbosity, fmt=new.logging.format)
        self._proxier.use(proxier_settings(new, self._proxier.settings))
        await self._data_paths.use(new)
        self._health.timeout_s = 2 * new.sync_period_s
        await self._data_plane.send([tune(new)])
        self.use_access_log()
        self.use_drain_reports()
        log.info("configuration reloaded", changed=list(difference.live))
        if difference.restart:
            log.warning("configuration change needs restart", fields=list(difference.restart))
        self._record(ConfigurationState(self.state.file, time.time(), needs_restart=tuple(difference.restart)))

    def _record(self, state: ConfigurationState) -> None:
        self.state = state
        refused = "the file is refused, and the previous configuration is in effect" if state.faults else None
        self._health.degraded(Reason.CONFIGURATION, refused)
        self._metrics.configuration(state)

    def use_access_log(self) -> None:
        """Write the connection log where the configuration wants it."""
        configuration = self.configuration
        self._kernel_flows.use_ends(bool(configuration.kubeproxy.access_log))
        self._access_log.use(configuration.kubeproxy.access_log, as_json=configuration.logging.format == "json")

    def use_drain_reports(self) -> None:
        """Take part in rollouts if the configuration wants it."""
        self._drain_reporter.use(self.configuration.kubeproxy.drain_reports)
