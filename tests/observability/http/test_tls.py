"""The TLS context of a server, and a server that uses it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from kubeproxy.model.errors import ConfigError
from kubeproxy.observability.http.server import HttpServer, Listening, Protection
from kubeproxy.observability.http.tls import CHECK_S, ServingTls, TlsFiles
from tests.support.clock import Clock


def certificate(directory: Path, name: str) -> TlsFiles:
    """A self-signed certificate for 127.0.0.1."""
    cert, key = directory / "tls.crt", directory / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return TlsFiles(certificate=str(cert), key=str(key))


async def _hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


async def _refused(request: web.Request) -> web.Response | None:
    return web.Response(status=403, text="no") if request.query.get("as") == "stranger" else None


def _server(tls: ServingTls) -> HttpServer:
    listening = Listening(name="test", host="127.0.0.1", port=0, setting="none", alone=True)
    return HttpServer(listening, [web.get("/", _hello)], Protection(gate=_refused, tls=tls.context))


async def _subject(port: int) -> str:
    """The common name of the certificate that a server shows."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    text = await asyncio.to_thread(
        subprocess.run, ["openssl", "x509", "-inform", "der", "-noout", "-subject"], input=found, capture_output=True
    )
    return text.stdout.decode().strip().rpartition("=")[2].strip()


async def _get(port: int, query: str = "") -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{port}/{query}", ssl=False) as response,
    ):
        return response.status, await response.text()


async def test_a_certificate_made_in_memory() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    server = _server(ServingTls(TlsFiles()))
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # the key's file is closed
    await server.start()
    try:
        assert server.port is not None
        assert await _get(server.port) == (200, "hello")
        assert await _get(server.port, "?as=stranger") == (403, "no")
        assert await _subject(server.port) == socket.gethostname()[:64]
    finally:
        await server.close()


async def test_clients_that_speak_no_tls_disturb_no_other() -> None:
    server = _server(ServingTls(TlsFiles()))
    await server.start()
    try:
        port = server.port
        assert port is not None
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in silent[:10]:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await _get(port) == (200, "hello")
        for _, writer in silent:
            writer.close()
    finally:
        await server.close()


async def test_replaced_files_are_used(tmp_path: Path) -> None:
    clock = Clock()
    tls = ServingTls(certificate(tmp_path, "first"), clock=clock)
    server = _server(tls)
    await server.start()
    try:
        assert server.port is not None
        assert await _subject(server.port) == "first"
        certificate(tmp_path, "second")
        clock.now += CHECK_S
        assert await _subject(server.port) == "second"
        (tmp_path / "tls.crt").write_text("broken")
        clock.now += CHECK_S
        assert await _subject(server.port) == "second"
    finally:
        await server.close()


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    files = certificate(tmp_path, "it")
    with pytest.raises(ConfigError, match="allowed: both or none"):
        TlsFiles(certificate=files.certificate)
    with pytest.raises(ConfigError, match="--tls-cert-file /nowhere"):
        ServingTls(TlsFiles(certificate="/nowhere", key=files.key))
    with pytest.raises(ConfigError, match="--tls-cert-file"):
        ServingTls(TlsFiles(certificate=files.key, key=files.key))
    with pytest.raises(ConfigError, match="--client-ca-file /nowhere"):
        ServingTls(TlsFiles(client_ca="/nowhere"))
