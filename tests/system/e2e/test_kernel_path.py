"""The kernel path: what is its own, and what it promises when processes stop, start, die and change their path."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.lab import Daemon, Host, Network
from tests.system.e2e import kernel_state
from tests.system.e2e.full_services import (
    CLIENT,
    EXTERNAL,
    NODE,
    NODE_NAME,
    PROTOCOLS,
    V4,
    V6,
    Whole,
    await_all,
    hear,
    heard,
    pod,
    start_mirrors,
    udp,
)
from tests.system.e2e.stage import (
    KERNEL,
    QUICK,
    TARGET,
    VIP,
    Stage,
    ask,
    ask_often,
    endpoints,
    refused,
    service,
    until,
)
from tests.system.e2e.steady_clients import Crowd
from tests.system.e2e.traffic import Traffic

pytestmark = pytest.mark.netns

GRACE = "--shutdown-grace=5s"
WHOLE = Whole(1)
CLIENTS = [f"10.2.0.{number}" for number in range(101, 121)]


def slots(host: Host, name: str = "tcp_slots4") -> dict[tuple[str, int], set[str]]:
    """The TCP destinations that the kernel leads to endpoints, and the addresses of these."""
    done = host.run(["nft", "-j", "list", "map", "inet", "kubeproxy", name], check=False)
    found: dict[tuple[str, int], set[str]] = {}
    if done.returncode == 0:
        for key, value in json.loads(done.stdout)["nftables"][1]["map"].get("elem", ()):
            address, port, _ = key["concat"]
            found.setdefault((address, port), set()).add(value["concat"][0])
    return found


def await_slots(stage: Stage, *pods: int) -> None:
    """Wait until the kernel leads clients to exactly these pods."""
    wanted = {Network.pod_v4(index) for index in pods}
    until(lambda: slots(stage.node).get((VIP, 80), set()) == wanted, f"the kernel leads to the pods {pods}")


def serve(stage: Stage, *options: str, pods: Sequence[int] = (0, 1, 2), **more: Any) -> Daemon:
    """A daemon with the kernel path, and a Service that answers."""
    stage.write_service(pods)
    daemon = stage.daemon(QUICK, GRACE, "--workers=1", *options, netfilter=KERNEL, **more)
    await_slots(stage, *pods)
    return daemon


def clean(daemon: Daemon) -> None:
    """The daemon runs without an error."""
    assert daemon.process.poll() is None, daemon.log()
    assert " error " not in daemon.log(), daemon.log()
    assert "Traceback" not in daemon.log(), daemon.log()


@contextlib.contextmanager
def held(host: Host, number: int, address: tuple[str, int] = (VIP, 80)) -> Iterator[list[socket.socket]]:
    """Connections that have exchanged a word, and can exchange more."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(host.connect(address)) for _ in range(number)]
        for sock in sockets:
            sock.sendall(b"echo\n")
        exchange(sockets)
        yield sockets


def exchange(sockets: Sequence[socket.socket]) -> None:
    """Every connection echoes a word."""
    for number, sock in enumerate(sockets):
        sock.settimeout(10)
        sock.sendall(b"%05d" % number)
        assert sock.recv(5, socket.MSG_WAITALL) == b"%05d" % number


def peers(stage: Stage, index: int) -> set[str]:
    """The addresses that have connections to a pod's backend."""
    found = set()
    for line in stage.network.pods[index].run(["cat", "/proc/net/tcp"]).stdout.splitlines()[1:]:
        local, remote, state = line.split()[1:4]
        if state == "01" and int(local.split(":")[1], 16) == TARGET:
            found.add(socket.inet_ntoa(bytes.fromhex(remote.split(":")[0])[::-1]))
    return found


def test_endpoints_see_clients_and_get_equal_shares(stage: Stage) -> None:
    daemon = serve(stage, pods=[0, 1, 2, 3])
    for host in (*stage.asking, stage.network.pods[3]):
        counts = ask_often(host, (VIP, 80), 400, at_once=8)
        # Binomial: the deviation of one is 8.7, so four lie within 4.6 deviations in all but one of 60,000 runs.
        assert set(counts) == {f"pod-{index}" for index in range(4)}, host
        assert all(60 <= count <= 140 for count in counts.values()), (host, counts)
    await_slots(stage, 0, 1, 2, 3)  # a busy machine may have taken a pod for a silent one
    with held(stage.client, 40):  # that one pod has none of them happens once in 20,000 times
        assert all(peers(stage, index) == {CLIENT[V4]} for index in range(4))
    clean(daemon)


