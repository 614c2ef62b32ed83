"""What hostile tenants, clients and pods attempt on the kernel path, with the real daemon. SECURITY.md has the list."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from kubeproxy.rescue.packets import Side, checksum, datagram, packed
from tests.support.lab import Daemon, Host, Network
from tests.support.lab.daemon import METRICS
from tests.system.e2e.full_services import (
    CLIENT,
    FAMILIES,
    MIRROR,
    NODE,
    V4,
    V6,
    Whole,
    await_all,
    hear,
    udp,
)
from tests.system.e2e.stage import KERNEL, QUICK, VIP, Stage, ask, until
from tests.system.e2e.test_kernel_path import slots
from tests.system.e2e.test_rescue import PODS, alive, names, rescue_pids, start

pytestmark = pytest.mark.netns

WHOLE = Whole(1)
IP = {V4: "ip", V6: "ip6"}


@contextmanager
def policy(host: Host, match: str, verdict: str = "drop") -> Iterator[None]:
    """A network policy in a pod: what matches gets this verdict."""
    rule = f"add rule inet rules_of_policy c {match} {verdict}"
    made = "add table inet rules_of_policy; add chain inet rules_of_policy c { type filter hook input priority 0; }"
    host.run(["nft", f"{made}; {rule}"])
    try:
        yield
    finally:
        host.run(["nft", "delete table inet rules_of_policy"])


@contextmanager
def policies(stage: Stage, match: str, verdict: str = "drop") -> Iterator[None]:
    """The same policy in all pods."""
    with ExitStack() as stack:
        for index in PODS:
            stack.enter_context(policy(stage.network.pods[index], match, verdict))
        yield


def knock(host: Host, family: int, timeout_s: float = 2.0) -> str:
    """The name of the pod that answers, or of the error."""
    try:
        return hear(host, WHOLE.address("cluster IP", family), "TCP", timeout_s=timeout_s).pod
    except OSError as error:
        return type(error).__name__


def ejections(daemon: Daemon) -> int:
    """How often the rescue has ejected an endpoint."""
    return daemon.log().count("endpoint ejected")


def start_whole(stage: Stage, *pods: int) -> Daemon:
    """A daemon with one Service of both families on the kernel path, and its rescue at work."""
    stage.write(WHOLE.name, *WHOLE.objects(*pods))
    daemon = stage.daemon(QUICK, "--workers=1", netfilter=KERNEL)
    for family in FAMILIES:
        until(lambda: targets(stage, family) == pods_of(family, *pods), "all pods have slots")  # noqa: B023
    until(lambda: alive(stage.node), "the rescue works")
    return daemon


def targets(stage: Stage, family: int, place: tuple[str, int] | None = None) -> set[str]:
    """The addresses to which the kernel leads clients of a cluster IP by TCP."""
    return slots(stage.node, f"tcp_slots{family}").get(place or WHOLE.address("cluster IP", family), set())


def pods_of(family: int, *pods: int) -> set[str]:
    address = Network.pod_v4 if family == V4 else Network.pod_v6
    return {str(ip_address(address(pod))) for pod in pods}


BOTH = pytest.mark.parametrize("family", FAMILIES, ids=["IPv4", "IPv6"])


@BOTH
def test_a_client_that_a_policy_forbids_is_not_served_by_way_of_the_node(mirrors: Stage, family: int) -> None:
    """Its endpoints are silent to it, and answer the node: nothing may dial them in its place."""
    stage, daemon = mirrors, start_whole(mirrors, *PODS)
    with policies(stage, f"{IP[family]} saddr {CLIENT[family]}"):
        until(lambda: knock(stage.client, family) and ejections(daemon), "silence is noticed")
        assert {knock(stage.client, family, 4.0) for _ in range(4)} == {"TimeoutError"}
        assert targets(stage, family), "no client goes to user space"
        # They are back, for others, and stay while it goes on.
        until(lambda: targets(stage, family) == pods_of(family, *PODS), "all endpoints have slots")
        before = ejections(daemon)
        assert {knock(stage.client, family, 3.0) for _ in range(3)} == {"TimeoutError"}
        assert ejections(daemon) == before
        assert knock(stage.node, family) in names(*PODS)
    until(lambda: knock(stage.client, family) in names(*PODS), "it is served when the policy is gone")


@BOTH
def test_a_client_that_a_policy_forbids_takes_no_endpoint_from_others(mirrors: Stage, family: int) -> None:
    """The policy forbids the node, too, so no dial succeeds. No other traffic shows that they live."""
    stage, daemon = mirrors, start_whole(mirrors, *PODS)
    permitted = stage.network.pods[3]
    node = ", ".join(f"10.3.{pod}.1" if family == V4 else f"fd00:3:{pod}::1" for pod in PODS)
    with policies(stage, f"{IP[family]} saddr {{ {CLIENT[family]}, {node} }} tcp dport {MIRROR}"):
        for _ in range(4):
            assert knock(stage.client, family, 2.0) == "TimeoutError"
        until(lambda: ejections(daemon) >= len(PODS), "all endpoints are found silent")
        assert {knock(permitted, family, 5.0) for _ in range(12)} <= names(*PODS)


def unreachable(client: Side, endpoint: Side, payload: bytes, *, code: int) -> bytes:
    """A forged ICMP error about a datagram of a client to an endpoint, from its IP header on."""
    quoted = datagram(client, endpoint, payload)
    # Any router may be its sender.
    if len(client.address) == 4:
        error = bytearray(struct.pack("!BBHI", 3, code, 0, 0) + quoted)
        struct.pack_into("!H", error, 2, checksum(bytes(error)))
        return ip_header(socket.IPPROTO_ICMP, packed(CLIENT[V4]), client.address, len(error)) + bytes(error)
    error = bytearray(struct.pack("!BBHI", 1, code, 0, 0) + quoted)
    pseudo = packed(CLIENT[V6]) + client.address + struct.pack("!II", len(error), socket.IPPROTO_ICMPV6)
    struct.pack_into("!H", error, 2, checksum(pseudo + error))
    return ip_header(socket.IPPROTO_ICMPV6, packed(CLIENT[V6]), client.address, len(error)) + bytes(error)


def ip_header(protocol: int, source: bytes, destination: bytes, length: int) -> bytes:
    """An IP header; of IPv4 with its checksum."""
    if len(source) == 16:
        return struct.pack("!IHBB", 6 << 28, length, protocol, 64) + source + destination
    header = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, protocol, 0))
    header += source + destination
    struct.pack_into("!H", header, 10, checksum(bytes(header)))
    return bytes(header)


def side(address: str, port: int) -> Side:
    return Side(packed(address), port)


def send_by_node(stage: Stage, packet: bytes) -> None:
    """Send a packet from the client's host to the node's link address, whatever its destination."""
    link = json.loads(stage.node.ip("-j link show dev to-client"))[0]["address"]
    own = json.loads(stage.client.ip("-j link show dev eth0"))[0]["address"]
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    frame = bytes.fromhex(link.replace(":", "") + own.replace(":", "")) + kind + packet
    with stage.client.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.bind(("eth0", 0))
        sock.send(frame)


@BOTH
def test_a_forged_error_ends_no_sessions_and_sends_nothing_in_a_clients_name(mirrors: Stage, family: int) -> None:
    """The attacker forges an error about its own flow. Without a confirmation it ejected the endpoint for all, ended
    all sessions with it, and had the payload sent to another one."""
    stage = mirrors
    stage.write(WHOLE.name, *WHOLE.objects(0, 1))
    daemon = stage.daemon(QUICK, "--workers=1", netfilter=KERNEL)
    await_all(stage, WHOLE, 0, 1)
    until(lambda: alive(stage.node), "the rescue works")
    address = WHOLE.address("cluster IP", family)
    with ExitStack() as stack:
        sessions = [stack.enter_context(udp(stage.node, address)) for _ in range(20)]
        before = [turn(session) for session in sessions]
        assert set(before) == {"pod-0", "pod-1"}
        attacker = stack.enter_context(udp(stage.client, address))
        pod = int(turn(attacker).removeprefix("pod-"))
        (endpoint,) = pods_of(family, pod)
        for code in (0, 1, 3, 13) if family == V4 else (0, 1, 3, 4):
            error = unreachable(side(*attacker.getsockname()[:2]), side(endpoint, MIRROR), b"forged", code=code)
            send_by_node(stage, error)
        until(lambda: reports(daemon, "unreachable") >= 1, "the errors are reported")
        assert [turn(session) for session in sessions] == before
        assert turn(attacker) == f"pod-{pod}", "and nothing else has come in its name"
        assert daemon.log().count("endpoint ejected") == 0


def turn(session: socket.socket) -> str:
    """The pod that answers a datagram."""
    session.send(b"name")
    return session.recv(1000).decode().split()[0]


def reports(daemon: Daemon, reason: str) -> int:
    """How many failures of a kind were reported, as the metrics have it."""
    found = re.search(
        rf'kubeproxy_rescue_reports_total{{reason="{reason}"}} (\d+)', daemon.get("/metrics", address=METRICS).body
    )
    return int(found[1]) if found else 0


def syn(client: Side, service: Side, sequence: int) -> bytes:
    """A SYN from its IP header on."""
    header = struct.pack("!HHIIBBHHH", client.port, service.port, sequence, 0, 5 << 4, 0x02, 65535, 0, 0)
    body = bytearray(header)
    pseudo = client.address + service.address + struct.pack("!II", len(body), socket.IPPROTO_TCP)
    struct.pack_into("!H", body, 16, checksum(pseudo + body))
    return ip_header(socket.IPPROTO_TCP, client.address, service.address, len(body)) + bytes(body)


def counted(host: Host) -> int:
    """The packets that a rule of `counting` has counted."""
    return int(re.search(r"packets (\d+)", host.run(["nft", "list", "table", "inet", "counting"]).stdout)[1])  # type: ignore[index]


@contextmanager
def counting(host: Host, match: str) -> Iterator[None]:
    """Count the packets that come to a host and match."""
    made = "add table inet counting; add chain inet counting c { type filter hook input priority -10; }"
    host.run(["nft", f"{made}; add rule inet counting c {match} counter"])
    try:
        yield
    finally:
        host.run(["nft", "delete table inet counting"])


OTHER = Whole(2)


@BOTH
@pytest.mark.parametrize("of", ["its own", "the node's", "a pod's"])
def test_what_the_node_has_dropped_is_not_sent_in_place_of_what_was_refused(
    mirrors: Stage, family: int, of: str
) -> None:
    """A packet to another Service gets the sequence number of one that an endpoint of the attacker's refuses.

    The node drops that packet: by a policy, or for its source."""
    stage = mirrors
    stage.write(OTHER.name, *OTHER.objects(1))
    daemon = start_whole(stage, 0, 2, 3)
    place, other = (it.address("cluster IP", family) for it in (WHOLE, OTHER))
    (victim,), (pod,) = pods_of(family, 1), pods_of(family, 2)
    until(lambda: targets(stage, family, other) == {victim}, "the other Service is served")
    source = {"its own": CLIENT, "the node's": NODE, "a pod's": {family: pod}}[of][family]
    stage.node.run(
        [
            "nft",
            "add table inet strict; add chain inet strict c { type filter hook forward priority 0; }; "
            f"add rule inet strict c {IP[family]} saddr {source} {IP[family]} daddr {victim} drop",
        ]
    )
    try:
        with (
            policies(stage, f"{IP[family]} saddr {CLIENT[family]} tcp flags syn", "reject with tcp reset"),
            counting(stage.network.pods[1], f"{IP[family]} saddr {source} tcp sport 40002"),
            raw_socket(stage.client, family) as raw,
        ):
            for turn_number in range(3):
                sequence = 0x10000000 + turn_number
                before = reports(daemon, "refused")
                raw.sendto(syn(side(CLIENT[family], 40010 + turn_number), side(*place), sequence), (place[0], 0))
                raw.sendto(syn(side(source, 40002), side(*other), sequence), (other[0], 0))
                until(
                    lambda: counted(stage.network.pods[1]) or reports(daemon, "refused") >= before + 4,  # noqa: B023
                    "one of the two is sent again and again",
                )
            assert counted(stage.network.pods[1]) == 0, "what the node has dropped has arrived"
    finally:
        stage.node.run(["nft", "delete table inet strict"])


def raw_socket(host: Host, family: int) -> socket.socket:
    """A socket for whole packets, on a host."""
    with host.entered():
        inet = socket.AF_INET if family == V4 else socket.AF_INET6
        return socket.socket(inet, socket.SOCK_RAW, socket.IPPROTO_RAW)


def test_the_rescue_process_holds_what_the_documents_say(stage: Stage) -> None:
    """No capability, a filter of system calls, and no descriptor but packet log, channel and sockets to send by."""
    daemon = start(stage)
    (pid,) = rescue_pids(daemon)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert {status[key] for key in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    # The control process has given up the right to remove more; nothing can be executed that would gain by it.
    assert int(status["CapBnd"], 16) & ~0x43402 == 0
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    assert os.readlink(f"/proc/{pid}/root") == f"/proc/{pid}/fdinfo", (
        "started by hand as root it has no files, nor their names"
    )
    held = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = [each for each in held if each.startswith("socket:")]
    others = {each for each in held if not each.startswith("socket:")} - {str(daemon.log_path), "/dev/null"}
    assert len(sockets) == 5, held
    assert others <= {"anon_inode:[eventpoll]"}, held


_SQUAT = """
import socket, sys
from kubeproxy.netfilter.netlink.messages import NETLINK_NETFILTER, answers, open_netlink
from kubeproxy.rescue import nflog
sockets = []
for number, group in enumerate(nflog.GROUPS, 1):
    sock = open_netlink(NETLINK_NETFILTER)
    sock.send(nflog.bind_request(group, packet_bytes=100, threshold=1, sequence=number))
    list(answers(sock, number))
    sockets.append(sock)
print("taken", flush=True)
sys.stdin.read()
"""


def test_all_groups_of_the_packet_log_are_taken(stage: Stage) -> None:
    """Only root can. Connections go on, it is reported, and the rescue works when one is free."""
    stage.write_service(PODS)
    squatter = stage.node.popen(
        [sys.executable, "-c", _SQUAT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert squatter.stdout is not None
    assert squatter.stdout.readline() == "taken\n"
    daemon = stage.daemon(QUICK, "--workers=1", netfilter=KERNEL)
    until(lambda: "rescue process has ended" in daemon.log(), "it is reported")
    assert not alive(stage.node)
    assert {ask(stage.client, (VIP, 80), timeout_s=5.0) for _ in range(8)} <= names(*PODS)
    squatter.kill()
    squatter.wait()
    until(lambda: alive(stage.node), "the rescue works")
