"""sd_notify over real sockets, by the notifier alone and by a daemon."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kubeproxy.runtime.sd_notify import BEAT_S, Notifier
from tests.support.lab import Daemon, Host, service_manifest, write_manifest


class Manager:
    """The service manager's end of the line."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.received: list[dict[str, str]] = []

    def receive(self, within_s: float = 20.0) -> dict[str, str]:
        """The next message."""
        self._socket.settimeout(within_s)
        message = dict(line.split("=", 1) for line in self._socket.recv(65536).decode().split("\n"))
        self.received.append(message)
        return message

    def hear_until(self, condition: Callable[[dict[str, str]], bool], within_s: float = 20.0) -> dict[str, str]:
        """The next message that fulfils it."""
        deadline = time.monotonic() + within_s
        while True:
            left = deadline - time.monotonic()
            assert left > 0, f"not within {within_s} s; received: {self.received}"
            if condition(message := self.receive(left)):
                return message

    def hears_nothing(self) -> bool:
        """Whether no message is waiting."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(65536)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@kubeproxy-test-{secrets.token_hex(8)}"
    manager = Manager(address)
    yield manager
    manager.close()


@pytest.fixture
def notifier(manager: Manager) -> Iterator[Notifier]:
    notifier = Notifier(manager.address)
    yield notifier
    notifier.close()


def test_the_messages_from_start_to_stop(manager: Manager, notifier: Notifier) -> None:
    notifier.starting("starts")
    assert manager.receive() == {"STATUS": "starts", "EXTEND_TIMEOUT_USEC": "30000000"}
    notifier.ready("2 services")
    assert manager.receive() == {"READY": "1", "STATUS": "2 services"}
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    message = manager.receive()
    assert message.pop("RELOADING") == "1"
    assert before <= int(message.pop("MONOTONIC_USEC")) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert not message
    notifier.ready("2 services")
    manager.receive()
    notifier.stopping("draining", takes_s=90)
    assert manager.receive() == {"STOPPING": "1", "STATUS": "draining", "EXTEND_TIMEOUT_USEC": "120000000"}


def test_a_status_is_one_line(manager: Manager, notifier: Notifier) -> None:
    notifier.ready("failing: nft said\nREADY=0\r\n  twice – ü")
    assert manager.receive() == {"READY": "1", "STATUS": "failing: nft said READY=0 twice – ü"}


async def test_the_loop_feeds_the_watchdog_three_times_per_period(manager: Manager) -> None:
    notifier = Notifier.from_environment(
        {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "60000", "WATCHDOG_PID": str(os.getpid())}, pid=os.getpid()
    )
    assert notifier.beat_s == pytest.approx(0.02)
    beating = asyncio.create_task(notifier.beat(lambda: "well"))
    assert await asyncio.to_thread(manager.receive) == {"WATCHDOG": "1", "STATUS": "well"}
    assert await asyncio.to_thread(manager.receive) == {"WATCHDOG": "1", "STATUS": "well"}
    while not manager.hears_nothing():
        pass
    # A loop that hangs does not feed the watchdog.
    time.sleep(0.1)
    assert manager.hears_nothing()
    beating.cancel()
    notifier.close()


async def test_timeouts_are_extended_during_start_and_stop(manager: Manager) -> None:
    notifier = Notifier(manager.address, watchdog_s=0.03)
    notifier.starting("starts")
    manager.receive()
    beating = asyncio.create_task(notifier.beat(lambda: "waits"))
    assert (await asyncio.to_thread(manager.receive))["EXTEND_TIMEOUT_USEC"] == "30000000"
    notifier.ready("serving")
    await asyncio.to_thread(manager.hear_until, lambda message: "READY" in message)
    assert "EXTEND_TIMEOUT_USEC" not in await asyncio.to_thread(manager.receive)
    notifier.stopping("draining", takes_s=1)
    await asyncio.to_thread(manager.hear_until, lambda message: "STOPPING" in message)
    assert (await asyncio.to_thread(manager.receive))["EXTEND_TIMEOUT_USEC"] == "30000000"
    beating.cancel()
    notifier.close()


def test_messages_that_do_not_fit_are_sent_later_in_order(manager: Manager, notifier: Notifier) -> None:
    # The receiver's queue is short (net.unix.max_dgram_qlen): a further datagram fails with EAGAIN.
    limit = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    if limit > 1000:
        pytest.skip(f"a receiver's queue takes {limit} messages here")
    for number in range(limit + 1):
        notifier.ready(f"fill {number}")
    notifier.reloading()
    notifier.ready("last")
    for number in range(limit + 1):
        assert manager.receive()["STATUS"] == f"fill {number}"
    assert manager.hears_nothing()
    notifier.stopping("end", takes_s=0)
    assert "RELOADING" in manager.receive()
    assert manager.receive() == {"READY": "1", "STATUS": "last"}
    assert manager.receive()["STOPPING"] == "1"


def test_a_missing_service_manager_is_logged_once(tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "missing"))
    with capture_logs() as logs:
        notifier.starting("starts")
        notifier.ready("serving")
    assert [line["reason"] for line in logs] == ["No such file or directory"]
    notifier.close()
    notifier.ready("after the end")


async def test_without_a_service_manager_nothing_is_sent() -> None:
    notifier = Notifier.from_environment({"WATCHDOG_USEC": "1000"}, pid=1)
    notifier.starting("starts")
    notifier.ready("serving")
    await notifier.beat(lambda: pytest.fail("there is no service manager"))
    assert notifier.beat_s == BEAT_S


@pytest.mark.parametrize(
    ("environment", "beat_s"),
    [
        ({}, BEAT_S),
        ({"WATCHDOG_USEC": "30000000"}, 10.0),
        ({"WATCHDOG_USEC": "3000000"}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, BEAT_S),
        ({"WATCHDOG_USEC": "0"}, BEAT_S),
        ({"WATCHDOG_USEC": "soon"}, BEAT_S),
        ({"WATCHDOG_USEC": "600000000"}, BEAT_S),
    ],
)
def test_the_watchdog_of_the_environment(environment: dict[str, str], beat_s: float) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": "/nowhere", **environment}, pid=7)
    assert notifier.beat_s == beat_s
    notifier.close()


def test_an_unknown_kind_of_address_is_ignored() -> None:
    with capture_logs() as logs:
        notifier = Notifier.from_environment({"NOTIFY_SOCKET": "vsock:2:1234"}, pid=7)
        notifier.ready("serving")
    assert [line["found"] for line in logs] == ["vsock:2:1234"]


@pytest.mark.netns
@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_the_daemon_notifies_from_start_to_stop(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    write_manifest(
        manifests / "web.yaml",
        service_manifest("web", cluster_ip="10.96.0.10", ports={"http": (80, 8080)}, endpoints=["192.0.2.1"]),
    )
    with Host("node") as node, Daemon(node, manifests=manifests, options=["--shutdown-grace=0s"]) as daemon:
        assert manager.receive()["STATUS"] == "starting"
        ready = manager.hear_until(lambda message: "READY" in message)
        assert ready["STATUS"].startswith("services: 1, listeners: "), ready
        assert manager.hear_until(lambda message: "WATCHDOG" in message)
        daemon.process.send_signal(signal.SIGHUP)
        manager.hear_until(lambda message: "RELOADING" in message)
        manager.hear_until(lambda message: "READY" in message)
        # Received while it is sent: the queue is too short for all messages.
        daemon.process.send_signal(signal.SIGTERM)
        stopping = manager.hear_until(lambda message: "STOPPING" in message)
        assert daemon.process.wait(20) == 0
        assert stopping["STATUS"].startswith("draining")
