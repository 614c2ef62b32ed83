"""The socket of preStop hooks: which pod asks, what the answers are, and what goes on to the pod."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress

import pytest

from kubeproxy.daemon import drain_hook
from kubeproxy.daemon.drain_hook import DrainHook, response, timeout_of
from kubeproxy.daemon.pod_drains import End, Outcome, PodDrains
from kubeproxy.model import Address, Family, Target
from kubeproxy.netfilter.conntrack.sock_diag import user_of
from kubeproxy.proxier.local_pods import LocalPods
from tests.support.lab import Host

PODS = {Family.IPV4: "10.244.1.7", Family.IPV6: "fd00:244::7"}
RULES = """
table inet there {{
    chain output {{
        type nat hook output priority -105
        meta mark & 0x1000 == 0x1000 return
        ip daddr 10.244.1.7 tcp dport 10258 redirect to :{port}
        ip6 daddr fd00:244::7 tcp dport 10258 redirect to :{port}
    }}
}}
"""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/drain", 25.0),
        ("/drain?timeout=40", 40.0),
        ("/drain?timeout=1m30s", 90.0),
        ("/drain?timeout=1500ms", 1.5),
        ("/drain?timeout=1.5s&more=1", 1.5),
        ("/drain?timeout=9h", 3600.0),
        ("/drain?timeout=", None),
        ("/drain?timeout=soon", None),
        ("/drain?timeout=-1s", None),
        ("/drain?" + "a=1&" * 20, None),
        ("//[", None),
    ],
)
def test_the_time_of_a_hook(target: str, expected: float | None) -> None:
    assert timeout_of(target) == expected


def test_answers() -> None:
    assert response(Outcome(End.IDLE, 0, 3.21, 20.0)).startswith(b"HTTP/1.1 200 OK\r\n")
    assert response(Outcome(End.IDLE, 0, 3.21, 20.0)).endswith(b"\r\n\r\nno connection is left after 3.2 s\n")
    assert response(Outcome(End.TIMEOUT, 4, 25.0, 0.0)).endswith(b"open connections: 4\n")
    assert response(Outcome(End.CROWD, None, 0.0, 25.0)).startswith(b"HTTP/1.1 503 ")
    moved = response(Outcome(End.MOVED, 4, 10.0, 15.0))
    assert moved.startswith(b"HTTP/1.1 307 Temporary Redirect\r\n")
    assert b"\r\nLocation: /drain?timeout=15000ms\r\n" in moved


class Asked(PodDrains):
    """Notes which pods ask, and answers at once."""

    def __init__(self) -> None:
        super().__init__(LocalPods(), lambda leaving: None)
        self.asked: list[tuple[str, float]] = []
        self.cancelled = asyncio.Event()
        self.answers = True

    async def wait(self, address: Address, timeout_s: float, *, by_hand: bool = False) -> Outcome:
        self.asked.append((address, timeout_s))
        try:
            while not self.answers and not self._ended:
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Outcome(End.MOVED if self._ended else End.IDLE, 0, 0.0, timeout_s)


@pytest.fixture
def host() -> Iterator[Host]:
    with closing(Host("hooked")) as made:
        made.ip(*(f"addr add {address} dev lo" for address in PODS.values()))
        yield made


def play(host: Host, scenario: Callable[[DrainHook, Asked], Awaitable[None]]) -> None:
    """Play with a hook to which rules lead."""

    async def play() -> None:
        drains = Asked()
        hook = DrainHook(drains)
        hook.bind(Family)
        hook.listen()
        try:
            host.run(["nft", "-f", "-"], input=RULES.format(port=hook.port))
            await asyncio.wait_for(scenario(hook, drains), 30)
        finally:
            await hook.end()

    with host.entered():
        asyncio.run(play())


async def said(address: str, text: bytes, port: int = 10258) -> bytes:
    """What a client gets that sends this text, to the end."""
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(text)
        return await reader.read()
    finally:
        writer.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: pod\r\nUser-Agent: kube-lifecycle/1.36\r\n\r\n".encode()


async def test_without_a_descriptor_it_accepts_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = DrainHook(Asked())
    hook.bind([Family.IPV4])
    hook.listen()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    attempts = Counter[str]()
    monkeypatch.setattr(hook, "_pause_accepting", lambda pause=hook._pause_accepting: (attempts.update("p"), pause()))
    try:
        with closing(socket.socket()) as client:
            client.setblocking(False)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                with suppress(BlockingIOError):
                    client.connect(("127.0.0.1", hook.port))
                await asyncio.sleep(3 * drain_hook.FULL_PAUSE_S)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert 1 <= attempts["p"] <= 4
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b"", "it was accepted"
    finally:
        await hook.end()


async def test_a_pause_ends_with_the_sockets_that_it_was_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted:
        def accept(self) -> None:
            raise OSError

    monkeypatch.setattr(drain_hook, "FULL_PAUSE_S", 0.01)
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    hook = DrainHook(Asked())
    hook.bind([Family.IPV4])
    hook.listen()
    try:
        hook._accept(Exhausted())  # type: ignore[arg-type]
        hook.listen()
        hook.close()
        hook.bind([Family.IPV4])
        loop.call_later(2 * drain_hook.FULL_PAUSE_S, over.set)
        await over.wait()
        assert not loop.remove_reader(hook._sockets[0].fileno())
    finally:
        await hook.end()


def test_a_socket_that_was_closed_is_nobodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        here, there = (Target(Address(host), port) for host, port in (client.getsockname(), server.getsockname()))
        with server.accept()[0]:
            assert user_of(here, there) == os.geteuid()
            client.close()
        assert user_of(here, there) is None, "the kernel says user 0"


async def test_it_listens_only_once_it_is_told() -> None:
    hook = DrainHook(Asked())
    hook.bind([Family.IPV4])
    try:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", hook.port)
        hook.listen()
        _, writer = await asyncio.open_connection("127.0.0.1", hook.port)
        writer.close()
    finally:
        await hook.end()


@pytest.mark.netns
def test_a_hook_is_known_by_the_address_that_it_asks(host: Host) -> None:
    async def scenario(hook: DrainHook, drains: Asked) -> None:
        for address in PODS.values():
            assert (await said(address, get("/drain?timeout=7s"))).startswith(b"HTTP/1.1 200 OK\r\n")
        assert drains.asked == [(address, 7.0) for address in PODS.values()]

    play(host, scenario)


@pytest.mark.netns
def test_who_was_not_led_here_gets_nothing(host: Host) -> None:
    async def scenario(hook: DrainHook, drains: Asked) -> None:
        with suppress(ConnectionError):
            assert await said("127.0.0.1", get("/drain"), hook.port) == b""
        assert not drains.asked

    play(host, scenario)


@pytest.mark.netns
@pytest.mark.parametrize("text", [get("/healthz"), get("/drained"), b"\x16\x03\x01 hello", b"G", b""])
def test_all_else_goes_on_to_the_pod(host: Host, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_hook, "SILENT_S", 0.1)
    monkeypatch.setattr(drain_hook, "REQUEST_S", 0.5)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"pod: ")
        writer.write(await reader.read(len(text)) if text else b"")
        writer.close()

    async def scenario(hook: DrainHook, drains: Asked) -> None:
        async with await asyncio.start_server(echo, PODS[Family.IPV4], 10258):
            assert await said(PODS[Family.IPV4], text) == b"pod: " + text
        assert not drains.asked

    play(host, scenario)


@pytest.mark.netns
def test_a_connection_that_the_pod_alone_uses_is_not_idle(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_hook, "IDLE_S", 1.0)

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(8):
            writer.write(b"more ")
            await asyncio.sleep(0.25)
        writer.close()

    async def scenario(hook: DrainHook, drains: Asked) -> None:
        async with await asyncio.start_server(stream, PODS[Family.IPV4], 10258):
            assert await said(PODS[Family.IPV4], get("/stream")) == 8 * b"more "

    play(host, scenario)


@pytest.mark.netns
def test_what_is_not_roots_goes_on_to_the_pod(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a limit, so that it keeps no hook from being answered."""
    program = """
import os, socket
os.setuid(65534)
sock = socket.socket()
sock.connect(("10.244.1.7", 10258))
sock.sendall(b"GET /drain HTTP/1.1\\r\\n\\r\\n")
print(sock.recv(100).decode())
"""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the pod")
        writer.close()

    async def scenario(hook: DrainHook, drains: Asked) -> None:
        async with await asyncio.start_server(answer, PODS[Family.IPV4], 10258):
            found = await asyncio.to_thread(host.run, [sys.executable, "-c", program])
            assert found.stdout == "the pod\n"
            monkeypatch.setattr(drain_hook, "OF_OTHERS", 0)
            found = await asyncio.to_thread(host.run, [sys.executable, "-c", program], check=False)
            assert "the pod" not in found.stdout
        assert not drains.asked
        assert (await said(PODS[Family.IPV4], get("/drain"))).startswith(b"HTTP/1.1 200 OK\r\n")

    play(host, scenario)


