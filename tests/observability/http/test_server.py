from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import fields

import pytest
import uvloop
from aiohttp import web
from structlog.testing import capture_logs

from kubeproxy.model.errors import KernelError
from kubeproxy.observability.http.access import Access
from kubeproxy.observability.http.admission import Admission
from kubeproxy.observability.http.server import HttpServer, Listening, Protection
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("fresh_structlog")

DEADLINE_S = 30.0


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


async def large(request: web.Request) -> web.Response:
    return web.Response(body=b"x" * 50_000_000)


async def stuck(request: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    return web.Response()


async def broken(request: web.Request) -> web.Response:
    raise RuntimeError("a fault of ours")


async def hungry(request: web.Request) -> web.Response:
    raise MemoryError


ROUTES = [
    web.get("/", hello),
    web.get("/large", large),
    web.get("/stuck", stuck),
    web.get("/broken", broken),
    web.get("/hungry", hungry),
]

Start = Callable[..., Awaitable[HttpServer]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[HttpServer] = []

    async def start(**options: object) -> HttpServer:
        where = {"name": "metrics", "host": "127.0.0.1", "port": 0, "setting": "metricsBindAddress"}
        where |= {field.name: options.pop(field.name) for field in fields(Listening) if field.name in options}
        server = HttpServer(Listening(**where), ROUTES, Protection(**options))  # type: ignore[arg-type]
        servers.append(server)
        await server.start()
        return server

    yield start
    for server in servers:
        await server.close()


async def get(port: int | None, path: str = "/", host: str = "127.0.0.1") -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return await asyncio.wait_for(reader.read(), DEADLINE_S)
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All bytes until the connection ends, by FIN or RST."""
    data = b""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while more := await reader.read(65536):
                data += more
    except ConnectionResetError:
        pass
    return data


async def test_one_answer_per_connection(start: Start) -> None:
    server = await start()
    answer = await get(server.port)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b"\r\n\r\nhello")
    assert b"\r\nConnection: close\r\n" in await get(server.port, "/nowhere")


async def test_silent_and_slow_clients_are_disconnected(start: Start) -> None:
    server = await start(connection_s=0.3)
    silent, silent_writer = await asyncio.open_connection("127.0.0.1", server.port)
    dripping, dripping_writer = await asyncio.open_connection("127.0.0.1", server.port)
    dripping_writer.write(b"GET / HT")
    assert await ended(silent) == b""
    assert await ended(dripping) == b""
    silent_writer.close()
    dripping_writer.close()


async def test_a_client_that_does_not_read_is_disconnected(start: Start) -> None:
    server = await start(connection_s=2.0)
    with closing(socket.create_connection(("127.0.0.1", server.port))) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await get(server.port)).endswith(b"hello")
        deadline = time.monotonic() + DEADLINE_S
        while server._open:
            assert time.monotonic() < deadline, "the connection stayed"
            await asyncio.sleep(0.02)


async def test_a_flood_of_silent_clients_blocks_no_probe(start: Start) -> None:
    server = await start(connections=4)
    flood = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
    assert (await get(server.port)).endswith(b"hello")
    assert len(server._open) <= 4
    assert [await ended(reader) for reader, _ in flood[:16]] == [b""] * 16
    for _, writer in flood:
        writer.close()


async def test_a_hung_answer_and_a_silent_client_do_not_delay_close(start: Start) -> None:
    server = await start()
    hung = asyncio.create_task(get(server.port, "/stuck"))
    silent, silent_writer = await asyncio.open_connection("127.0.0.1", server.port)
    deadline = time.monotonic() + DEADLINE_S
    while len(server._open) < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await server.close()
    assert await ended(silent) == b""
    (answer,) = await asyncio.gather(hung, return_exceptions=True)
    assert answer == b"" or isinstance(answer, ConnectionError)
    silent_writer.close()
    assert server.port is None
    await server.close()


async def test_an_unread_answer_does_not_outlive_close(start: Start) -> None:
    server = await start()
    with closing(socket.create_connection(("127.0.0.1", server.port))) as client:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(client, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        deadline = time.monotonic() + DEADLINE_S
        while not server._open:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            await server.close()
        assert not server._open


async def test_garbage_is_refused_and_not_logged(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = await start()
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 10_000,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(garbage)
        writer.write_eof()
        answer = await ended(reader)
        assert not answer or answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
        writer.close()
    assert (await get(server.port)).endswith(b"hello")
    assert not caplog.records


async def test_every_answer_has_security_headers_and_no_versions(start: Start) -> None:
    server = await start()
    for path, status in (("/", b"200"), ("/nowhere", b"404"), ("/broken", b"500"), ("/hungry", b"503")):
        head, _, _ = (await get(server.port, path)).partition(b"\r\n\r\n")
        assert head.split(b" ")[1] == status
        lines = head.split(b"\r\n")
        assert b"Server: kubeproxy" in lines
        for line in (b"X-Content-Type-Options: nosniff", b"X-Frame-Options: DENY", b"Cache-Control: no-store"):
            assert line in lines, (path, line)
        assert any(b"frame-ancestors 'none'" in line for line in lines)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"garbage\r\n\r\n")
    assert b"\r\nServer: kubeproxy\r\n" in await ended(reader)
    writer.close()


async def test_access_decides_which_pages_are_answered(start: Start) -> None:
    server = await start(access=Access(names=frozenset({"x"})))
    assert (await get(server.port)).endswith(b"hello")
    for head in (b"Host: evil.example", b"Host: x\r\nHost: evil.example", b"Host: evil.example\r\nHost: x"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\n%b\r\n\r\n" % head)
        answer = await ended(reader)
        assert answer.split(b" ")[1] in (b"400", b"421")
        assert b"hello" not in answer
        writer.close()


async def test_an_address_that_connects_too_often_is_refused_and_logged_once(start: Start) -> None:
    refused: list[None] = []
    server = await start(admission=Admission(local_rate=5), on_refused=lambda: refused.append(None))
    with capture_logs() as logs:
        answered = 0
        for _ in range(40):
            try:
                answered += (await get(server.port)).endswith(b"hello")
            except OSError:
                continue
    assert 10 <= answered < 40
    assert len(refused) == 40 - answered
    (line,) = logs
    assert line["event"] == "connections refused: too many per second"
    assert line["client"] == "127.0.0.1"
    await asyncio.sleep(0.3)
    assert (await get(server.port)).endswith(b"hello")


async def test_accept_pauses_without_descriptors(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with capture_logs() as logs, closing(socket.socket()) as client:
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.port))
            await until(lambda: bool(logs))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.get_running_loop().sock_recv(client, 12)) == b"HTTP/1.1 200"
    assert [line["event"] for line in logs] == ["cannot accept connections"]
    assert logs[0]["reason"] == "Too many open files"


def test_a_close_while_requests_are_accepted_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def close_after(turns: int) -> None:
        server = HttpServer(Listening(name="metrics", host="127.0.0.1", port=0, setting=""), ROUTES)
        await server.start()
        with closing(socket.create_connection(("127.0.0.1", server.port or 0))) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close()

    async def close_at_every_moment() -> None:
        for turns in range(8):
            await close_after(turns)

    uvloop.run(close_at_every_moment())
    assert not [record for record in caplog.records if record.exc_info]


async def test_an_internal_error_is_answered_with_500_and_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start()
    answer = await get(server.port, "/broken")
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"a fault of ours" not in answer
    assert any(record.exc_info and "a fault of ours" in str(record.exc_info[1]) for record in caplog.records)


async def test_a_lack_of_memory_is_answered_with_503(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = await start()
    with capture_logs() as logs:
        for _ in range(2):
            answer = await get(server.port, "/hungry")
            assert answer.startswith(b"HTTP/1.1 503")
            assert answer.endswith(b"not enough memory to answer\n")
    assert [line["event"] for line in logs] == ["no memory for an answer"]
    assert not caplog.records


async def test_a_taken_address_is_tried_again_until_it_is_free(start: Start) -> None:
    with capture_logs() as logs, closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        server = await start(port=port, retry_s=0.02)
        unserved = server.port
        assert unserved is None
        await asyncio.sleep(0.2)
        assert [entry["event"] for entry in logs] == ["cannot listen, trying again"]
        assert logs[0]["reason"] == "Address already in use"
        assert logs[0]["setting"] == "metricsBindAddress"
        taken.close()
        deadline = time.monotonic() + DEADLINE_S
        while server.port is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
    assert logs[-1]["event"] == "listening"
    assert logs[-1]["address"] == f"127.0.0.1:{port}"
    assert (await get(port)).endswith(b"hello")


async def test_with_hard_fail_a_taken_address_fails_the_start(start: Start) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(KernelError, match=rf"127\.0\.0\.1:{port}: Address already in use.*metricsBindAddress"):
            await start(port=port, hard_fail=True)


async def test_a_server_without_its_address_closes_at_once(start: Start) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        server = await start(port=taken.getsockname()[1], retry_s=3600.0)
        async with asyncio.timeout(1):
            await server.close()


async def test_the_port_is_free_after_close(start: Start) -> None:
    server = await start()
    port = server.port
    await get(port)
    await server.close()
    again = await start(port=port, hard_fail=True)
    assert again.port == port


async def test_the_unspecified_ipv6_address_serves_both_families(start: Start) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    server = await start(host="::")
    assert (await get(server.port, host="127.0.0.1")).endswith(b"hello")
    assert (await get(server.port, host="::1")).endswith(b"hello")


async def test_an_expected_port_is_bound_as_soon_as_it_is_free(start: Start) -> None:
    with capture_logs() as logs:
        predecessor = await start()
        port = predecessor.port
        successor = await start(port=port, retry_s=3600.0)
        assert successor.port is None
        successor.expect_port()
        await asyncio.sleep(0.2)
        await predecessor.close()
        await until(lambda: successor.port is not None)
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["cannot listen, trying again"]
    assert (await get(port)).endswith(b"hello")


async def test_an_expected_port_is_no_failure_until_it_is_overdue(start: Start) -> None:
    failures: list[str] = []
    with capture_logs() as logs, closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        listening = Listening(
            name="metrics",
            host="127.0.0.1",
            port=port,
            setting="metricsBindAddress",
            hard_fail=True,
            on_failure=failures.append,
            retry_s=0.02,
        )
        server = HttpServer(listening, ROUTES)
        server.expect_port(within_s=0.3)
        await server.start()
        await asyncio.sleep(0.1)
        assert not failures
        await until(lambda: bool(failures))
        await asyncio.sleep(0.1)
        assert failures == [f"cannot listen on 127.0.0.1:{port}: Address already in use"]
        await server.close()
    assert [entry["log_level"] for entry in logs if entry["event"] == "cannot listen, trying again"] == ["error"]


async def test_a_closing_server_frees_its_port_before_its_answers_end(start: Start) -> None:
    server = await start()
    port = server.port
    hung = asyncio.create_task(get(port, "/stuck"))
    await until(lambda: bool(server._open))
    closing_down = asyncio.create_task(server.close())
    await asyncio.sleep(0)
    successor = await start(port=port, retry_s=3600.0)
    successor.expect_port()
    await until(lambda: successor.port is not None)
    assert not closing_down.done()
    assert (await get(port)).endswith(b"hello")
    await closing_down
    await asyncio.gather(hung, return_exceptions=True)


async def test_a_quiet_server_only_calls_on_failure(start: Start) -> None:
    failures: list[str] = []
    with capture_logs() as logs, closing(socket.create_server(("127.0.0.1", 0))) as taken:
        server = await start(port=taken.getsockname()[1], quiet=True, on_failure=failures.append, retry_s=0.02)
        taken.close()
        await until(lambda: server.port is not None)
    assert len(failures) == 1
    assert {entry["log_level"] for entry in logs} == {"debug"}
