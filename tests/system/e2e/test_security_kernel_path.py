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
from pathlib import Path

import pytest

from kubeproxy.rescue.packets import Side, checksum, datagram
from tests.support.lab import Daemon, Host, Network
from tests.support.lab.daemon import METRICS
from tests.system.e2e.full_services import CLIENT, MIRROR, V4, Whole, await_all, start_mirrors, udp
from tests.system.e2e.stage import KERNEL, QUICK, TARGET, VIP, Stage, ask, endpoints, service, until
from tests.system.e2e.test_kernel_path import slots
from tests.system.e2e.test_rescue import PODS, alive, endpoints_of, names, rescue_pids, spread_over, start

pytestmark = pytest.mark.netns

WHOLE = Whole(1)


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


def knock(host: Host, timeout_s: float = 2.0) -> str:
    """The name of the pod that answers, or of the error."""
    try:
        return ask(host, (VIP, 80), timeout_s=timeout_s)
    except OSError as error:
        return type(error).__name__


def ejections(daemon: Daemon) -> int:
    """How often the rescue has ejected an endpoint."""
    return daemon.log().count("endpoint ejected")


def test_a_client_that_a_policy_forbids_is_not_served_by_way_of_the_node(stage: Stage) -> None:
    """Its endpoints are silent to it, and answer the node: nothing may dial them in its place."""
    daemon = start(stage)
    with policies(stage, f"ip saddr {CLIENT[V4]}"):
        until(lambda: knock(stage.client) and ejections(daemon), "silence is noticed")
        assert {knock(stage.client, 4.0) for _ in range(4)} == {"TimeoutError"}
        assert spread_over(stage.node), "no client goes to user space"
        # They are back, for others, and stay while it goes on.
        until(lambda: spread_over(stage.node) == endpoints_of(*PODS), "all endpoints have slots")
        before = ejections(daemon)
        assert {knock(stage.client, 3.0) for _ in range(3)} == {"TimeoutError"}
        assert ejections(daemon) == before
        assert knock(stage.node) in names(*PODS)
    until(lambda: knock(stage.client) in names(*PODS), "it is served when the policy is gone")


def test_a_client_that_a_policy_forbids_takes_no_endpoint_from_others(stage: Stage) -> None:
    """The policy forbids the node, too, so no dial succeeds. No other traffic shows that they live."""
    daemon = start(stage)
    permitted = stage.network.pods[3]
    with policies(stage, f"ip saddr {{ {CLIENT[V4]}, 10.3.0.1, 10.3.1.1, 10.3.2.1, 10.3.3.1 }} tcp dport {TARGET}"):
        for _ in range(4):
            assert knock(stage.client, 2.0) == "TimeoutError"
        until(lambda: ejections(daemon) >= len(PODS), "all endpoints are found silent")
        assert {knock(permitted, 5.0) for _ in range(12)} <= names(*PODS)


@pytest.fixture
def mirrors(stage: Stage) -> Stage:
    """Pods that answer datagrams with their names and the client's address."""
    start_mirrors(stage)
    return stage


def unreachable(client: tuple[str, int], endpoint: tuple[str, int], payload: bytes, *, code: int = 3) -> bytes:
    """A forged ICMP error about a datagram of a client to an endpoint, from its IPv4 header on."""
    quoted = datagram(_side(client), _side(endpoint), payload)
    error = bytearray(struct.pack("!BBHI", 3, code, 0, 0) + quoted)
    struct.pack_into("!H", error, 2, checksum(bytes(error)))
    # Any router may be its sender.
    return ip_header(socket.IPPROTO_ICMP, CLIENT[V4], client[0], len(error)) + bytes(error)


def ip_header(protocol: int, source: str, destination: str, length: int) -> bytes:
    """An IPv4 header with its checksum."""
    header = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, protocol, 0))
    header += socket.inet_aton(source) + socket.inet_aton(destination)
    struct.pack_into("!H", header, 10, checksum(bytes(header)))
    return bytes(header)


def _side(address: tuple[str, int]) -> Side:
    return Side(socket.inet_aton(address[0]), address[1])


def send_by_node(stage: Stage, packet: bytes) -> None:
    """Send a packet from the client's host to the node's link address, whatever its destination."""
    link = json.loads(stage.node.ip("-j link show dev to-client"))[0]["address"]
    own = json.loads(stage.client.ip("-j link show dev eth0"))[0]["address"]
    frame = bytes.fromhex(link.replace(":", "") + own.replace(":", "")) + b"\x08\x00" + packet
    with stage.client.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.bind(("eth0", 0))
        sock.send(frame)