def test_an_endpoint_that_goes_keeps_its_connections(stage: Stage) -> None:
    daemon = serve(stage, pods=[0, 1])
    with held(stage.client, 16) as sockets:
        assert peers(stage, 0)
        stage.write_service([1])
        await_slots(stage, 1)
        assert ask_often(stage.client, (VIP, 80), 40) == {"pod-1": 40}
        exchange(sockets)
        stage.write_service([])
        stage.await_refusal()
        assert slots(stage.node) == {}
        exchange(sockets)
        stage.write_service([0])
        await_slots(stage, 0)
        assert ask_often(stage.client, (VIP, 80), 10) == {"pod-0": 10}
        stage.remove("web")
        until(lambda: slots(stage.node) == {}, "no slots left")
        exchange(sockets)
    clean(daemon)


@pytest.mark.parametrize("kind", ["takeover", "re-exec"])
def test_an_upgrade_costs_no_connection(stage: Stage, kind: str) -> None:
    first = serve(stage)
    port = kernel_state.redirects(stage.node)[VIP, 80]
    with Crowd(stage.client, (VIP, 80)) as crowd:
        time.sleep(0.5)
        if kind == "takeover":
            stage.daemon(QUICK, GRACE, "--workers=1", netfilter=KERNEL)
        else:
            first.process.send_signal(signal.SIGUSR2)
        until(lambda: kernel_state.redirects(stage.node)[VIP, 80] != port, "the rules are the successor's")
        time.sleep(0.5)
    assert crowd.report.answered > 100
    assert (crowd.report.failures, crowd.report.long_broken) == ([], [])
    await_slots(stage, 0, 1, 2)


def test_everything_killed_and_the_kernel_goes_on(stage: Stage) -> None:
    first = serve(stage)
    with held(stage.client, 8) as sockets, held(stage.node, 8) as own:
        os.killpg(first.process.pid, signal.SIGKILL)
        first.process.wait()
        exchange(sockets)
        exchange(own)
        assert set(ask_often(stage.client, (VIP, 80), 60)) == {"pod-0", "pod-1", "pod-2"}
        stage.write_service([0, 1])
        second = stage.daemon(QUICK, GRACE, "--workers=1", netfilter=KERNEL)
        await_slots(stage, 0, 1)
        assert set(ask_often(stage.client, (VIP, 80), 40)) == {"pod-0", "pod-1"}
        exchange(sockets)
        exchange(own)
    clean(second)


def kept_s(stage: Stage, sock: socket.socket) -> int:
    """For how long the kernel keeps a connection without a packet, in seconds."""
    port = str(sock.getsockname()[1])
    line = stage.node.run(["conntrack", "-L", "-p", "tcp", "--orig-dst", VIP, "--orig-port-src", port]).stdout
    assert "ESTABLISHED" in line
    return int(line.split()[2])


def test_connections_are_kept_for_as_long_as_the_configuration_says(stage: Stage) -> None:
    option = "--conntrack-tcp-timeout-established={}s"
    first = serve(stage, option.format(5000))
    with held(stage.client, 1) as (sock,):
        assert 4900 < kept_s(stage, sock) <= 5000
        second = stage.daemon(QUICK, GRACE, "--workers=1", option.format(9000), netfilter=KERNEL)
        until(lambda: first.process.poll() is not None, "the successor has taken over")
        with held(stage.client, 1) as (other,):
            assert 8900 < kept_s(stage, other) <= 9000
        exchange([sock])
    clean(second)


def test_after_a_stop_the_kernel_goes_on_and_connections_too(stage: Stage) -> None:
    daemon = serve(stage)
    with held(stage.client, 8) as sockets, Traffic(stage.client, pause_s=0.02) as traffic:
        assert daemon.terminate() == 0
        traffic.more()
        assert set(ask_often(stage.node, (VIP, 80), 40)) == {"pod-0", "pod-1", "pod-2"}
        exchange(sockets)
        stage.write_service([0, 1])
        second = stage.daemon(QUICK, GRACE, "--workers=1", netfilter=KERNEL)
        await_slots(stage, 0, 1)
        exchange(sockets)
        traffic.more()
    assert traffic.failures == []
    assert "earlier run's redirects paused" not in second.log()
    assert second.terminate() == 0
    assert second.cleanup().returncode == 0
    assert kernel_state.ours(stage.node) == []


