"""Manifests from a real web server, with all kinds of answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from kubeproxy.kubernetes.manifests import http
from kubeproxy.kubernetes.manifests.files import ReadError
from kubeproxy.kubernetes.manifests.http import Session, Version, fetch


class Server:
    """A web server with `answer` as its only page."""

    def __init__(self) -> None:
        self.answer = web.Response(text="kind: List\n")
        self.asked: list[web.BaseRequest] = []
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request)
        answer, self.answer = self.answer, web.Response(text="kind: List\n")
        return answer


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = Server()
    runner = web.ServerRunner(web.Server(served.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/services.yaml"
    yield served
    await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[Session]:
    async with Session() as opened:
        yield opened


async def refusal(client: Session, url: str, last: Version | None = None) -> str:
    with pytest.raises(ReadError) as caught:
        await fetch(client, url, last or Version())
    return str(caught.value)


async def test_an_unchanged_manifest_is_not_sent_again(server: Server, client: Session) -> None:
    server.answer = web.Response(
        text="kind: A\n", headers={"ETag": '"7"', "Last-Modified": "Sat, 01 Jan 2028 00:00:00 GMT"}
    )
    first = await fetch(client, server.url, Version())
    assert first is not None
    assert first.data == b"kind: A\n"
    server.answer = web.Response(status=304)
    assert await fetch(client, server.url, first.version) is None
    assert "If-None-Match" not in server.asked[0].headers
    assert server.asked[1].headers["If-None-Match"] == '"7"'
    assert server.asked[1].headers["If-Modified-Since"] == "Sat, 01 Jan 2028 00:00:00 GMT"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: web.Response(status=404), "the server answered 404 Not Found"),
        (lambda: web.Response(status=503, text="kind: List\n"), "the server answered 503"),
        (lambda: web.Response(status=204), "the server answered 204"),
        (lambda: web.Response(status=304), "the server answered 304"),
        (lambda: web.Response(text="<html>log in</html>", content_type="text/html"), "the server answered HTML"),
        (lambda: web.Response(text="\n <!DOCTYPE html>", content_type="application/yaml"), "the server answered HTML"),
        (lambda: web.Response(text=" \n"), "the server answered nothing"),
    ],
)
async def test_other_answers_are_refused(
    server: Server, client: Session, answer: type[web.Response], reason: str
) -> None:
    server.answer = answer()
    assert (await refusal(client, server.url)).startswith(reason)


async def test_a_too_large_answer_is_refused(server: Server, client: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BYTES", 1000)
    server.answer = web.Response(text="x" * 1001)
    assert "1001 bytes; allowed: up to 1000" in await refusal(client, server.url)
    server.answer = web.Response(text="x" * 100_000)
    server.answer.enable_compression(web.ContentCoding.gzip)
    assert "more than 1000 bytes" in await refusal(client, server.url)


async def test_a_silent_server_is_a_read_error(client: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SILENT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert "in time" in await refusal(client, url)


async def test_an_incomplete_answer_is_a_read_error(client: Session) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nkind: List\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as half:
        url = f"http://127.0.0.1:{half.sockets[0].getsockname()[1]}/"
        assert await refusal(client, url)


async def test_an_unreachable_server_is_a_read_error(client: Session) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert str(port) in await refusal(client, f"http://127.0.0.1:{port}/")
    assert await refusal(client, "http://")
    assert await refusal(client, "http://127.0.0.1:99999/")


# Finding 14 of the security review


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_finding_14_a_redirect_to_another_server_is_not_followed(
    server: Server, client: Session, code: int
) -> None:
    inner = Server()
    runner = web.ServerRunner(web.Server(inner.handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.2", 0).start()
    there = f"http://127.0.0.2:{runner.addresses[0][1]}/latest/meta-data/?token=secret"
    server.answer = web.Response(status=code, headers={"Location": there})
    error = await refusal(client, server.url)
    await runner.cleanup()
    assert inner.asked == []
    assert "127.0.0.2" in error
    assert "allowed: the same scheme, host and port" in error
    assert "secret" not in error


@pytest.mark.parametrize(
    "location", ["https://{host}/x", "//127.0.0.1:1/x", "file:///etc/passwd", "http://127.0.0.1:x/"]
)
async def test_finding_14_nor_one_to_another_scheme_or_port(server: Server, client: Session, location: str) -> None:
    host = server.url.split("/")[2]
    server.answer = web.Response(status=302, headers={"Location": location.format(host=host)})
    await refusal(client, server.url)
    assert len(server.asked) == 1


async def test_a_redirect_within_the_server_is_followed(server: Server, client: Session) -> None:
    server.answer = web.Response(status=302, headers={"Location": "../other.yaml"})
    found = await fetch(client, server.url, Version())
    assert found is not None
    assert [request.path for request in server.asked] == ["/services.yaml", "/other.yaml"]


async def test_redirects_without_an_end_have_one(client: Session) -> None:
    asked = 0

    async def handle(_: web.BaseRequest) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=302, headers={"Location": "/services.yaml"})

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    error = await refusal(client, f"http://127.0.0.1:{runner.addresses[0][1]}/services.yaml")
    await runner.cleanup()
    assert "stopped after 5 redirects" in error
    assert asked == http.WITHIN_SERVER.most + 1


async def test_finding_14_netrc_is_not_sent(
    server: Server, client: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login root password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    await fetch(client, server.url, Version())
    assert "Authorization" not in server.asked[0].headers


async def test_the_environment_s_proxy_is_used(
    server: Server, client: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.rpartition("/")[0])
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    await fetch(client, "http://manifests.example/x.yaml", Version())
    assert server.asked[0].headers["Host"] == "manifests.example"
    monkeypatch.setenv("no_proxy", "manifests.example")
    await refusal(client, "http://manifests.example/x.yaml")
