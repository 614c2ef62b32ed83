"""Reserved ports: exclusive with or without a listener, and free for us again after a restart."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from kubeproxy.dataplane.sockets.port_reservation import KINDS, ReservedPort, stop_listening
from kubeproxy.model import Address, Protocol

LOOPBACK = Address("127.0.0.1")


def reserve(protocol: Protocol, port: int = 0) -> ReservedPort:
    return ReservedPort(protocol, LOOPBACK, port, on_release=lambda _: None)


@pytest.fixture(params=[Protocol.TCP, Protocol.UDP])
def reserved(request: pytest.FixtureRequest) -> Iterator[ReservedPort]:
    reserved = reserve(request.param)
    yield reserved
    reserved.release()


def attempt(reserved: ReservedPort, address: str) -> int | None:
    """The error number of another socket that tries to listen at the port; None when it succeeds."""
    with socket.socket(socket.AF_INET, KINDS[reserved.protocol]) as other:
        if reserved.protocol is Protocol.TCP:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((address, reserved.port))
            if reserved.protocol is Protocol.TCP:
                other.listen()
        except OSError as error:
            return error.errno
    return None


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_no_other_socket_gets_a_reserved_port(reserved: ReservedPort, address: str) -> None:
    assert attempt(reserved, address) == errno.EADDRINUSE


def test_no_other_socket_gets_a_port_in_use() -> None:
    reserved = reserve(Protocol.TCP)
    reserved.prepare().listen()
    assert attempt(reserved, "127.0.0.1") == errno.EADDRINUSE
    reserved.release()
    assert attempt(reserved, "127.0.0.1") is None


def test_a_released_port_is_free(reserved: ReservedPort) -> None:
    reserved.release()
    assert attempt(reserved, "127.0.0.1") is None


def test_listening_again_keeps_the_port() -> None:
    """Even a port that the kernel chose."""
    reserved = ReservedPort(Protocol.TCP, Address("127.0.0.1"), 0, on_release=lambda _: None)
    with closing(reserved.sock):
        for _ in range(3):
            reserved.prepare().listen()
            with closing(socket.create_connection(("127.0.0.1", reserved.port), timeout=5)):
                stop_listening(reserved.sock)
            with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", reserved.port))


def test_a_lost_port_is_an_error_and_not_another_port() -> None:
    reserved = ReservedPort(Protocol.TCP, Address("127.0.0.1"), 0, on_release=lambda _: None)
    with closing(reserved.sock), closing(socket.socket()) as other:
        reserved.prepare().listen()
        reserved.sock.shutdown(socket.SHUT_RDWR)  # without binding it again
        other.bind(("127.0.0.1", reserved.port))
        with pytest.raises(OSError, match="in use"):
            reserved.prepare()


def test_connections_in_time_wait_do_not_block_the_port() -> None:
    reserved = reserve(Protocol.TCP)
    listening = reserved.prepare()
    listening.setblocking(True)
    listening.listen()
    with closing(socket.create_connection(("127.0.0.1", reserved.port), timeout=5)) as client:
        accepted, _ = listening.accept()
        accepted.close()  # the side that closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
    reserved.release()
    again = reserve(Protocol.TCP, reserved.port)
    again.prepare().listen()
    again.release()
