"""Turns signals into events that tasks can wait for."""

from __future__ import annotations

import asyncio
import signal

import structlog

from kubeproxy.daemon.takeover import reexec

log = structlog.get_logger(__name__)


class Signals:
    """The signals of this process. SIGTERM and SIGINT stop it, and at once if sent twice. SIGHUP reloads the
    configuration, and SIGUSR2 re-executes the program."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()
        """Set when the process must stop without waiting for open connections."""
        self.reload = asyncio.Event()
        self.renew = asyncio.Event()

    def listen(self) -> None:
        """Handle signals on the running event loop. Signals that were sent during a re-exec are delivered now."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)
        loop.add_signal_handler(signal.SIGUSR2, self.renew.set)
        reexec.listen_again()

    def _on_stop(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            log.info("signal received: stopping at once", signal=number.name)
            self.at_once.set()
        else:
            log.info("signal received: stopping", signal=number.name)
            self.stop.set()
