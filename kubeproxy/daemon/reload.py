"""Reads the configuration again on SIGHUP, and applies what can change while the daemon runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from kubeproxy.config.diff import compare, effective
from kubeproxy.daemon.operator_view import OperatorView
from kubeproxy.daemon.settings import tune
from kubeproxy.daemon.shown_parts import ShownParts
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.observability.logs import setup
from kubeproxy.observability.picture import ConfigurationState

log = structlog.get_logger(__name__)


class Reloader:
    """Replaces the configuration in force."""

    def __init__(self, parts: ShownParts, operator_view: OperatorView, use_drain_hook: Callable[[], None]) -> None:
        """`use_drain_hook` is called when a new configuration has come into force."""
        self._parts = parts
        self._use_drain_hook = use_drain_hook
        self._operator_view = operator_view
        self._configuration = parts.configuration

    async def follow(self, *, on_begin: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Reload on each SIGHUP, until cancelled. `on_begin` and `on_end` are called around each reload, if the process
        is serving."""
        signals, control_plane = self._parts.process.signals, self._parts.control_plane
        while True:
            await signals.reload.wait()
            signals.reload.clear()
            if served := control_plane.proxier.serving.is_set() and not signals.stop.is_set():
                on_begin()
            try:
                await self._reload()
                await control_plane.sources.reload()
            except (KubeproxyError, MemoryError):
                signals.reload.set()  # Reload again when this task is restarted.
                raise
            finally:
                if served and not signals.stop.is_set():
                    on_end()

    async def _reload(self) -> None:
        """Read the configuration and apply it. If it is faulty, the whole configuration is refused."""
        current, parts = self._configuration, self._parts
        try:
            new = await current.read()
        except ConfigError as error:
            for fault in error.faults:
                log.error("configuration rejected, old one stays", fault=fault)
            refused_at = current.state.refused_at or time.time()
            self._record(replace(current.state, faults=tuple(error.faults), refused_at=refused_at))
            return
        difference = compare(current.value, new)
        current.value = new = effective(current.value, new)
        setup.configure(verbosity=new.logging.verbosity, fmt=new.logging.format)
        parts.control_plane.use(new)
        await parts.kernel.data_paths.use(new)
        await parts.data_plane.send([tune(new)])
        self._operator_view.use(new)
        self._use_drain_hook()
        log.info("configuration reloaded", changed=list(difference.live))
        if difference.restart:
            log.warning("configuration change needs restart", fields=list(difference.restart))
        self._record(ConfigurationState(current.state.file, time.time(), needs_restart=tuple(difference.restart)))

    def _record(self, state: ConfigurationState) -> None:
        self._configuration.state = state
        self._parts.reporting.configured(state)
