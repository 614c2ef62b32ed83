"""Reads the configuration again on SIGHUP, and applies what can change while the daemon runs."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from kubeproxy.config.diff import compare, effective
from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.settings import periods, port_range, restrictions, tune
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.sources import Sources
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.logs import setup
from kubeproxy.observability.logs.access_log import AccessLog
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
        sources: Sources,
    ) -> None:
        """`read` reads the configuration again; ConfigError when it is faulty."""
        self.configuration = configuration
        self._read = read
        self._signals = signals
        self._proxier = proxier
        self._data_plane = data_plane
        self._health = health
        self._access_log = access_log
        self._sources = sources

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

    async def _reload(self) -> None:
        """Read the configuration, and apply it. A faulty one is refused as a whole."""
        try:
            new = await in_thread(self._read)
        except ConfigError as error:
            for fault in error.faults:
                log.error("configuration rejected, old one stays", fault=fault)
            return
        difference = compare(self.configuration, new)
        self.configuration = new = effective(self.configuration, new)
        setup.configure(verbosity=new.logging.verbosity, fmt=new.logging.format)
        self._proxier.set_periods(periods(new))
        self._proxier.set_port_range(port_range(new))
        self._proxier.set_restrictions(restrictions(new))
        self._health.timeout_s = 2 * new.sync_period_s
        await self._data_plane.send([tune(new)])
        self.use_access_log()
        log.info("configuration reloaded", changed=list(difference.live))
        if difference.restart:
            log.warning("configuration change needs restart", fields=list(difference.restart))

    def use_access_log(self) -> None:
        """Write the connection log where the configuration wants it."""
        configuration = self.configuration
        self._access_log.use(configuration.kubeproxy.access_log, as_json=configuration.logging.format == "json")
