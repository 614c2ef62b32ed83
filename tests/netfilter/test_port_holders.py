"""The processes that have a port, as the kernel reports them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from kubeproxy.model import Address, Protocol
from kubeproxy.netfilter.port_holders import Holder, Holders
from tests.support.lab import Host

pytestmark = pytest.mark.netns

PORT = 31000
ANY4, ANY6 = Address("0.0.0.0"), Address("::")
HERE4, HERE6 = Address("127.0.0.1"), Address("::1")
TCP, UDP = Protocol.TCP, Protocol.UDP
_LISTEN = f"""
import socket, sys
sock = socket.socket()
sock.bind(("127.0.0.1", {PORT}))
sock.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def host() -> Iterator[Host]:
    """A host of the test's own; its thread is on it."""
    host = Host("node")
    try:
        with host.entered():
            yield host
    finally:
        host.close()


def found(protocol: Protocol, address: Address, port: int = PORT) -> bool:
    """Whether a process has a port."""
    return bool(Holders()(protocol, address, port))


def test_tcp_counts_where_it_listens(host: Host) -> None:
    with socket.socket() as sock:
        sock.bind((HERE4, PORT))
        assert not found(TCP, HERE4)
        sock.listen()
        assert found(TCP, HERE4)
        assert found(TCP, ANY4)
        assert not found(TCP, Address("127.0.0.2"))
        assert not found(TCP, HERE4, PORT + 1)
        assert not found(TCP, ANY6)
        assert not found(UDP, ANY4)


@pytest.mark.parametrize("only", [False, True])
def test_ipv6_sockets_may_be_for_both_families(host: Host, only: bool) -> None:
    with socket.socket(socket.AF_INET6) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        sock.bind(("::", PORT))
        sock.listen()
        assert found(TCP, ANY6)
        assert found(TCP, HERE6)
        assert found(TCP, ANY4) is found(TCP, HERE4) is not only


def test_a_mapped_address_is_one_of_ipv4(host: Host) -> None:
    with socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::ffff:127.0.0.1", PORT))
        sock.listen()
        assert found(TCP, HERE4)
        assert found(TCP, ANY4)
        assert not found(TCP, Address("127.0.0.2"))


def test_udp_counts_where_it_is_bound(host: Host) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind((HERE4, PORT))
        assert found(UDP, HERE4)
        assert found(UDP, ANY4)
        assert not found(UDP, Address("127.0.0.2"))
        assert not found(UDP, ANY6)
        assert not found(TCP, ANY4)


def test_user_process_and_command_are_known(host: Host) -> None:
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-S", "-E", "-c"]
    process = host.popen([*command, _LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        finder = Holders()
        (holder,) = finder(TCP, ANY4, PORT)
        assert (holder.uid, holder.privileged, holder.ours) == (65534, False, False)
        if holder.pid is not None:  # a machine with very many processes is not searched to the end
            assert holder.pid == process.pid
            assert "/usr/bin/python3 -S -E -c" in str(holder)
            assert finder(TCP, ANY4, PORT) == (holder,)
        process.communicate(b"")
    assert not found(TCP, ANY4)


def test_a_privileged_port_is_no_ordinary_users(host: Host) -> None:
    with socket.socket() as sock:
        sock.bind((HERE4, 80))
        sock.listen()
        (holder,) = Holders()(TCP, HERE4, 80)
        assert (holder.uid, holder.privileged) == (os.geteuid(), True)


def test_searches_take_a_part_of_the_time(host: Host) -> None:
    time = iter(range(10_000))
    finder = Holders(clock=lambda: float(next(time)))  # every look at the clock takes a second: each search expires
    with socket.socket() as sock:
        sock.bind((HERE4, PORT))
        sock.listen()
        looks = []
        for _ in range(60):
            before = next(time)
            (holder,) = finder(TCP, ANY4, PORT)
            assert holder.pid is None
            looks.append(next(time) - before - 1)
    searched = [spent for spent in looks if spent > 1]
    assert searched
    assert len(searched) < len(looks) / 3


def test_words() -> None:
    assert str(Holder(7, False)) == "a process of user 7"
    assert str(Holder(7, False, 9, "nc -l")) == "process 9 (nc -l) of user 7"
    assert Holder(os.geteuid(), True, 9, "python -m kubeproxy run").ours
    assert not Holder(os.geteuid(), True, 9, "nc -l").ours
