"""The proof of CAP_NET_ADMIN; `tests/system/e2e/test_security_takeover.py` has processes without it."""

from __future__ import annotations

import os
import socket

import pytest

from kubeproxy.runtime import peer_capability


def test_a_challenge_without_an_answer_proves_nothing() -> None:
    challenge = peer_capability.Challenge()
    assert not challenge.answered
    assert peer_capability.answer(os.dup(challenge.fileno())) is challenge.answered
    challenge.close()


def test_other_descriptors_get_no_answer() -> None:
    """A peer could have a use for a socket of another kind with that option."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        assert not peer_capability.answer(os.dup(other.fileno()))
        assert other.getsockopt(socket.SOL_SOCKET, 61, 8) == bytes(8)
    read, write = os.pipe()
    assert not peer_capability.answer(read)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
    os.close(write)
