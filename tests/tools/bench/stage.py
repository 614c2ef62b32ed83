"""The network of one peer: client host, node, and a host with the backends."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.lab import Host, make_network
from tests.tools.bench import traffic
from tests.tools.bench.cpu_pinning import Cores, pinned

HTTP, BULK, ECHO, SCHEDULED = 8080, 9000, 7000, 8090
"""The ports that the backends serve: small HTTP answers; bytes without end; datagrams, answered with themselves; what
the measures of schedulers serve there."""

BACKENDS = ("10.3.0.2", "10.3.0.3", "10.3.0.4", "10.3.0.5")
"""The backends' addresses: four endpoints, all on one host."""

# HAProxy's own responder: as fast as nginx's, several times as fast as any proxy on one core, and installed anyway.
# Its answer is the destination address of the request.
_RESPONDER = """\
global
    nbthread {threads}
    maxconn 8000
defaults
    mode http
    timeout client 10m
    timeout server 10m
    timeout connect 5s
frontend responder
    bind 0.0.0.0:{port} backlog 4096
    http-request return status 200 content-type text/plain {body}
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """The hosts, and a directory for files. The client reaches service addresses through the node."""

    client: Host
    node: Host
    backends: Host
    cores: Cores
    directory: Path
    responder: int
    """The process that answers HTTP."""


@contextmanager
def make_stage(name: str, cores: Cores, *, everywhere: Sequence[str] = ()) -> Iterator[Stage]:
    """Build a stage with serving backends, and remove it afterwards. With `everywhere`, the backends have all
    addresses of these networks, too, and HTTP answers contain the destination address."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix=f"kubeproxy-bench-{name}-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        network = stack.enter_context(make_network(pods=1))
        client, node, (pod,) = network.client, network.node, network.pods
        pod.ip(*(f"addr add {address}/24 dev eth0" for address in BACKENDS[1:]))
        for net in everywhere:
            pod.ip(f"route add local {net} dev lo")
            node.ip(f"route add {net} via {BACKENDS[0]}")
        for host in (client, node, pod):
            # Thousands of connections a second must not run out of ports or queues.
            host.sysctl("net.ipv4.ip_local_port_range", "10240 65535")
            host.sysctl("net.core.somaxconn", 4096)
            host.sysctl("net.ipv4.tcp_max_syn_backlog", 8192)
        config = directory / "responder.cfg"
        body = "lf-string %[dst]" if everywhere else "string ok"
        config.write_text(_RESPONDER.format(threads=len(cores.load), port=HTTP, body=body))
        responder = pod.popen(pinned(cores.load, "haproxy", "-db", "-q", "-f", str(config)))
        pod.popen(pinned(cores.load, *traffic.program("source", str(BULK))))
        for address in BACKENDS:
            pod.popen(pinned(cores.load, *traffic.program("echo", address, str(ECHO))))
        for port in (HTTP, BULK):
            wait_for(client, (BACKENDS[0], port))
        yield Stage(client, node, pod, cores, directory, responder.pid)


def wait_for(host: Host, address: tuple[str, int], within_s: float = 10.0) -> None:
    """Wait for an answer from `address` to `host`; OSError when none comes in time."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            with host.connect(address, timeout=1.0) as connection:
                connection.sendall(traffic.QUESTION)
                if connection.recv(1):
                    return
            raise ConnectionAbortedError(f"{address}: closed without an answer")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
