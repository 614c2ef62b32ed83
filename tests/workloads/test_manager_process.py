"""The pages of the controller manager: the plain port, and the secure one behind the API server's decisions."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp

from kubeproxy.cli.controller_manager import controller_manager
from kubeproxy.kubernetes.object_client import Requests
from kubeproxy.observability.http.tls import TlsFiles
from kubeproxy.workloads.manager import ControllerManager, ManagerSettings
from kubeproxy.workloads.manager_process import Serving, make_servers
from tests.kubernetes.test_delegated_access import Reviewer

HEALTH = frozenset({"/healthz", "/readyz", "/livez"})


async def _no_client(purpose: str) -> Any:
    raise AssertionError("nothing connects")


@asynccontextmanager
async def _served(serving: Serving) -> AsyncIterator[list[int]]:
    """The ports of the servers."""
    manager = ControllerManager(ManagerSettings(identity="it"), _no_client)
    servers = make_servers(manager, serving, cast(Requests, Reviewer()))
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
        async with _served(serving) as (port,):
            secure = f"https://127.0.0.1:{port}"
            assert await _status(f"{secure}/healthz") == 200
            assert await _status(f"{secure}/statusz") == 403
            assert await _status(f"{secure}/metrics", token="bad") == 401
            assert await _status(f"{secure}/metrics", token="good") == 200
            assert await _status(f"{secure}/statusz", token="good") == 403
            assert await _status(f"{secure}/nowhere") == 403
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
