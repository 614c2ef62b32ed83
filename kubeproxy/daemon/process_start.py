"""The process itself, as it exists before any part of the daemon is created."""

from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.signals import Signals
from kubeproxy.model import Protocol
from kubeproxy.netfilter.port_holders import Holders
from kubeproxy.runtime.sd_notify import Notifier
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Process:
    """This process, and the things that are closed when it ends."""

    signals: Signals
    notifier: Notifier
    find_holders: Holders
    """A function that returns the processes that use a port."""
    tasks: TaskSet
    closing: AsyncExitStack
    """Closes the parts in the reverse order of their creation."""
    began: float
    """When the process started, in Unix seconds."""
    stands_in: bool = False
    """Whether it stands in for an instance that has taken over from it and then crashed, until that one is back."""


def on_crash(task: str, error: BaseException) -> None:
    """Log a background task that has ended with an exception."""
    log.error("background task failed", task=task, exc_info=error)


def look_at_own_ports(find_holders: Holders, configuration: Configuration) -> None:
    """Find out which processes use the ports of this daemon's servers, while this process still has the capabilities to
    inspect other processes' sockets.

    Later, a message could only name the user. Most often it is kube-proxy that uses such a port.
    """
    for address in (configuration.healthz_bind_address, configuration.metrics_bind_address):
        if address.served:
            with contextlib.suppress(OSError):
                find_holders(Protocol.TCP, address.address, address.port)
