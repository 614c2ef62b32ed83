"""Clients that use the port of an ended connection again, when the process that served it is gone.

Connection tracking keeps a connection that was reset for ten seconds, here for ten minutes, and leads the port to where
it led before.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.lab import Daemon
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import ADAPTERS
from tests.system.e2e.stage import QUICK, VIP, Stage, until

pytestmark = pytest.mark.netns

each_adapter = pytest.mark.parametrize("netfilter", ADAPTERS)
PORT = 20_000
GRACE = "--shutdown-grace=1s"


@pytest.fixture(autouse=True)
def long_memory(stage: Stage) -> None:
    """Connection tracking of the node keeps what was reset."""
    stage.node.run(["sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_timeout_close=600"])


def serve(stage: Stage, netfilter: str) -> Daemon:
    """A daemon with short patience for open connections."""
    stage.write_service([0])
    daemon = stage.daemon(QUICK, GRACE, "--workers=1", netfilter=netfilter)
    stage.await_answers(0)
    return daemon


def come(stage: Stage, *, patience_s: float = 10.0) -> socket.socket:
    """A connection from always the same port."""
    client = stage.client.make_socket()
    try:
        client.settimeout(patience_s)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(("", PORT))
        client.connect((VIP, 80))
    except BaseException:
        client.close()
        raise
    return client


def answered(client: socket.socket) -> bool:
    """Whether the backend answers."""
    client.sendall(b"name\n")
    return client.recv(100).startswith(b"pod-")


def keep_until_reset(client: socket.socket) -> None:
    """Wait for the end of a connection."""
    client.settimeout(40)
    with client, contextlib.suppress(ConnectionResetError):
        while client.recv(100):
            pass


@each_adapter
def test_after_a_takeover(stage: Stage, netfilter: str) -> None:
    """The connection moves, and ends when the instance that it came to is gone."""
    first = serve(stage, netfilter)
    with come(stage) as kept, stage.client.connect((VIP, 80)) as other:
        stage.daemon(QUICK, GRACE, "--workers=1", netfilter=netfilter)
        assert first.wait() == 0
        kept.sendall(b"reset\n")
        keep_until_reset(kept)
        until(lambda: came(stage), "the new instance has forgotten the connection")
        assert answered(other)


@each_adapter
def test_while_no_process_serves(stage: Stage, netfilter: str) -> None:
    """The client waits, as new ones do."""
    first = serve(stage, netfilter)
    kept = come(stage)
    first.process.send_signal(signal.SIGTERM)
    keep_until_reset(kept)
    assert first.wait() == 0
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(come, stage, patience_s=40.0)
        stage.daemon(QUICK, GRACE, "--workers=1", netfilter=netfilter)
        with waiting.result() as again:
            assert answered(again)


@each_adapter
def test_after_an_orphaned_worker_has_ended(stage: Stage, netfilter: str) -> None:
    """Its connection has moved, and ends when the worker that it came from is gone."""
    first = serve(stage, netfilter)
    kept = come(stage)
    first.process.kill()
    first.process.wait()
    second = stage.daemon(QUICK, GRACE, "--workers=1", netfilter=netfilter)
    until(lambda: "orphaned worker has ended" in second.log(), "the orphaned worker has ended")
    kept.sendall(b"reset\n")
    keep_until_reset(kept)
    until(lambda: came(stage), "the new instance has forgotten the connection")


def test_while_an_earlier_instance_drains(stage: Stage) -> None:
    """One of its connections is reset by the endpoint, another goes on."""
    stage.write_service([0])
    first = stage.daemon(QUICK, "--workers=0")  # from it no connection moves
    stage.await_answers(0)
    kept = come(stage)
    port = kernel_state.redirects(stage.node)[VIP, 80]
    with stage.client.connect((VIP, 80)) as other:
        stage.daemon(QUICK, "--workers=1")
        until(
            lambda: all(it.port != port for it in kernel_state.listening(stage.node)), "it accepts no client any more"
        )
        kept.sendall(b"reset\n")
        keep_until_reset(kept)
        until(lambda: came(stage), "the new instance has forgotten the connection")
        assert answered(other)
        assert first.process.poll() is None


def came(stage: Stage) -> bool:
    """Whether a client from the same port is answered."""
    try:
        with come(stage) as again:
            return answered(again)
    except ConnectionRefusedError:
        return False
