"""The environment of a test: a node, a client in front of it, a backend in each pod, a directory of manifests."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tests.support.lab import Daemon, Host, Network, PodLinks, make_network, write_manifest
from tests.system.e2e import backend, kernel_state
from tests.system.e2e.backend import CHUNK, noise

T = TypeVar("T")
Object = dict[str, Any]

TARGET = 8080
"""The port of every backend."""
VIP = "10.96.0.10"
KERNEL = "kernel"
"""The kernel path of nftables, where a test names an adapter."""
TURNS = 8
"""How often each endpoint should answer in a count of answers: every worker has its own round robin."""
QUICK = "--iptables-min-sync-period=20ms"
"""Changes take effect faster than by default, so that the tests are fast, too."""


def until(condition: Callable[[], T], what: str, *, within_s: float = 40.0) -> T:
    """Wait for a true result of `condition` and return it. AssertionError if there is none in time."""
    deadline = time.monotonic() + within_s
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what} (seen: {seen!r})"
        time.sleep(0.02)
    return seen


def service(
    name: str = "web",
    vip: str = VIP,
    ports: Mapping[str, int] | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
    **more: Any,
) -> Object:
    """A Service: `ports` is name -> port; `more` are fields beside its spec."""
    listed = [{"name": port, "port": number, "targetPort": TARGET} for port, number in (ports or {"http": 80}).items()]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default", **(metadata or {})},
        "spec": {"clusterIP": vip, "clusterIPs": [vip], "ports": listed},
        **more,
    }


def endpoints(name: str, pods: Sequence[int | str], ports: Sequence[str] = ("http",)) -> Object:
    """An EndpointSlice with pods by number, or by address."""
    addresses = [Network.pod_v4(pod) if isinstance(pod, int) else pod for pod in pods]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": port, "port": TARGET, "protocol": "TCP"} for port in ports],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
    }


def ask(host: Host, address: tuple[str, int], line: str = "name", *, timeout_s: float = 10.0) -> str:
    """Send one line to a service on a new connection and return the whole answer. OSError if there is none."""
    with host.connect(address, timeout=timeout_s) as sock:
        sock.sendall(f"{line}\n".encode())
        said = b""
        while data := sock.recv(CHUNK):
            said += data
    return said.decode()


def ask_often(
    host: Host, address: tuple[str, int], times: int, *, at_once: int = 1, timeout_s: float = 10.0
) -> Counter[str]:
    """Ask `count` times; count the answers by name."""
    with ThreadPoolExecutor(at_once) as pool:
        return Counter(pool.map(lambda _: ask(host, address, timeout_s=timeout_s), range(times)))


def exchange(host: Host, address: tuple[str, int], size: int, seed: str) -> None:
    """Send `size` bytes each way at once, with a half-close in the middle. AssertionError if a byte differs."""
    pieces = [(start, min(CHUNK, size - start)) for start in range(0, size, CHUNK)]
    expected, said, heard = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for start, length in pieces:
        expected.update(noise(length, f"{seed} {start}"))
    with host.connect(address, timeout=30) as sock:
        sock.sendall(f"both {size} {seed}\n".encode())

        def say() -> None:
            for start, length in pieces:
                data = noise(length, f"mine {seed} {start}")
                said.update(data)
                sock.sendall(data)
            sock.shutdown(1)

        saying = threading.Thread(target=say)
        saying.start()
        left, tail = size, b""
        while data := sock.recv(CHUNK):
            heard.update(data[:left])
            tail += data[left:]
            left -= min(left, len(data))
        saying.join()
    assert left == 0
    assert heard.digest() == expected.digest()
    assert tail == said.digest()


@dataclass(slots=True)
class Stage:
    """All hosts, and the manifest directory of the daemons."""

    network: Network
    manifests: Path
    running: list[Daemon] = field(default_factory=list)
    backends: dict[int, subprocess.Popen[Any]] = field(default_factory=dict)
    """The backend of each pod."""

    @property
    def client(self) -> Host:
        """A host in front of the node."""
        return self.network.client

    @property
    def node(self) -> Host:
        """The host of the daemons."""
        return self.network.node

    @property
    def asking(self) -> tuple[Host, Host]:
        """The hosts of the clients."""
        return self.client, self.node

    def write(self, name: str, *objects: Object) -> None:
        """Write these objects to the manifest of that name."""
        write_manifest(self.manifests / f"{name}.yaml", yaml.safe_dump_all(objects))

    def write_service(self, pods: Sequence[int | str], *, name: str = "web", vip: str = VIP) -> None:
        """Write a Service on port 80 with its endpoints."""
        self.write(name, service(name, vip), endpoints(name, pods))

    def remove(self, name: str) -> None:
        """Remove the manifest of that name."""
        (self.manifests / f"{name}.yaml").unlink()

    def daemon(self, *options: str, netfilter: str = "nftables", **more: Any) -> Daemon:
        """`kubeproxy run` on the node, ready. It ends with the test at the latest. `netfilter`: an adapter, or
        `KERNEL`."""
        netfilter, *further = adapter_and_path(netfilter)
        options = (*options, *further)
        settings: dict[str, Any] = {"manifests": self.manifests, "netfilter": netfilter, "options": options, **more}
        daemon = Daemon(self.node, **settings)
        self.running.append(daemon)
        return daemon

    def await_answers(self, *pods: int, address: tuple[str, int] = (VIP, 80)) -> None:
        """Wait until exactly these pods answer the client, each in its turn."""

        # Before there is a rule the client would wait in vain.
        until(lambda: address in kernel_state.redirects(self.node), f"a rule for {address}")

        def answered() -> bool:
            try:
                seen = ask_often(self.client, address, max(3, TURNS * len(pods)), timeout_s=2.0)
            except OSError:
                return False
            return set(seen) == {f"pod-{pod}" for pod in pods}

        until(answered, f"{address} answered by the pods {pods}")

    def await_refusal(self, address: tuple[str, int] = (VIP, 80)) -> None:
        """Wait until the client gets a refusal."""
        until(lambda: refused(self.client, address), f"{address} refused")

    def start_backends(self, *pods: int) -> None:
        """Start the backends of these pods, and wait until they answer."""
        for pod in pods:
            address = Network.pod_v4(pod)
            command = [sys.executable, "-S", "-E", backend.__file__, f"pod-{pod}", address, str(TARGET)]
            self.backends[pod] = self.network.pods[pod].popen(command)
        for pod in pods:
            until(lambda: _answers(self.node, (Network.pod_v4(pod), TARGET)), f"pod {pod} answers")  # noqa: B023

    def kill_backend(self, pod: int) -> None:
        """Kill the backend of a pod: its connections end, and its port refuses."""
        self.backends[pod].kill()
        self.backends[pod].wait()

    def clear(self) -> None:
        """Remove daemons, rules and manifests."""
        for daemon in self.running:
            daemon.close()
        self.running.clear()
        for path in self.manifests.iterdir():
            path.unlink()


def adapter_and_path(netfilter: str) -> tuple[str, ...]:
    """The adapter that a test names, and the flag of its data path."""
    return ("nftables", "--data-path=kernel") if netfilter == KERNEL else (netfilter,)


def adapter_of(netfilter: str) -> str:
    """The adapter that a test names."""
    return adapter_and_path(netfilter)[0]


def await_rescue(daemon: Daemon) -> None:
    """Wait until a daemon with the kernel path rescues failed connections: its last rules come some moments after its
    first."""
    until(lambda: "rescue of failed connections" in daemon.log(), "failed connections are rescued")


def refused(host: Host, address: tuple[str, int]) -> bool:
    """Whether the first packet gets a refusal."""
    try:
        with host.connect(address, timeout=3):
            return False
    except ConnectionRefusedError:
        return True


def silent(host: Host, address: tuple[str, int]) -> bool:
    """Whether a client gets no answer at all, not even a refusal."""
    try:
        with host.connect(address, timeout=0.4):
            return False
    except TimeoutError:
        return True


@contextmanager
def make_stage(manifests: Path, *, pods: int = 4, links: PodLinks = PodLinks.ROUTED) -> Iterator[Stage]:
    """Create hosts with backends that answer."""
    with make_network(pods=pods, links=links) as network:
        kernel_state.reset_rules(network.node)
        stage = Stage(network, manifests)
        stage.start_backends(*range(pods))
        try:
            yield stage
        finally:
            stage.clear()


def _answers(host: Host, address: tuple[str, int]) -> bool:
    try:
        return bool(ask(host, address))
    except OSError:
        return False