def configure(path: Path, data_path: str, **more: Any) -> None:
    """Write a configuration with this data path."""
    head = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
    periods = {"syncPeriod": "1h", "minSyncPeriod": "20ms", **more}
    path.write_text(yaml.safe_dump({**head, "iptables": periods, "kubeproxy": {"dataPath": data_path}}))


def reload(daemon: Daemon) -> None:
    """Send SIGHUP and wait until it has been carried out."""
    before = daemon.log().count("configuration reloaded")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.log().count("configuration reloaded") > before, "the configuration is reloaded")


def test_sighup_moves_new_connections_only(stage: Stage, config: Path) -> None:
    configure(config, "userspace")
    stage.write_service([0, 1, 2])
    daemon = stage.daemon(f"--config={config}", GRACE, "--workers=1")
    stage.await_answers(0, 1, 2)
    with Traffic(stage.client) as traffic, held(stage.client, 6) as first:
        assert {address for index in range(3) for address in peers(stage, index)}.isdisjoint(CLIENT.values())
        configure(config, "kernel")
        reload(daemon)
        await_slots(stage, 0, 1, 2)
        with held(stage.client, 24) as second:  # that one pod has none of them happens once in 5,000 times
            assert all(CLIENT[V4] in peers(stage, index) for index in range(3))
            configure(config, "userspace")
            reload(daemon)
            until(lambda: slots(stage.node) == {}, "no slots left")
            with held(stage.client, 6) as third:
                for sockets in (first, second, third):
                    exchange(sockets)
                stage.write_service([1])
                until(lambda: set(ask_often(stage.client, (VIP, 80), 20)) == {"pod-1"}, "one endpoint is left")
                exchange(second)
    assert traffic.failures == []
    clean(daemon)


def test_udp_flows_stay_at_an_endpoint_that_serves_on_either_path(stage: Stage, config: Path) -> None:
    start_mirrors(stage)
    configure(config, "kernel")
    stage.write(WHOLE.name, *WHOLE.objects(0, 1))
    daemon = stage.daemon(f"--config={config}", GRACE, "--workers=1")
    await_all(stage, WHOLE, 0, 1)

    def turn(sock: socket.socket) -> str:
        sock.send(b"name")
        return sock.recv(1000).decode().split()[0]

    with contextlib.ExitStack() as stack:

        def some() -> list[socket.socket]:
            places = [(host, WHOLE.address("cluster IP", family)) for host in stage.asking for family in (V4, V6)]
            return [stack.enter_context(udp(*place)) for place in places for _ in range(4)]

        sockets = some()
        before = [turn(sock) for sock in sockets]
        assert set(before) == {"pod-0", "pod-1"}
        configure(config, "userspace")
        reload(daemon)
        until(lambda: slots(stage.node) == {}, "no slots left")
        sockets += (in_user_space := some())
        before += (sessions := [turn(sock) for sock in in_user_space])
        assert set(sessions) == {"pod-0", "pod-1"}
        leaving = pod(0, ready=False, serving=True, terminating=True)
        stage.write(WHOLE.name, *WHOLE.objects(leaving, 1))
        until(lambda: {turn(sock) for sock in some()} == {"pod-1"}, "new clients go to the endpoint that stays")
        assert [turn(sock) for sock in sockets] == before
        stage.write(WHOLE.name, *WHOLE.objects(1))
        until(lambda: "conntrack flows deleted" in daemon.log(), "flows to the removed endpoint are deleted")
        assert {turn(sock) for sock in sockets} == {"pod-1"}
    clean(daemon)


@pytest.mark.parametrize("family", [V4, V6])
def test_an_endpoint_reaches_itself_through_its_service(stage: Stage, family: int) -> None:
    start_mirrors(stage)
    stage.write(WHOLE.name, *WHOLE.objects(0))
    daemon = stage.daemon(QUICK, GRACE, "--workers=1", f"--hostname-override={NODE_NAME}", netfilter=KERNEL)
    await_all(stage, WHOLE, 0)
    for protocol in ("TCP", "UDP"):
        heard = hear(stage.network.pods[0], WHOLE.address("cluster IP", family), protocol)
        assert heard.pod == "pod-0"
        others = hear(stage.network.pods[1], WHOLE.address("cluster IP", family), protocol)
        assert others.client == (Network.pod_v4(1) if family == V4 else Network.pod_v6(1))
    clean(daemon)


