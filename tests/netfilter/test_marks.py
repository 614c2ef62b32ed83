"""Security finding 1: a dial of the proxy is not redirected on its own node, whatever the other rules."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from kubeproxy.dataplane.sockets.loop_prevention import mark
from kubeproxy.model import NODE_PORTS, Destination, Family, Protocol
from kubeproxy.netfilter.ruleset import RuleSet
from tests.netfilter.stage import ANSWERED, Adapter, attempt, destination, rule_set, serving
from tests.netfilter.test_packets import NODE, VIP
from tests.support.lab import Host, Network

pytestmark = pytest.mark.netns

BOTH = (Protocol.TCP, Protocol.UDP)


def rules() -> RuleSet:
    """A service address and a node port for each family and protocol, all redirected to port 7001."""
    redirects = {destination(VIP[family], protocol): 7001 for family in Family for protocol in BOTH}
    redirects |= {Destination(NODE_PORTS[family], protocol, 30080): 7001 for family in Family for protocol in BOTH}
    return rule_set(redirects, landing=tuple(NODE.values()), node_addresses=tuple(NODE.values()))


def dial(host: Host, address: str, protocol: Protocol, port: int, *, marked: bool) -> bytes | None:
    """The server that answers a dial of the proxy; None: no server does."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with host.make_socket(family, socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM) as sock:
        if marked:
            mark(sock)
        sock.settimeout(0.4 if marked else 5.0)
        try:
            sock.connect((address, port))
            if protocol is Protocol.UDP:
                sock.send(b"ping")
            return sock.recv(100)
        except OSError:
            return None


def test_marked_packets_pass(network: Network, adapter: Adapter) -> None:
    with ExitStack() as stack:
        for family in Family:
            for protocol in BOTH:
                stack.enter_context(serving(network.node, protocol, 7001, family))
        adapter.apply(rules(), verify=True)
        for family in Family:
            for protocol in BOTH:
                for address, port in ((VIP[family], 80), (NODE[family], 30080)):
                    case = (family, protocol, address)
                    assert dial(network.node, address, protocol, port, marked=False) == b"pong 7001", case
                    assert dial(network.node, address, protocol, port, marked=True) is None, case
                    # Of other hosts the mark is not seen: every packet of theirs comes without one.
                    assert attempt(network.client, address, protocol, port, answer="pong 7001") == ANSWERED, case
    assert not adapter.apply(rules(), verify=True), "the rules are read back as they were written"
