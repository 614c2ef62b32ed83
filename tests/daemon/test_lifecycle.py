"""What a start does not wait for, and what a daemon can answer before it is started."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from kubeproxy.daemon.current_configuration import CurrentConfiguration
from kubeproxy.daemon.lifecycle import Daemon
from kubeproxy.daemon.process_start import Process
from kubeproxy.daemon.rescue_control import Rescue
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.state_keeper import StateKeeper
from kubeproxy.daemon.takeover.control_socket import PREFIX
from kubeproxy.daemon.takeover.instances import InstanceMarker
from kubeproxy.netfilter.port_holders import Holders
from kubeproxy.runtime.abstract_sockets import listening
from kubeproxy.runtime.sd_notify import Notifier
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
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
"""


def test_slow_modules_are_not_imported_before_clients_are_served() -> None:
    look = (
        "import sys; from kubeproxy.cli.run import _import_structlog; _import_structlog(); "
        "import kubeproxy.daemon.control_process; "
        f"print([name for name in {LATER} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@asynccontextmanager
async def not_started(configuration: CurrentConfiguration) -> AsyncIterator[Daemon]:
    crashes: list[BaseException] = []
    async with AsyncExitStack() as closing:
        tasks = TaskSet(lambda _, error: crashes.append(error))
        process = Process(Signals(), Notifier(None), Holders(), tasks, closing, time.time())
        yield await Daemon.create(configuration, process)
    assert not crashes


@pytest.fixture
async def made() -> AsyncIterator[tuple[Daemon, CurrentConfiguration, frozenset[str]]]:
    """A daemon without workers and packet filter, not started, and the control sockets since it was made."""
    wanted = of_flags(workers="0", netfilter="none").configuration
    configuration = CurrentConfiguration(wanted, lambda: wanted)
    before = listening(PREFIX)
    async with not_started(configuration) as daemon:
        yield daemon, configuration, listening(PREFIX) - before


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


async def test_a_start_from_the_last_state_asks_its_sources_before_the_rescue_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    async def recall(keeper: StateKeeper, *, at_once: bool = False) -> bool:
        order.append("recalled")
        return True

    async def ready(rescue: Rescue) -> None:
        order.append("rescue")
        await asyncio.Event().wait()

    monkeypatch.setattr(StateKeeper, "recall", recall)
    monkeypatch.setattr(Rescue, "ready", ready)
    monkeypatch.setattr(InstanceMarker, "others", lambda marker: False)  # Another test may run a daemon.
    (tmp_path / "web.yaml").write_text(SERVICE)
    none = {"healthz_bind_address": "127.0.0.1:0", "metrics_bind_address": "127.0.0.1:0", "kubernetes": "never"}
    wanted = of_flags(workers="0", netfilter="none", manifests=str(tmp_path), **none).configuration
    async with not_started(CurrentConfiguration(wanted, lambda: wanted)) as daemon:
        tracker = daemon._control_plane.tracker
        daemon._process.tasks.start(daemon.start(), name="start")
        async with asyncio.timeout(30):
            while not all(tracker.sources().values()):
                await asyncio.sleep(0.01)
        assert order == ["recalled", "rescue"]
        assert tracker.services == 1