def test_a_forged_error_ends_no_sessions_and_sends_nothing_in_a_clients_name(mirrors: Stage) -> None:
    """The attacker forges an error about its own flow. Without a confirmation it ejected the endpoint for all, ended
    all sessions with it, and had the payload sent to another one."""
    stage = mirrors
    stage.write(WHOLE.name, *WHOLE.objects(0, 1))
    daemon = stage.daemon(QUICK, "--workers=1", netfilter=KERNEL)
    await_all(stage, WHOLE, 0, 1)
    until(lambda: alive(stage.node), "the rescue works")
    address = WHOLE.address("cluster IP", V4)
    with ExitStack() as stack:
        sessions = [stack.enter_context(udp(stage.node, address)) for _ in range(8)]
        before = [turn(session) for session in sessions]
        assert set(before) == {"pod-0", "pod-1"}
        attacker = stack.enter_context(udp(stage.client, address))
        pod = int(turn(attacker).removeprefix("pod-"))
        endpoint = (Network.pod_v4(pod), MIRROR)
        for code in (0, 1, 3, 13):
            send_by_node(stage, unreachable(attacker.getsockname(), endpoint, b"forged", code=code))
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


def syn(source: tuple[str, int], destination: tuple[str, int], sequence: int) -> bytes:
    """A SYN from its IPv4 header on."""
    (client, port), (service, service_port) = source, destination
    header = struct.pack("!HHIIBBHHH", port, service_port, sequence, 0, 5 << 4, 0x02, 65535, 0, 0)
    pseudo = socket.inet_aton(client) + socket.inet_aton(service) + struct.pack("!II", len(header), socket.IPPROTO_TCP)
    body = bytearray(header)
    struct.pack_into("!H", body, 16, checksum(pseudo + header))
    return ip_header(socket.IPPROTO_TCP, client, service, len(body)) + bytes(body)


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


OTHER_VIP = "10.96.0.99"


@pytest.mark.parametrize("source", [CLIENT[V4], "10.2.0.1", "10.3.2.2"], ids=["its own", "the node's", "a pod's"])
def test_what_the_node_has_dropped_is_not_sent_in_place_of_what_was_refused(stage: Stage, source: str) -> None:
    """A packet to another Service gets the sequence number of one that an endpoint of the attacker's refuses.

    The node drops that packet: by a policy, or for its source."""
    stage.write("other", service("other", OTHER_VIP), endpoints("other", [1]))
    daemon = start(stage)
    stage.write_service((0, 2, 3))
    others = {Network.pod_v4(index) for index in (0, 2, 3)}
    until(lambda: slots(stage.node).get((VIP, 80)) == others, "the attacker's Service has other pods")
    rule = f"ip saddr {source} ip daddr {Network.pod_v4(1)} drop"
    stage.node.run(
        [
            "nft",
            "add table ip strict; add chain ip strict c { type filter hook forward priority 0; }; "
            f"add rule ip strict c {rule}",
        ]
    )
    try:
        with (
            policies(stage, f"ip saddr {CLIENT[V4]} tcp flags syn", "reject with tcp reset"),
            counting(stage.network.pods[1], f"ip saddr {source} tcp sport 40002"),
            stage.client.entered(),
            socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw,
        ):
            for turn_number in range(3):
                sequence = 0x10000000 + turn_number
                before = reports(daemon, "refused")
                raw.sendto(syn((CLIENT[V4], 40010 + turn_number), (VIP, 80), sequence), (VIP, 0))
                raw.sendto(syn((source, 40002), (OTHER_VIP, 80), sequence), (OTHER_VIP, 0))
                until(
                    lambda: counted(stage.network.pods[1]) or reports(daemon, "refused") >= before + 4,  # noqa: B023
                    "one of the two is sent again and again",
                )
            assert counted(stage.network.pods[1]) == 0, "what the node has dropped has arrived"
    finally:
        stage.node.run(["nft", "delete table ip strict"])


def test_the_rescue_process_holds_what_the_documents_say(stage: Stage) -> None:
    """No capability, a filter of system calls, and no descriptor but its packet log, raw sockets and channel."""
    daemon = start(stage)
    (pid,) = rescue_pids(daemon)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert {status[key] for key in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    # The control process has given up the right to remove more; nothing can be executed that would gain by it.
    assert int(status["CapBnd"], 16) & ~0x3402 == 0
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    held = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = [each for each in held if each.startswith("socket:")]
    others = {each for each in held if not each.startswith("socket:")} - {str(daemon.log_path), "/dev/null"}
    assert len(sockets) == 4, held
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
    assert {knock(stage.client, 5.0) for _ in range(8)} <= names(*PODS)
    squatter.kill()
    squatter.wait()
    until(lambda: alive(stage.node), "the rescue works")
