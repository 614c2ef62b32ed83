"""Held ports: nobody else gets one, whether we listen on it or not, and we get it again after a restart."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from kubeproxy.dataplane.sockets.reserved_ports import KINDS, HeldPort, stop_listening
from kubeproxy.model import Address, Protocol

LOOPBACK = Address("127.0.0.1")


def hold(protocol: Protocol, port: int = 0) -> HeldPort:
    return HeldPort(protocol, LOOPBACK, port, on_release=lambda held: None)


@pytest.fixture(params=[Protocol.TCP, Protocol.UDP])
def held(request: pytest.FixtureRequest) -> Iterator[HeldPort]:
    held = hold(request.param)
    yield held
    held.release()


def attempt(held: HeldPort, address: str) -> int | None:
    """What another process's server meets at the port: an error number, or None when it gets it."""
    with socket.socket(socket.AF_INET, KINDS[held.protocol]) as other:
        if held.protocol is Protocol.TCP:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((address, held.port))
            if held.protocol is Protocol.TCP:
                other.listen()
        except OSError as error:
            return error.errno
    return None


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_nobody_shares_what_is_only_held(held: HeldPort, address: str) -> None:
    assert attempt(held, address) == errno.EADDRINUSE


def test_nobody_shares_what_is_listened_on() -> None:
    held = hold(Protocol.TCP)
    held.lend().listen()
    assert attempt(held, "127.0.0.1") == errno.EADDRINUSE
    held.release()
    assert attempt(held, "127.0.0.1") is None


def test_what_is_released_is_free(held: HeldPort) -> None:
    held.release()
    assert attempt(held, "127.0.0.1") is None


def test_what_is_listened_on_again_is_the_same_port() -> None:
    """Though the kernel had chosen it."""
    held = HeldPort(Protocol.TCP, Address("127.0.0.1"), 0, on_release=lambda _: None)
    with closing(held.sock):
        for _ in range(3):
            held.lend().listen()
            with closing(socket.create_connection(("127.0.0.1", held.port), timeout=5)):
                stop_listening(held.sock)
            with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", held.port))


def test_a_port_that_was_lost_is_not_another_one() -> None:
    held = HeldPort(Protocol.TCP, Address("127.0.0.1"), 0, on_release=lambda _: None)
    with closing(held.sock), closing(socket.socket()) as other:
        held.lend().listen()
        held.sock.shutdown(socket.SHUT_RDWR)  # without holding it again
        other.bind(("127.0.0.1", held.port))
        with pytest.raises(OSError, match="in use"):
            held.lend()


def test_connections_that_linger_do_not_keep_the_port_from_us() -> None:
    held = hold(Protocol.TCP)
    listening = held.lend()
    listening.setblocking(True)
    listening.listen()
    with closing(socket.create_connection(("127.0.0.1", held.port), timeout=5)) as client:
        accepted, _ = listening.accept()
        accepted.close()  # who closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
    held.release()
    again = hold(Protocol.TCP, held.port)
    again.lend().listen()
    again.release()
