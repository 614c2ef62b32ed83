"""Others on the node and in the network, with real packets: programs that translate, policies, and forged resets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from kubeproxy.model import Family
from kubeproxy.rescue.packets import checksum, packed
from tests.rescue.stage import POD_PORT, PODS, Stage, stage, wait_for

pytestmark = pytest.mark.netns

CLIENTS = {Family.IPV4: "10.2.0.2", Family.IPV6: "fd00:2::2"}
IP = {Family.IPV4: "ip", Family.IPV6: "ip6"}
ALL = {f"pod{pod}" for pod in range(PODS)}
OTHERS = {-110: "10.99.0.1", -105: "10.99.0.2", -100: "10.99.0.3"}
"""Addresses that another program translates, by the priority of its chain; ours have -105."""
CLOSED, OPEN, MASQUERADED, SILENT = 80, 81, 82, 83
"""Ports of these addresses, and where they lead."""


@pytest.fixture
def ipv4() -> Iterator[Stage]:
    with stage(Family.IPV4) as made:
        yield made


@pytest.fixture(params=list(Family), ids=str)
def made(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(request.param) as made:
        yield made


def test_what_another_program_translates_is_left_alone(ipv4: Stage) -> None:
    node, client, pods = ipv4.network.node, ipv4.network.client, ipv4.addresses
    rules = "".join(
        f"""
        add chain inet other d{-priority} {{ type nat hook prerouting priority {priority}; }}
        add rule inet other d{-priority} ip daddr {address} tcp dport {CLOSED} dnat ip to {pods[0]}:{POD_PORT + 1}
        add rule inet other d{-priority} ip daddr {address} tcp dport {OPEN} dnat ip to {pods[0]}:{POD_PORT}
        add rule inet other d{-priority} ip daddr {address} tcp dport {MASQUERADED} dnat ip to {pods[0]}:{POD_PORT}
        add rule inet other d{-priority} ip daddr {address} tcp dport {SILENT} dnat ip to {pods[1]}:{POD_PORT}
        """
        for priority, address in OTHERS.items()
    )
    masquerade = f"add rule inet other s meta l4proto tcp ct original proto-dst {MASQUERADED} masquerade"
    hook = "add chain inet other s { type nat hook postrouting priority 100; }"
    node.run(["nft", "-f", "-"], input=f"add table inet other\n{hook}\n{masquerade}\n{rules}")
    before = node.run(["nft", "list", "table", "inet", "other"]).stdout
    for address in OTHERS.values():
        assert ipv4.ask(client, (address, OPEN)).text == "pod0"
        assert ipv4.ask(client, (address, MASQUERADED)).text == "pod0"
        assert ipv4.ask(client, (address, CLOSED)) == ("ConnectionRefusedError", 0)
    # An endpoint of ours falls silent: unanswered flows of others to the same pod stay.
    ipv4.filter(1, "drop")
    waiting = [_begin(ipv4, (address, SILENT)) for address in OTHERS.values()]
    try:
        answers, _ = ipv4.ask_often(client, 40)
        assert set(answers) == ALL - {"pod1"}
        wait_for(lambda: bool(ipv4.ejected), "it is ejected")
        tracked = node.run(["conntrack", "-L"]).stdout
        for address in OTHERS.values():
            assert f"dst={address}" in "".join(line for line in tracked.splitlines() if "SYN_SENT" in line)
        ipv4.unfilter(1)
        for sock in waiting:
            assert sock.recv(10) == b"pod1"
    finally:
        for sock in waiting:
            sock.close()
    assert node.run(["nft", "list", "table", "inet", "other"]).stdout == before
    assert set(ipv4.noticed) == {"silent"}
    # An error about another's connection reaches the client.
    ipv4.filter(0, "reject with icmpx admin-prohibited")
    for address in OTHERS.values():
        assert ipv4.ask(client, (address, CLOSED)).text in ("OSError", "ConnectionRefusedError")


def _begin(made: Stage, to: tuple[str, int]) -> socket.socket:
    """A connection that has sent its SYN."""
    sock = made.network.client.make_socket()
    sock.setblocking(False)
    sock.connect_ex(to)
    sock.settimeout(30)
    return sock


def policy(made: Stage, rule: str) -> None:
    """A policy of the node in chain FORWARD, for the client."""
    made.network.node.run(
        [
            "nft",
            "add table inet rules; add chain inet rules c { type filter hook forward priority 0; }; "
            f"add rule inet rules c {IP[made.family]} saddr {CLIENTS[made.family]} {rule}",
        ]
    )


def test_a_policy_that_rejects_is_not_passed_by(made: Stage) -> None:
    """What the node's own filter rejects is not sent again: the client is to hear of it."""
    policy(made, "ct state new reject with icmpx admin-prohibited")
    answers, _ = made.ask_often(made.network.client, 5)
    assert not set(answers) & ALL
    assert not made.noticed