@pytest.mark.parametrize("setting", ["--cluster-cidr=10.3.0.0/16", "--masquerade-all"])
def test_clients_of_cluster_addresses_are_masqueraded_as_configured(stage: Stage, setting: str) -> None:
    start_mirrors(stage)
    stage.write(WHOLE.name, *WHOLE.objects(0))
    daemon = stage.daemon(QUICK, GRACE, "--workers=1", setting, netfilter=KERNEL)
    await_all(stage, WHOLE, 0)
    address = WHOLE.address("cluster IP", V4)
    inside = "10.3.0.1" if setting == "--masquerade-all" else Network.pod_v4(1)
    assert hear(stage.client, address, "TCP").client == "10.3.0.1"
    assert hear(stage.network.pods[1], address, "TCP").client == inside
    # The other family has no range: its clients keep their addresses unless all are masqueraded.
    six = hear(stage.client, WHOLE.address("cluster IP", V6), "UDP").client
    assert (six == CLIENT[V6]) is (setting != "--masquerade-all")
    clean(daemon)


def test_what_the_kernel_cannot_lead_is_served_in_user_space(stage: Stage) -> None:
    daemon = serve(stage, pods=[0])
    stage.node.popen(["python3", "-S", "-E", "-c", _GREETER])
    local = endpoints("web", ["127.0.0.1"])
    local["ports"][0]["port"] = 8181
    stage.write("web", service(), local)
    until(lambda: _greeted(stage), "a process of the node answers")
    assert slots(stage.node) == {}
    stage.write_service([0])
    await_slots(stage, 0)
    stage.node.sysctl("net.ipv4.ip_forward", 0)
    try:
        until(lambda: slots(stage.node) == {}, "a node that does not forward has no slots")
        assert ask(stage.client, (VIP, 80)) == "pod-0"
    finally:
        stage.node.sysctl("net.ipv4.ip_forward", 1)
    await_slots(stage, 0)
    clean(daemon)


_GREETER = """
import socket
listener = socket.create_server(("127.0.0.1", 8181))
while True:
    peer, _ = listener.accept()
    peer.recv(100)
    peer.sendall(b"host")
    peer.close()
"""


def _greeted(stage: Stage) -> bool:
    try:
        return ask(stage.client, (VIP, 80), timeout_s=1.0) == "host"
    except OSError:
        return False


def test_iptables_refuses_the_kernel_path_and_serves(stage: Stage) -> None:
    stage.write_service([0, 1])
    daemon = stage.daemon(QUICK, "--data-path=kernel", netfilter="iptables")
    stage.await_answers(0, 1)
    assert "kernel path not possible" in daemon.log()


def test_one_line_says_what_the_kernel_path_needs_and_finds(stage: Stage) -> None:
    def said(*options: str, netfilter: str = "nftables") -> str:
        with stage.daemon(QUICK, *options, netfilter=netfilter) as daemon:
            lines = [line for line in daemon.log().splitlines() if "kernel path asked for" in line]
        return "".join(lines)

    assert said() == "", "nobody asked"
    stage.node.sysctl("net.bridge.bridge-nf-call-ip6tables", 0)
    everything = said("--data-path=auto")
    for part in ('rules="nftables takes them"', 'forwarding="IPv4, IPv6"', "bridges_seen_by_netfilter=IPv4"):
        assert part in everything, everything
    stage.node.sysctl("net.ipv6.conf.all.forwarding", 0)
    try:
        assert "forwarding=IPv4" in said("--data-path=auto")
    finally:
        stage.node.sysctl("net.ipv6.conf.all.forwarding", 1)
        stage.node.sysctl("net.bridge.bridge-nf-call-ip6tables", 1)
    assert 'rules="iptables: ' in said("--data-path=auto", netfilter="iptables")


