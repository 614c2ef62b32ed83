"""Open connections, bytes and the access log of the kernel path, against connection tracking itself."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from kubeproxy.model import Target, parse_address
from tests.support.lab import Daemon, Host, Network
from tests.support.lab.daemon import METRICS
from tests.system.e2e.full_services import CLIENT, MIRROR, NODE_NAME, V4, V6, Whole, await_all, start_mirrors, udp
from tests.system.e2e.stage import KERNEL, QUICK, TARGET, VIP, Object, Stage, ask, endpoints, service, until
from tests.system.e2e.test_kernel_path import (
    GRACE,
    await_slots,
    clean,
    configure,
    exchange,
    held,
    reload,
    serve,
    slots,
    write_sticky,
)
from tests.system.e2e.test_observability import Scrape, lines

pytestmark = pytest.mark.netns

WHOLE = Whole(2)
COUNTING = {"nf_conntrack_acct": 1, "nf_conntrack_timestamp": 1}
OPEN, BYTES = "kubeproxy_kernel_connections_open", "kubeproxy_kernel_bytes_total"


@pytest.fixture(autouse=True)
def counting(stage: Stage) -> Iterator[None]:
    """The node counts bytes, has the times of connections, and forgets UDP flows soon."""
    wanted = {**COUNTING, "nf_conntrack_udp_timeout": 5, "nf_conntrack_udp_timeout_stream": 5}
    before = {name: stage.node.run(["cat", f"/proc/sys/net/netfilter/{name}"]).stdout.strip() for name in wanted}
    for name, value in wanted.items():
        stage.node.sysctl(f"net.netfilter.{name}", value)
    yield
    for name, earlier in before.items():
        stage.node.sysctl(f"net.netfilter.{name}", earlier)


def tracked(host: Host, *match: str) -> list[str]:
    """The lines of `conntrack -L` with all of these words."""
    listed = host.run(["conntrack", "-L"], check=False).stdout.splitlines()
    listed += host.run(["conntrack", "-L", "-f", "ipv6"], check=False).stdout.splitlines()
    return [line for line in listed if set(match) <= set(line.split())]


def kernel_bytes(line: str) -> tuple[int, int]:
    """Bytes from the client and to it, as the kernel counts them."""
    sent, received = re.findall(r"bytes=(\d+)", line)
    return int(sent), int(received)


def await_sample(daemon: Daemon, name: str, value: float, **labels: str) -> None:
    """Wait until a metric has this value."""

    def seen() -> bool:
        scrape = Scrape(daemon)
        return scrape.has(name, **labels) and scrape(name, **labels) == value

    until(seen, f"{name} {labels} is {value}")


def forget(host: Host) -> None:
    """Have the kernel forget ended connections and expired flows, which may take it three minutes."""
    for family in ("ipv4", "ipv6"):
        for state in ("TIME_WAIT", "CLOSE"):
            host.run(["conntrack", "-D", "-f", family, "-p", "tcp", "--state", state], check=False)
    tracked(host)


def await_lines(stage: Stage, path: Path, number: int, **fields: str) -> list[dict[str, str]]:
    """Wait for so many lines of the kernel path with these fields; there must not be more."""

    def found() -> list[dict[str, str]]:
        wanted = {"path": "kernel", **fields}
        return [line for line in lines(path) if wanted.items() <= line.items()]

    def enough() -> bool:
        forget(stage.node)
        return len(found()) >= number

    try:
        until(enough, f"{number} lines with {fields}")
    except AssertionError as error:
        raise AssertionError(f"{error}; {len(found())} lines: {found()}; {tracked(stage.node)}") from None
    assert len(found()) == number, found()
    return found()


def test_a_connection_is_open_with_its_bytes_and_has_a_line_at_its_end(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    daemon = serve(stage, f"--access-log={path}", pods=[0])
    with held(stage.client, 1) as sockets:
        port = sockets[0].getsockname()[1]
        for _ in range(3):
            exchange(sockets)
        await_sample(daemon, OPEN, 1, service="web", port="http")

        def counted() -> tuple[int, int] | None:
            """The bytes, when metrics and kernel agree: a late acknowledgement may come between the two."""
            scrape = Scrape(daemon)
            (flow,) = tracked(stage.node, f"sport={port}", f"dst={VIP}")
            ways = [scrape(BYTES, service="web", direction=way) for way in ("in", "out")]
            return kernel_bytes(flow) if ways == list(kernel_bytes(flow)) else None

        expected = until(counted, "metrics have the kernel's bytes")
        assert expected is not None
        assert Scrape(daemon)("kubeproxy_kernel_bytes_counted") == 1
        text = daemon.get("/statusz?service=default/web", address=METRICS).body
        assert "  by kernel   1 open, " in text
        assert "  traffic     1 open, 1 accepted, 0 failed, " in text
        head = daemon.get("/statusz", address=METRICS).body
        assert "flows       1 open by the kernel; bytes are counted" in head
    (line,) = await_lines(stage, path, 1)
    assert line["service"] == "default/web"
    assert line["client"] == f"{CLIENT[V4]}:{port}"
    assert line["endpoint"] == f"{Network.pod_v4(0)}:{TARGET}"
    assert (line["end"], line["attempts"], line["dial_s"]) == ("closed", "-", "-")
    assert int(line["bytes_in"]) > expected[0]
    assert int(line["bytes_out"]) > expected[1]
    assert float(line["duration_s"]) > 0
    await_sample(daemon, OPEN, 0, service="web")
    for direction in ("in", "out"):
        await_sample(daemon, BYTES, int(line[f"bytes_{direction}"]), service="web", direction=direction)
    clean(daemon)


def test_ends_make_bytes_exact_and_name_the_outcome(stage: Stage, tmp_path: Path) -> None:
    path, dead = tmp_path / "access.log", Network.pod_v4(0)
    daemon = serve(stage, f"--access-log={path}", pods=[0, 1])
    for _ in range(10):
        ask(stage.client, (VIP, 80))
        ask(stage.node, (VIP, 80))
    for _ in range(5):
        with stage.client.connect((VIP, 80)) as sock:
            sock.sendall(b"name\n")
            assert sock.recv(100)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    found = await_lines(stage, path, 25)
    assert {line["end"] for line in found} <= {"closed", "reset"}
    assert sum(line["end"] == "reset" for line in found) >= 1
    assert {line["endpoint"].split(":")[0] for line in found} == {Network.pod_v4(0), Network.pod_v4(1)}
    for direction in ("in", "out"):
        total = sum(int(line[f"bytes_{direction}"]) for line in found)
        await_sample(daemon, BYTES, total, service="web", direction=direction)
    # A refused client: nothing listens at that port of the pod.
    stage.write("web", *_service_to(dead, 9))

    def has_refused() -> bool:
        with contextlib.suppress(OSError):
            ask(stage.client, (VIP, 80), timeout_s=2.0)
        return any(line["end"] == "refused" for line in lines(path))

    until(has_refused, "a line about a refused client")
    clean(daemon)


def _service_to(address: str, port: int) -> list[Object]:
    slice_ = endpoints("web", [address])
    slice_["ports"][0]["port"] = port
    return [service(), slice_]


def test_translations_of_others_and_the_userspace_path_do_not_count(stage: Stage, tmp_path: Path, config: Path) -> None:
    path = tmp_path / "access.log"
    configure(config, "kernel")
    stage.write_service([0])
    daemon = stage.daemon(f"--config={config}", GRACE, "--workers=1", f"--access-log={path}", netfilter="nftables")
    await_slots(stage, 0)
    table = "table ip counted { chain prerouting { type nat hook prerouting priority -150;"
    rules = [
        f"ip daddr 10.96.99.9 tcp dport 80 dnat to {Network.pod_v4(0)}:{TARGET};",  # an address of no Service
        f"ip daddr {VIP} tcp dport 80 ip saddr 10.2.0.77 dnat to {Network.pod_v4(1)}:{TARGET};",  # no endpoint of it
    ]
    stage.node.run(["nft", "-f", "-"], input=f"{table} {' '.join(rules)} }}; }}\n")
    stage.client.ip("addr add 10.2.0.77/24 dev eth0")
    try:
        with ExitStack() as stack:
            strange = stack.enter_context(stage.client.connect(("10.96.99.9", 80)))
            stolen = stack.enter_context(stage.client.make_socket())
            stolen.bind(("10.2.0.77", 0))
            stolen.settimeout(10)
            stolen.connect((VIP, 80))
            for sock, pod in ((strange, b"pod-0"), (stolen, b"pod-1")):
                sock.sendall(b"name\n")
                assert sock.recv(100) == pod
            ours = stack.enter_context(held(stage.client, 1))
            exchange(ours)
            await_sample(daemon, OPEN, 1, service="web")
            configure(config, "userspace")
            reload(daemon)
            until(lambda: not slots(stage.node), "no slots left")
            stack.enter_context(held(stage.client, 2))
            exchange(ours)
            await_sample(daemon, "kubeproxy_connections_active", 2, service="web")
            await_sample(daemon, OPEN, 1, service="web")
        (line,) = await_lines(stage, path, 1)
        assert line["endpoint"] == f"{Network.pod_v4(0)}:{TARGET}"
    finally:
        stage.client.ip("addr del 10.2.0.77/24 dev eth0")
        stage.node.run(["nft", "delete", "table", "ip", "counted"])


@pytest.mark.parametrize("family", [V4, V6])
def test_every_kind_of_address_and_udp_and_hairpin(stage: Stage, tmp_path: Path, family: int) -> None:
    path = tmp_path / "access.log"
    start_mirrors(stage)
    stage.write(WHOLE.name, *WHOLE.objects(0))
    options = (QUICK, GRACE, "--workers=1", f"--hostname-override={NODE_NAME}", f"--access-log={path}")
    daemon = stage.daemon(*options, netfilter=KERNEL)
    await_all(stage, WHOLE, 0)
    with ExitStack() as stack:
        ends: dict[str, str] = {}
        for host in (stage.client, stage.node, stage.network.pods[0]):
            for kind in ("cluster IP", "node port", "external IP", "load balancer IP"):
                address = WHOLE.address(kind, family)
                if host is stage.network.pods[0] and kind != "cluster IP":
                    continue
                tcp = stack.enter_context(
                    _connected(host, address, socket.AF_INET if family == V4 else socket.AF_INET6)
                )
                sock = stack.enter_context(udp(host, address))
                sock.send(b"name")
                assert sock.recv(1000)
                for protocol, its in (("TCP", tcp), ("UDP", sock)):
                    name, port = its.getsockname()[:2]
                    ends[f"[{name}]:{port}" if family == V6 else f"{name}:{port}"] = protocol
        labels = {"service": WHOLE.name}
        tcp_open = sum(protocol == "TCP" for protocol in ends.values())

        # UDP first: the kernel forgets these flows after five seconds here. A port has no sample until the first of its
        # flows is counted.
        def counted() -> bool:
            scrape = Scrape(daemon)
            udp_labels = {"port": "udp", **labels}
            return scrape.has(OPEN, **udp_labels) and scrape(OPEN, **udp_labels) >= len(ends) - tcp_open

        until(counted, "UDP flows are counted")
        await_sample(daemon, OPEN, tcp_open, port="tcp", **labels)
        for port in ("tcp", "udp"):
            assert Scrape(daemon)(BYTES, port=port, **labels) > 0

    def all_ended() -> bool:
        forget(stage.node)
        return ends.keys() <= {line["client"] for line in lines(path)}

    until(all_ended, "a line for each")
    target = str(Target(parse_address(Network.pod_v4(0) if family == V4 else Network.pod_v6(0)), MIRROR))
    for line in lines(path):
        if ends.get(line["client"]) == line["protocol"]:
            assert (line["endpoint"], line["port"]) == (target, line["protocol"].lower())
            assert line["end"] == ("closed" if line["protocol"] == "TCP" else "idle"), line
    clean(daemon)


@contextmanager
def _connected(host: Host, address: tuple[str, int], family: int) -> Iterator[socket.socket]:
    with host.make_socket(family) as sock:
        sock.settimeout(10)
        sock.connect(address)
        assert sock.recv(1000)  # the mirror answers before it has read, and would reset what it has not
        yield sock


def test_with_affinity_and_after_the_endpoint_has_gone(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    write_sticky(stage, [0, 1])
    daemon = stage.daemon(QUICK, GRACE, "--workers=1", f"--access-log={path}", netfilter=KERNEL)
    await_slots(stage, 0, 1)
    with held(stage.client, 3) as sockets:
        await_sample(daemon, OPEN, 3, service="web")
        before = Scrape(daemon)(BYTES, service="web")
        write_sticky(stage, [2])
        await_slots(stage, 2)
        exchange(sockets)
        until(lambda: Scrape(daemon)(BYTES, service="web") > before, "bytes to the removed endpoint count")
        await_sample(daemon, OPEN, 3, service="web")
    await_lines(stage, path, 3, end="closed")
    clean(daemon)


def test_without_accounting_the_status_says_so_and_lines_have_no_bytes(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    for name in COUNTING:
        stage.node.sysctl(f"net.netfilter.{name}", 0)
    daemon = serve(stage, f"--access-log={path}", pods=[0])
    with held(stage.client, 2):
        await_sample(daemon, OPEN, 2, service="web")
        scrape = Scrape(daemon)
        assert scrape("kubeproxy_kernel_bytes_counted") == 0
        assert not scrape.has(BYTES)
        why = "bytes are not counted: net.netfilter.nf_conntrack_acct is not 1"
        assert f"flows       2 open by the kernel; {why}" in daemon.get("/statusz", address=METRICS).body
        text = daemon.get("/statusz?service=default/web", address=METRICS).body
        assert f"by kernel   2 open; {why}" in text
    for line in await_lines(stage, path, 2):
        assert (line["bytes_in"], line["bytes_out"], line["duration_s"]) == ("-", "-", "-")
        assert line["end"] == "closed"


def test_the_subscription_follows_the_setting_and_a_takeover(stage: Stage, tmp_path: Path, config: Path) -> None:
    path = tmp_path / "access.log"
    configure(config, "kernel")
    stage.write_service([0])
    first = stage.daemon(f"--config={config}", GRACE, "--workers=1")
    await_slots(stage, 0)
    ask(stage.client, (VIP, 80))
    assert not _follows(first)
    _log_to(config, path)
    reload(first)
    until(lambda: _follows(first), "the daemon follows ends")
    ask(stage.client, (VIP, 80))
    await_lines(stage, path, 1)
    with held(stage.client, 5):
        stage.daemon(f"--config={config}", GRACE, "--workers=1")
        until(lambda: first.process.poll() is not None, "the first one has ended")
    await_lines(stage, path, 6)
    second = stage.running[-1]
    second.process.send_signal(signal.SIGUSR2)
    until(lambda: second.log().count("kubeproxy starts") == 2, "it runs the new program")
    until(lambda: _follows(second), "the new program follows ends")
    ask(stage.client, (VIP, 80))
    await_lines(stage, path, 7)
    configure(config, "kernel")
    reload(second)
    until(lambda: not _follows(second), "the ends are not wanted any more")
    clean(second)


def _log_to(config: Path, path: Path) -> None:
    whole = yaml.safe_load(config.read_text())
    whole["kubeproxy"]["accessLog"] = str(path)
    config.write_text(yaml.safe_dump(whole))


def _follows(daemon: Daemon) -> bool:
    """Whether the process has a subscription to the ends of flows: group 3 of NETLINK_NETFILTER."""
    with daemon.host.entered():
        rows = [line.split() for line in Path("/proc/thread-self/net/netlink").read_text().splitlines()[1:]]
    return any(protocol == "12" and int(groups, 16) & 1 << 2 for _, protocol, _, groups, *_ in rows)
