"""What a start does not wait for, and what a daemon can answer before it is started."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from kubeproxy.daemon.current_configuration import CurrentConfiguration
from kubeproxy.daemon.lifecycle import Daemon
from kubeproxy.daemon.process import Process
from kubeproxy.daemon.sd_notify import Notifier
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.takeover.control_socket import PREFIX
from kubeproxy.netfilter.port_holders import Holders
from kubeproxy.runtime.abstract_sockets import listening
from kubeproxy.runtime.tasks import TaskSet
from tests.config.files import of_flags

LATER = (
    "aiohttp",
    "kubernetes_asyncio",
    "rich",
    "pygments",
    "kubeproxy.observability.status.document",
    "iptc",
    "kubeproxy.kubernetes.client.client",
    "kubeproxy.observability.http.server",
)
"""Modules that take long to import, and that the first answer does not need."""


def test_slow_modules_are_not_imported_before_clients_are_served() -> None:
    look = (
        "import sys; from kubeproxy.cli.run import _import_structlog; _import_structlog(); "
        "import kubeproxy.daemon.lifecycle; "
        f"print([name for name in {LATER} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.fixture
async def made() -> AsyncIterator[tuple[Daemon, CurrentConfiguration, frozenset[str]]]:
    """A daemon without workers and packet filter, not started, and the control sockets since it was made."""
    wanted = of_flags(workers="0", netfilter="none").configuration
    configuration = CurrentConfiguration(wanted, lambda: wanted)
    before = listening(PREFIX)
    crashes: list[BaseException] = []
    async with AsyncExitStack() as closing:
        tasks = TaskSet(lambda _, error: crashes.append(error))
        process = Process(Signals(), Notifier(None), Holders(), tasks, closing, time.time())
        daemon = await Daemon.create(configuration, process)
        yield daemon, configuration, listening(PREFIX) - before
    assert not crashes


async def test_no_control_socket_is_bound_before_every_part_exists(
    made: tuple[Daemon, CurrentConfiguration, frozenset[str]],
) -> None:
    _, _, names = made
    assert names == frozenset()


async def test_an_owner_can_answer_as_soon_as_its_socket_is_bound(
    made: tuple[Daemon, CurrentConfiguration, frozenset[str]],
) -> None:
    """Every call finds the part that answers it, though no part has been started."""
    daemon, configuration, _ = made
    daemon._operator_view.http_servers.opened.set()
    async with asyncio.timeout(30):
        daemon.share(True)
        await daemon.hold(True)
        assert not await daemon.leads_here()
        assert list(await daemon.bindings()) == []
        await daemon.yield_all()
        await daemon.hold(False)
    assert daemon.offer().services == 0
    assert daemon.grace_s() == configuration.value.kubeproxy.shutdown_grace.seconds