@pytest.fixture
def many(stage: Stage) -> Iterator[Stage]:
    """A client with many addresses, and a Service with affinity and four endpoints."""
    stage.client.ip(*(f"addr add {client}/24 dev eth0" for client in CLIENTS))
    write_sticky(stage, [0, 1, 2, 3])
    yield stage
    stage.client.ip(*(f"addr del {client}/24 dev eth0" for client in CLIENTS))


def write_sticky(stage: Stage, pods: Sequence[int], timeout_s: int = 10800) -> None:
    """Write the Service with affinity."""
    web = service()
    web["spec"] |= {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": timeout_s}}}
    stage.write("web", web, endpoints("web", pods))


def paired(stage: Stage) -> dict[str, str]:
    """The answering endpoint of each client."""
    found = {}
    for client in CLIENTS:
        with stage.client.make_socket(socket.AF_INET) as sock:
            sock.settimeout(10)
            sock.bind((client, 0))
            sock.connect((VIP, 80))
            sock.sendall(b"name\n")
            found[client] = sock.recv(100).decode()
    return found


def test_affinity_outlives_every_process_and_ends_with_the_endpoint(many: Stage) -> None:
    first = many.daemon(QUICK, GRACE, "--workers=1", netfilter=KERNEL)
    await_slots(many, 0, 1, 2, 3)
    seen = paired(many)
    assert len(set(seen.values())) > 1
    assert paired(many) == seen
    port = kernel_state.redirects(many.node)[VIP, 80]
    first.process.send_signal(signal.SIGUSR2)
    until(lambda: kernel_state.redirects(many.node)[VIP, 80] != port, "the rules are the new program's")
    assert paired(many) == seen
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    assert paired(many) == seen
    second = many.daemon(QUICK, GRACE, "--workers=1", netfilter=KERNEL)
    until(lambda: kernel_state.redirects(many.node)[VIP, 80], "rules")
    await_slots(many, 0, 1, 2, 3)
    assert paired(many) == seen
    gone = seen[CLIENTS[0]]
    left = [index for index in range(4) if f"pod-{index}" != gone]
    write_sticky(many, left)
    await_slots(many, *left)
    until(lambda: "clients choose another endpoint" in second.log(), "clients of the removed endpoint are released")
    after = paired(many)
    assert gone not in after.values()
    assert {client: it for client, it in seen.items() if it != gone} == {
        client: after[client] for client, it in seen.items() if it != gone
    }
    write_sticky(many, range(4))
    await_slots(many, 0, 1, 2, 3)
    assert paired(many) == after
    clean(second)


def test_affinity_slides_and_ends(many: Stage) -> None:
    write_sticky(many, [0, 1, 2, 3], timeout_s=2)
    daemon = many.daemon(QUICK, GRACE, "--workers=1", netfilter=KERNEL)
    await_slots(many, 0, 1, 2, 3)
    seen = paired(many)
    began = time.monotonic()
    until(lambda: paired(many) == seen and time.monotonic() > began + 3, "clients stay longer than the timeout")

    def have_moved() -> bool:
        time.sleep(2.2)  # longer than the timeout without a connection
        return paired(many) != seen

    until(have_moved, "clients choose anew")
    clean(daemon)


def test_a_flushed_table_is_restored_and_refusals_are_at_once(stage: Stage) -> None:
    daemon = serve(stage, "--iptables-sync-period=1h")
    with held(stage.client, 4) as sockets:
        stage.node.run(["nft", "delete", "table", "inet", "kubeproxy"])
        await_slots(stage, 0, 1, 2)
        exchange(sockets)
    stage.write_service([])
    stage.await_refusal()
    assert refused(stage.node, (VIP, 80))
    assert "rules changed by another process" in daemon.log()


def test_a_local_policy_keeps_its_clients_and_pods_use_any_endpoint(stage: Stage) -> None:
    start_mirrors(stage)
    options = (QUICK, GRACE, "--workers=1", "--hostname-override=here", "--cluster-cidr=10.3.0.0/16,fd00:3::/32")
    stage.write(
        WHOLE.name, *WHOLE.objects(pod(0, node="here"), pod(1, node="elsewhere"), externalTrafficPolicy="Local")
    )
    daemon = stage.daemon(*options, netfilter=KERNEL)
    await_all(stage, WHOLE, 0, 1)
    for family in (V4, V6):
        for kind in ("load balancer IP", "external IP", "node port"):
            address = WHOLE.address(kind, family)
            for protocol in ("TCP", "UDP"):
                assert {hear(stage.client, address, protocol) for _ in range(4)} == {("pod-0", CLIENT[family])}
                inner = [hear(stage.network.pods[2], address, protocol) for _ in range(20)]
                assert {it.pod for it in inner} == {"pod-0", "pod-1"}
                assert {it.client for it in inner} == {Network.pod_v4(2) if family == V4 else Network.pod_v6(2)}
                own = [hear(stage.node, address, protocol) for _ in range(20)]
                assert {it.pod for it in own} == {"pod-0", "pod-1"}
                assert not {it.client for it in own} & {address[0], *NODE.values()}, "masqueraded"
    clean(daemon)


@pytest.mark.parametrize(
    ("place", "policy", "local", "anywhere"),
    [
        ("client", "externalTrafficPolicy", EXTERNAL, ("cluster IP",)),
        ("pod", "internalTrafficPolicy", ("cluster IP",), EXTERNAL),
        ("node", "internalTrafficPolicy", ("cluster IP",), EXTERNAL),
    ],
    ids=["outside", "pod", "node"],
)
def test_affinity_leads_no_client_past_a_local_policy(
    stage: Stage, place: str, policy: str, local: Sequence[str], anywhere: Sequence[str]
) -> None:
    """A client that stays with an endpoint elsewhere comes to one of this node where the policy asks for it."""
    start_mirrors(stage)
    host = {"client": stage.client, "pod": stage.network.pods[2], "node": stage.node}[place]
    spec: dict[str, Any] = {policy: "Local", "sessionAffinity": "ClientIP"}
    options = (QUICK, GRACE, "--workers=1", "--hostname-override=here", "--cluster-cidr=10.3.0.0/16,fd00:3::/32")
    stage.write(WHOLE.name, *WHOLE.objects(pod(1, node="elsewhere"), **spec))
    daemon = stage.daemon(*options, netfilter=KERNEL)

    def pods(kinds: Sequence[str]) -> set[str | None]:
        said = [
            heard(host, WHOLE.address(kind, family), protocol)
            for kind in kinds
            for family in (V4, V6)
            for protocol in PROTOCOLS
        ]
        return {None if it is None else it.pod for it in said}

    until(lambda: pods(anywhere) == {"pod-1"}, "clients are led to the endpoint elsewhere")
    stage.write(WHOLE.name, *WHOLE.objects(pod(0, node="here"), pod(1, node="elsewhere"), **spec))
    until(lambda: pods(local) == {"pod-0"}, "clients under the policy are led to the endpoint of this node")
    assert pods(anywhere) == {"pod-1"}, "they stay with their endpoint elsewhere"
    assert pods(local) == {"pod-0"}
    stage.write(WHOLE.name, *WHOLE.objects(pod(1, node="elsewhere"), **spec))
    until(lambda: pods(local) == {None}, "no endpoint is left on this node")
    stage.write(WHOLE.name)
    clean(daemon)


def test_pods_stay_with_any_endpoint_at_addresses_with_a_local_policy(stage: Stage) -> None:
    start_mirrors(stage)
    options = (QUICK, GRACE, "--workers=1", "--hostname-override=here", "--cluster-cidr=10.3.0.0/16,fd00:3::/32")
    spec: dict[str, Any] = {"externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"}
    stage.write(WHOLE.name, *WHOLE.objects(pod(1, node="elsewhere"), **spec))
    daemon = stage.daemon(*options, netfilter=KERNEL)
    inside = (stage.network.pods[2], stage.node)
    places = [
        (WHOLE.address(kind, family), protocol) for kind in EXTERNAL for family in (V4, V6) for protocol in PROTOCOLS
    ]

    def pods(hosts: Sequence[Host]) -> set[str | None]:
        said = [heard(host, address, protocol) for host in hosts for address, protocol in places]
        return {None if it is None else it.pod for it in said}

    until(lambda: pods(inside) == {"pod-1"}, "clients inside are led to the endpoint elsewhere")
    stage.write(WHOLE.name, *WHOLE.objects(pod(0, node="here"), pod(1, node="elsewhere"), **spec))
    until(lambda: pods([stage.client]) == {"pod-0"}, "clients outside are led to the endpoint of this node")
    assert pods(inside) == {"pod-1"}, "clients inside stay"
    clean(daemon)