@pytest.mark.netns
def test_a_pod_that_does_not_listen_resets_all_else(host: Host) -> None:
    async def scenario(hook: DrainHook, drains: Asked) -> None:
        with pytest.raises(ConnectionResetError):
            await said(PODS[Family.IPV4], get("/healthz"))

    play(host, scenario)


@pytest.mark.netns
def test_a_hook_that_disconnects_waits_no_more(host: Host) -> None:
    async def scenario(hook: DrainHook, drains: Asked) -> None:
        drains.answers = False
        _, writer = await asyncio.open_connection(PODS[Family.IPV4], 10258)
        writer.write(get("/drain"))
        while not drains.asked:
            await asyncio.sleep(0.01)
        writer.close()
        await drains.cancelled.wait()

    play(host, scenario)


@pytest.mark.netns
def test_the_end_sends_hooks_on_to_the_next_kubeproxy(host: Host) -> None:
    async def scenario(hook: DrainHook, drains: Asked) -> None:
        drains.answers = False
        waiting = asyncio.ensure_future(said(PODS[Family.IPV4], get("/drain?timeout=30s")))
        while not drains.asked:
            await asyncio.sleep(0.01)
        await hook.end()
        assert b"\r\nLocation: /drain?timeout=30000ms\r\n" in await waiting
        with pytest.raises(ConnectionRefusedError):
            await said(PODS[Family.IPV4], get("/drain"))

    play(host, scenario)
