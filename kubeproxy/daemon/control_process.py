"""The control process, from its start to its exit status. Read `live` from top to bottom, then `lifecycle.Daemon`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog
import uvloop

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.container_init import DESERTED, PREVIOUS_END
from kubeproxy.daemon.current_configuration import CurrentConfiguration
from kubeproxy.daemon.host_state import node_name_of
from kubeproxy.daemon.lifecycle import Daemon
from kubeproxy.daemon.process_limits import end_if_hung, restrict_process, settle_memory
from kubeproxy.daemon.process_start import Process, look_at_own_ports, on_crash
from kubeproxy.daemon.signals import Signals
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.model.version import __version__
from kubeproxy.netfilter.port_holders import Holders
from kubeproxy.runtime import compiled
from kubeproxy.runtime.sd_notify import own_notifier
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

EXIT_FAILURE = 1


def run(configuration: Configuration, *, reload: Callable[[], Configuration], file: str = "") -> int:
    """Serve until a signal or a takeover ends the process. Return the exit status.

    `reload` reads the configuration again, from `file` and the flags. It raises ConfigError if the configuration is
    faulty.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(live(CurrentConfiguration(configuration, reload, file=file)))
        except ConfigError as error:
            return refuse(error)
        except KubeproxyError as error:
            log.error("cannot start", reason=str(error))
            return EXIT_FAILURE


def refuse(error: ConfigError) -> int:
    """Log why a configuration cannot be used, and return the exit status."""
    for fault in error.faults:
        log.error("cannot start", reason=fault)
    return ConfigError.EXIT_STATUS


async def live(configuration: CurrentConfiguration) -> int:
    """Run one process from start to stop, and return the exit status."""
    began = time.time()
    signals = Signals()
    signals.listen()
    notifier = own_notifier()
    notifier.starting("starting")
    log.info(
        "kubeproxy starts",
        version=__version__,
        byte_path=compiled.form(),
        pid=os.getpid(),
        node=node_name_of(configuration.value),
    )
    find_holders = Holders()
    look_at_own_ports(find_holders, configuration.value)
    restrict_process(configuration.value)
    async with AsyncExitStack() as closing:
        closing.callback(notifier.close)
        how = os.environ.get(PREVIOUS_END)
        process = Process(signals, notifier, find_holders, TaskSet(on_crash), closing, began, how == DESERTED)
        if how is not None:
            follow_container_init(how, process.tasks)
        daemon = await Daemon.create(configuration, process)
        await daemon.find_predecessor()
        if not signals.stop.is_set():
            await daemon.start()
            settle_memory()
            await daemon.end()
    log.info("kubeproxy has stopped")
    return 0


def follow_container_init(how: str, tasks: TaskSet) -> None:
    """Act as the child of a container's first process: log if the previous control process has crashed, and end this
    process if it hangs, so that the next one can take over its workers."""
    if how == DESERTED:
        log.warning("another instance took over and has ended, serving again")
    elif how:
        log.error("previous control process has crashed", how=how)
    os.environ[PREVIOUS_END] = ""  # After a re-exec the new program must not report this crash again.
    tasks.start(end_if_hung(), name="hang")