def test_a_policy_that_drops_is_not_passed_by_and_costs_the_client_a_second(made: Stage) -> None:
    """The endpoint has not been asked, so it is not silent. The client's own retransmission is balanced anew."""
    policy(made, f"{IP[made.family]} daddr {made.addresses[1]} ct state new drop")
    assert set(made.ask_at_once(made.network.client, 40)) == ALL - {"pod1"}
    assert not made.noticed
    assert not made.counts["resent"]


@pytest.mark.parametrize("state", ["ct state new ", ""], ids=["examines first packets", "examines every packet"])
def test_what_is_sent_again_meets_policies_of_forwarding(made: Stage, state: str) -> None:
    """One endpoint refuses the client, and a policy forbids another one. What the first has refused meets the policy
    like the client's own packets."""
    forbidden = made.addresses[1]
    policy(made, f"{IP[made.family]} daddr {forbidden} {state}drop")
    made.filter(0, f"{IP[made.family]} saddr {CLIENTS[made.family]} tcp flags syn reject with tcp reset")
    # One in twelve is refused first and comes to the forbidden one then: none of 160 does once in a million times.
    answers = made.ask_at_once(made.network.client, 160, timeout=4.0)
    assert set(answers) - {"TimeoutError"} == ALL - {"pod0", "pod1"}
    assert made.counts["resent"]
    assert not made.noticed["refused"]


def test_forged_resets_take_no_endpoint_away(made: Stage) -> None:
    """A third host answers a client's SYNs in the names of all endpoints, with the right numbers."""
    ports = range(6000, 6040)
    for pod in range(PODS):
        made.filter(pod, f"tcp sport {ports[0]}-{ports[-1]} drop")  # so that the third host is always the first
    stop = threading.Event()

    def ask() -> None:  # clients in between: no endpoint is silent
        while not stop.is_set():
            made.ask(made.network.client)

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    try:
        address = CLIENTS[made.family]
        with _raw(made, "client") as client, _raw(made, "pod") as third:
            for number in ports:
                client.sendto(_segment(address, number, *made.service, number, 0, 0x02), (made.service[0], 0))
                for endpoint in made.addresses:
                    third.sendto(_segment(endpoint, POD_PORT, address, number, 0, number + 1, 0x14), (address, 0))
        wait_for(lambda: made.counts["refused"] >= len(ports), "the resets are taken for refusals")
    finally:
        stop.set()
        for thread in asking:
            thread.join()
    assert not made.noticed["refused"]
    wait_for(lambda: made.ejected == [], "no endpoint is left out")
    answers, _ = made.ask_often(made.network.client, 60)
    assert set(answers) == ALL


def _raw(made: Stage, place: str) -> socket.socket:
    """A socket for whole packets, on a host."""
    with made.hosts()[place].entered():
        return socket.socket(made.inet, socket.SOCK_RAW, socket.IPPROTO_RAW)


def _segment(source: str, port: int, destination: str, to: int, sequence: int, acknowledged: int, flags: int) -> bytes:
    """A TCP segment with its IP header."""
    addresses = packed(source) + packed(destination)
    fields = (port, to, sequence, acknowledged, 0x50, flags, 65535)
    body = struct.pack("!HHIIBBHHH", *fields, 0, 0)
    total = checksum(addresses + struct.pack("!II", len(body), socket.IPPROTO_TCP) + body)
    header = (
        struct.pack("!IHBB", 6 << 28, 20, socket.IPPROTO_TCP, 64)
        if ":" in source
        else struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, socket.IPPROTO_TCP, 0)
    )
    return header + addresses + struct.pack("!HHIIBBHHH", *fields, total, 0)
