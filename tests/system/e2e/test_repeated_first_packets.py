"""First packets, or their answers, that are lost while an instance leaves: clients repeat them, and are not refused.

The repetition follows the flow of the first packet past the new rules, to a port that is closed by then.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.lab import Daemon, Host
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import ADAPTERS
from tests.system.e2e.stage import QUICK, VIP, Stage, until

pytestmark = pytest.mark.netns

GRACE = "--shutdown-grace=30s"
PORT = 20_000


@contextmanager
def lost(host: Host, packets: str) -> Iterator[None]:
    """Drop what comes into a host, behind connection tracking."""
    host.run(["nft", "add table inet fault; add chain inet fault c { type filter hook input priority -1; }"])
    host.run(["nft", f"add rule inet fault c {packets} drop"])
    try:
        yield
    finally:
        host.run(["nft", "delete table inet fault"])


@contextmanager
def connecting(host: Host, stage: Stage) -> Iterator[socket.socket]:
    """A client whose first packet is under way, and known to connection tracking."""
    with host.make_socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(("", PORT))
        client.setblocking(False)
        assert client.connect_ex((VIP, 80)) == errno.EINPROGRESS
        listed = ["conntrack", "-L", "-p", "tcp", "--orig-dst", VIP, "--orig-port-src", str(PORT)]
        until(lambda: f"sport={PORT} " in stage.node.run(listed).stdout, "there is a flow")
        yield client


def taken_over(stage: Stage, first: Daemon, netfilter: str) -> None:
    """Let another instance take over, and wait until the first one accepts nothing any more."""
    port = kernel_state.redirects(stage.node)[VIP, 80]
    stage.daemon(QUICK, GRACE, "--workers=1", netfilter=netfilter)
    until(lambda: all(it.port != port for it in kernel_state.listening(stage.node)), "it accepts no client any more")


@pytest.mark.parametrize("netfilter", ADAPTERS)
@pytest.mark.parametrize("what", ["first packet", "answer"])
def test_a_repeated_first_packet_is_led_to_the_new_instance(stage: Stage, netfilter: str, what: str) -> None:
    """The first packet is one of the node itself: such a flow is tracked before the packet is lost."""
    stage.write_service([0])
    first = stage.daemon(QUICK, GRACE, "--workers=1", netfilter=netfilter)
    stage.await_answers(0)
    host, packets = {
        "first packet": (stage.node, f"tcp sport {PORT} tcp flags & (syn | ack) == syn"),
        "answer": (stage.client, f"tcp dport {PORT} tcp flags & (syn | ack) == (syn | ack)"),
    }[what]
    # The first instance lives on for the other client.
    with stage.client.connect((VIP, 80)), lost(host, packets), connecting(host, stage) as client:
        taken_over(stage, first, netfilter)
        assert first.process.poll() is None
        host.run(["nft", "flush chain inet fault c"])
        assert select.select([], [client], [], 30)[1], "it repeats its packet"
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        client.settimeout(30)
        client.sendall(b"name\n")
        assert client.recv(100) == b"pod-0"
