"""The proof of CAP_NET_ADMIN; `tests/system/e2e/test_security_proof.py` has processes without it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from kubeproxy.runtime import peer_capability
from kubeproxy.runtime.peer_capability import Challenge, Purpose
from tests.support.lab import Host, make_network

NAME = "kubeproxy-test/control/one"


@pytest.fixture
def host() -> Iterator[Host]:
    """A network namespace."""
    with make_network() as network:
        yield network.node


def test_a_challenge_without_an_answer_proves_nothing() -> None:
    challenge = Challenge(Purpose.OWN, NAME)
    assert not challenge.answered
    assert peer_capability.answer(os.dup(challenge.fileno()), Purpose.OWN, NAME) is challenge.answered
    challenge.close()


@pytest.mark.netns
@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("control", [NAME, f"{NAME}/x", NAME[:-1], ""])
def test_only_the_purpose_and_the_connection_of_a_challenge_are_answered(purpose: Purpose, control: str) -> None:
    """Names may begin alike."""
    challenge = Challenge(Purpose.TAKE, NAME)
    answers = peer_capability.answer(os.dup(challenge.fileno()), purpose, control), challenge.answered
    assert answers == (((purpose, control) == (Purpose.TAKE, NAME)),) * 2
    challenge.close()


@pytest.mark.netns
def test_a_challenge_of_another_network_is_not_answered(host: Host) -> None:
    """Though the prover has CAP_NET_ADMIN there, too: the same names are free in every network namespace."""
    with host.entered():
        challenge = Challenge(Purpose.TAKE, NAME)
    answers = [peer_capability.answer(os.dup(challenge.fileno()), Purpose.TAKE, NAME), challenge.answered]
    with host.entered():
        answers += [peer_capability.answer(os.dup(challenge.fileno()), Purpose.TAKE, NAME), challenge.answered]
    assert answers == [False, False, True, True]
    challenge.close()


def test_the_kernel_keeps_what_a_challenge_is_bound_to() -> None:
    challenge = Challenge(Purpose.TAKE, NAME)
    with socket.socket(fileno=os.dup(challenge.fileno())) as passed:
        bound = passed.getsockname()
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            passed.bind("\0kubeproxy/challenge/own/another/0")
        assert passed.getsockname() == bound
    challenge.close()


def test_other_descriptors_get_no_answer() -> None:
    """A peer could have a use for a socket of another kind with that option."""
    unbound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for other in (socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX), unbound):
        with other:
            assert not peer_capability.answer(os.dup(other.fileno()), Purpose.OWN, NAME)
            assert other.getsockopt(socket.SOL_SOCKET, 61, 8) == bytes(8)
    read, write = os.pipe()
    assert not peer_capability.answer(read, Purpose.OWN, NAME)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
    os.close(write)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(OSError, match="too long"):
        Challenge(Purpose.RETIRE, "x" * 100)


def named(name: str = NAME, *, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A socket with an abstract name."""
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(f"\0{name}")
    return sock


@pytest.mark.netns
def test_a_signed_socket_certifies_its_name_in_its_network(host: Host) -> None:
    with named() as signed, host.entered(), named() as elsewhere:
        assert peer_capability.sign(signed)
        assert peer_capability.sign(elsewhere)
        found = [peer_capability.is_signed(os.dup(sock.fileno()), NAME) for sock in (signed, elsewhere)]
    assert found == [False, True], "asked from the network of the second"
    with named() as signed:
        assert peer_capability.sign(signed)
        wanted = {NAME: True, f"{NAME}/x": False, NAME[:-1]: False, "": False}
        assert {name: peer_capability.is_signed(os.dup(signed.fileno()), name) for name in wanted} == wanted


def test_nothing_else_certifies_a_name() -> None:
    unnamed = socket.socket(socket.AF_UNIX)
    peer_capability.sign(unnamed)
    internet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with unnamed, internet, named() as unsigned:
        others = (unnamed, internet, unsigned)
        assert not any(peer_capability.is_signed(os.dup(other.fileno()), NAME) for other in others)
    read, write = os.pipe()
    assert not peer_capability.is_signed(read, NAME)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
    os.close(write)
