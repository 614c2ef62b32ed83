"""The process of the controller manager: its pages, plain and secure, its signals and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from kubeproxy.cli.controller_manager import controller_manager
from kubeproxy.controllers.manager import process
from kubeproxy.controllers.manager.manager import ControllerManager, ManagerSettings
from kubeproxy.controllers.manager.process import Serving, make_servers
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from kubeproxy.observability.http.tls import TlsFiles
from kubeproxy.runtime.sd_notify import Notifier
from tests.kubernetes.test_delegated_access import Reviewer

HEALTH = frozenset({"/healthz", "/readyz", "/livez"})


async def _no_client(purpose: str) -> Any:
    raise AssertionError("nothing connects")


@asynccontextmanager
async def _served(serving: Serving, reviewer: Reviewer | None = None) -> AsyncIterator[list[int]]:
    """The ports of the servers."""
    manager = ControllerManager(ManagerSettings(identity="it"), _no_client)
    servers = make_servers(manager, serving, cast(Client, reviewer or Reviewer()))
    for server in servers:
        await server.start()
    try:
        yield [server.port or 0 for server in servers]
    finally:
        for server in servers:
            await server.close()


async def _status(url: str, *, token: str = "", tls: ssl.SSLContext | bool = False, host: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Host": host} if host else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=tls) as response:
        await response.read()
        return response.status


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def test_the_secure_port_asks_the_api_server() -> None:
    async def scenario() -> None:
        serving = Serving(
            address="127.0.0.1",
            port=0,
            secure_address="127.0.0.1",
            secure_port=_free_port(),
            always_allowed=HEALTH,
        )
        reviewer = Reviewer()
        async with _served(serving, reviewer) as (port,):
            secure = f"https://127.0.0.1:{port}"
            assert await _status(f"{secure}/healthz") == 200
            assert await _status(f"{secure}/statusz") == 403
            assert await _status(f"{secure}/metrics", token="bad") == 401
            assert await _status(f"{secure}/metrics", token="good") == 200
            assert await _status(f"{secure}/statusz", token="good") == 403
            asked = len(reviewer.asked)
            assert await _status(f"{secure}/nowhere") == 404
            assert await _status(f"{secure}/nowhere/else", token="never seen") == 404
            assert len(reviewer.asked) == asked, "no question to the API server for a page that there is not"
            assert await _status(f"{secure}/healthz/../statusz") == 403

    asyncio.run(scenario())


def _openssl(directory: Path, *command: str) -> None:
    subprocess.run(["openssl", *command], cwd=directory, check=True, capture_output=True)


def _client(directory: Path, ca: str, subject: str) -> ssl.SSLContext:
    """A context of a client with a certificate that an authority has signed."""
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _openssl(directory, "req", "-x509", *new, "-days", "2", "-subj", f"/CN={ca}", "-keyout", f"{ca}.key", "-out", ca)
    _openssl(directory, "req", *new, "-subj", subject, "-keyout", "key", "-out", "request")
    signing = ("-CA", ca, "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2")
    _openssl(directory, "x509", "-req", "-in", "request", *signing, "-out", "cert")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(directory / "cert", directory / "key")
    return context


def test_the_secure_port_knows_client_certificates(tmp_path: Path) -> None:
    async def scenario() -> None:
        operator = _client(tmp_path, "ca", "/O=system:masters/CN=ann")
        files = TlsFiles(client_ca=str(tmp_path / "ca"))
        serving = Serving(address="", port=0, secure_address="127.0.0.1", secure_port=_free_port(), files=files)
        async with _served(serving) as (port,):
            page = f"https://127.0.0.1:{port}/statusz"
            assert await _status(page, tls=operator) == 200
            assert await _status(page) == 403
            stranger = _client(tmp_path, "other", "/O=system:masters/CN=eve")
            try:
                status = await _status(page, tls=stranger)
            except aiohttp.ClientError:
                status = 0  # the handshake fails
            assert status == 0

    asyncio.run(scenario())


def test_the_plain_port_shows_its_status_on_this_host_only() -> None:
    async def scenario() -> None:
        async with _served(Serving(address="127.0.0.1", port=_free_port())) as (port,):
            plain = f"http://127.0.0.1:{port}"
            assert await _status(f"{plain}/metrics") == 200
            assert await _status(f"{plain}/statusz") == 200
            assert await _status(f"{plain}/statusz", host="evil.example") == 421

    asyncio.run(scenario())


def test_flags_of_the_secure_port() -> None:
    given = controller_manager.make_context("controller-manager", []).params
    assert (given["address"], given["port"], given["bind_address"], given["secure_port"]) == (
        "127.0.0.1",
        10252,
        "0.0.0.0",
        0,
    )


class _Working(ControllerManager):
    """A manager that is connected to nothing: it works until `end` is set, and ends by that error, if it is one."""

    def __init__(self) -> None:
        super().__init__(ManagerSettings(identity="it"), _no_client)
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.was_cancelled = False

    async def run(self) -> None:
        try:
            await self.end
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


class _ServiceManager(Notifier):
    """What the process has sent to systemd."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.is_ready = asyncio.Event()

    def starting(self, status: str) -> None:
        self.received.append(f"starting: {status}")

    def ready(self, status: str) -> None:
        self.received.append(f"ready: {status}")
        self.is_ready.set()

    def stopping(self, status: str, *, takes_s: float) -> None:
        self.received.append(f"stopping: {status}")

    async def beat(self, status: Callable[[], str]) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.received.append("closed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_and_the_service_manager_follows(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, systemd = _Working(), _ServiceManager()
    monkeypatch.setattr(process, "ControllerManager", lambda settings, connect: manager)
    serving = Serving(address="127.0.0.1", port=0)
    life = asyncio.create_task(process._live(ManagerSettings(identity="it"), ClientSettings(), serving, systemd))
    async with asyncio.timeout(20):
        await systemd.is_ready.wait()
        os.kill(os.getpid(), number)
        assert await life == 0
    assert manager.was_cancelled
    assert [each.partition(":")[0] for each in systemd.received] == ["starting", "ready", "stopping", "closed"]


async def test_the_end_of_the_work_is_1_and_its_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work ends by itself when the lease is lost."""
    serving = Serving(address="127.0.0.1", port=0)

    async def life(error: Exception | None) -> int:
        manager, systemd = _Working(), _ServiceManager()
        monkeypatch.setattr(process, "ControllerManager", lambda settings, connect: manager)
        if error is None:
            manager.end.set_result(None)
        else:
            manager.end.set_exception(ExceptionGroup("parts", [error]))
        async with asyncio.timeout(20):
            return await process._live(ManagerSettings(identity="it"), ClientSettings(), serving, systemd)

    assert await life(None) == 1
    with pytest.raises(ZeroDivisionError):
        await life(ZeroDivisionError())
