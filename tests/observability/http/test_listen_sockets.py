"""The accept queue of each client: finding 19 (a flood starves probes) of the attack review."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from kubeproxy.observability.http.listen_sockets import BACKLOG, OTHERS, open_queues, program


def queue_of(source: str, destination: str) -> int:
    """The queue that the program chooses for a packet: an interpreter of classic BPF."""
    ends = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    header = (b"\x60" + bytes(7) if ends[0].version == 6 else b"\x45" + bytes(11)) + ends[0].packed + ends[1].packed
    place = a = x = 0
    steps = program()
    while True:
        code, if_true, if_false, k = steps[place]
        offset = k - (0x1_0000_0000 - 0x100000)
        place += 1
        match code:
            case 0x20:
                (a,) = struct.unpack_from("!I", header, offset)
            case 0x30:
                a = header[offset]
            case 0x07:
                x = a
            case 0x87:
                a = x
            case 0x74:
                a >>= k
            case 0x54:
                a &= k
            case 0x04:
                a += k
            case 0x15:
                place += if_true if a == k else if_false
            case 0x1D:
                place += if_true if a == x else if_false
            case 0x06:
                return k
            case 0x16:
                return a
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.5", "127.0.0.1"),
        ("192.0.2.1", "192.0.2.1"),
        ("::1", "::1"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_clients_of_this_host_have_their_own_queue(source: str, destination: str) -> None:
    assert queue_of(source, destination) == 0


def test_clients_of_other_hosts_are_spread_by_address() -> None:
    for last in range(1, 255):
        assert queue_of(f"192.0.2.{last}", "192.0.2.255") == 1 + last % OTHERS
    for last in range(1, 64):
        assert queue_of(f"2001:db8:0:{last:x}::1", "2001:db8::1") == 1 + last % OTHERS
        assert queue_of(f"2001:db8:0:{last:x}::1", f"2001:db8:0:{last:x}::2") == 1 + last % OTHERS


@pytest.fixture
def queues() -> Iterator[list[socket.socket]]:
    opened = open_queues("127.0.0.1", 0, dualstack=False)
    yield opened
    for queue in opened:
        queue.close()


def test_the_kernel_uses_the_program(queues: list[socket.socket]) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(closing(socket.create_connection(queues[0].getsockname())))
        for _ in range(20):
            queues[0].accept()[0].close()
    for queue in queues:
        with pytest.raises(BlockingIOError):
            queue.accept()


def test_a_listener_that_shares_its_port_is_detected(queues: list[socket.socket]) -> None:
    with pytest.raises(OSError) as error:
        open_queues("127.0.0.1", queues[0].getsockname()[1], dualstack=False)
    assert error.value.errno == errno.EADDRINUSE


def test_the_backlog_is_not_above_the_limit_of_linux() -> None:
    assert BACKLOG <= 4096
