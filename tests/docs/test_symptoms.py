"""Each text of docs/symptoms.md appears when that is wrong which the page says."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from docs.generators.symptoms import SYMPTOMS, render
from kubeproxy.config.load import read_partly
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.client.transport import explained
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.netfilter.subprocess import run
from tests.docs.pages import ROOT
from tests.kubernetes.harness import connected
from tests.support.apiserver import ApiServer, Fault

SERVICES = "/api/v1/services"


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs/symptoms.md").read_text(encoding="utf-8") == render(), "run: make docs"


async def answered(status: int) -> str:
    """What the client says of an answer with this status."""
    async with ApiServer() as server, connected(server.url) as client:
        server.inject(Fault(status=status, times=-1))
        with pytest.raises(ApiError) as caught:
            await client.get_json(SERVICES)
    return str(caught.value)


async def unreachable(url: str) -> str:
    async with connected(url) as client:
        with pytest.raises(ApiError) as caught:
            await client.get_json(SERVICES)
    return str(caught.value)


async def refused() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return await unreachable(f"http://127.0.0.1:{sock.getsockname()[1]}")


async def late() -> str:
    with pytest.raises(ApiError) as caught, explained("https://api"):
        raise TimeoutError
    return str(caught.value)


async def another_authority(directory: Path) -> str:
    """A handshake with a server whose certificate nobody has signed but itself."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subject = ["-subj", "/CN=api", "-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await unreachable(f"https://127.0.0.1:{port}")


async def without_program() -> str:
    with pytest.raises(KubeproxyError) as caught:
        await run("a-program-that-nobody-has", timeout_s=1)
    return str(caught.value)


async def with_tab(directory: Path) -> str:
    file = directory / "config.yaml"
    file.write_text("kind: KubeProxyConfiguration\n\tmode: x\n")
    return "; ".join(read_partly(file)[1])


def of_the_system(number: int) -> Callable[[Path], Awaitable[str]]:
    async def text(directory: Path) -> str:
        return os.strerror(number)

    return text


async def of_the_kernel(directory: Path) -> str:
    """It cannot be made to say so here: its table is the whole machine's. (net/netfilter/nf_conntrack_core.c)"""
    return "nf_conntrack: table full, dropping packet"


PROVOKED: dict[str, Callable[[Path], Awaitable[str]]] = {
    "certificate verify failed": another_authority,
    "answered 401: Unauthorized": lambda directory: answered(401),
    "answered 403: Forbidden": lambda directory: answered(403),
    "connection refused": lambda directory: refused(),
    "the name does not resolve": lambda directory: unreachable("http://no-such-host.invalid"),
    "no answer in time": lambda directory: late(),
    "nf_conntrack: table full": of_the_kernel,
    "No route to host": of_the_system(errno.EHOSTUNREACH),
    "Connection refused": of_the_system(errno.ECONNREFUSED),
    "Connection reset by peer": of_the_system(errno.ECONNRESET),
    "Address already in use": of_the_system(errno.EADDRINUSE),
    "is it installed and in PATH?": lambda directory: without_program(),
    "Too many open files": of_the_system(errno.EMFILE),
    "Operation not permitted": of_the_system(errno.EPERM),
    "that cannot start any token": with_tab,
}


@pytest.mark.parametrize("text", [it.text for it in SYMPTOMS])
async def test_the_text_is_printed(text: str, tmp_path: Path) -> None:
    assert text in await PROVOKED[text](tmp_path)
