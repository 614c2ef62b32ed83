"""The failure experience: what clients notice when two of four endpoints fail, on each data path.

    python -m tests.tools.bench.failures [--runs N] [--from host|node] [--family 4|6] [--paths dnat,kernel,userspace]

as root. 200 new connections per second for ten seconds; one of four pods is killed after two seconds, so that its port
refuses, and a second one is black-holed after six. The same for plain translation to a random endpoint (*dnat*), for
kube-proxy itself where KUBERNETES_BINARIES names a directory that has it (*kube-proxy*: 1.20.2, mode iptables), for the
kernel path and for the userspace path, in turn, all in network namespaces. 200 further connections are open all the
time, and say when they end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.lab import Daemon, Host, Network, make_network, service_manifest, write_manifest
from tests.support.lab.kube_proxy import KubeProxy
from tests.support.lab.node import NODE_V4, NODE_V6
from tests.system.e2e.control_plane import BINARIES, binaries

PODS, POD_PORT, PORT = 4, 8080, 80
PER_S, SECONDS = 200, 10
REFUSES_S, BLACK_HOLE_S = 2.0, 6.0
REFUSING, BLACK_HOLED = 1, 2
LONG = 200
TIMEOUT_S = 12.0
"""How long a client waits; the reference of the kernel path has the same."""
NOTICED_S = 0.05
"""A client that waits longer counts as one that waited."""
SERVICE = {4: "10.96.0.10", 6: "fd00:96::10"}


@dataclass
class Seen:
    """What the clients of some runs saw."""

    waits_s: list[float] = field(default_factory=list)
    """Of those that were served, until the first byte."""
    failures: Counter[str] = field(default_factory=Counter)
    """By phase and error."""
    long_ended: int = 0
    """Long connections that ended, without those to the two failed pods."""

    def add(self, other: Seen) -> None:
        """Take in another run."""
        self.waits_s += other.waits_s
        self.failures += other.failures
        self.long_ended += other.long_ended

    def line(self) -> str:
        """One line of the table."""
        waits = sorted(self.waits_s)
        waited = [each for each in waits if each > NOTICED_S]
        while_connecting = sum(number for name, number in self.failures.items() if name.startswith("connect"))
        later = sum(self.failures.values()) - while_connecting

        def at(share: float, of: Sequence[float]) -> str:
            return f"{1000 * of[min(len(of) - 1, int(share * len(of)))]:.1f}" if of else "-"

        return (
            f"connections {len(waits) + sum(self.failures.values())}, failed to connect {while_connecting}, "
            f"failed later {later}; first byte ms p50 {at(0.5, waits)} p99 {at(0.99, waits)} max {at(1, waits)}; "
            f"waited > {1000 * NOTICED_S:.0f} ms {len(waited)} (their median {at(0.5, waited)}); "
            f"long connections to other pods ended {self.long_ended}; {dict(self.failures) or ''}"
        )


# The programs on the hosts.


async def serve(address: str, port: int, name: str) -> None:
    """A pod: answers each connection with its name, and keeps those that send ``long``."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(f"{name}\n".encode())
            await writer.drain()
            while await reader.read(100):
                writer.write(b"alive\n")
        writer.close()

    server = await asyncio.start_server(talk, address, port, backlog=512)
    async with server:
        await server.serve_forever()


async def one(address: str, port: int, results: list[tuple[str, float]]) -> None:
    """One client: the phase in which it failed, or its wait."""
    began, phase = time.monotonic(), "connect"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address, port)
            phase = "answer"
            if not await reader.readline():
                raise ConnectionResetError
    except (OSError, TimeoutError) as error:
        if isinstance(error, ConnectionResetError):
            phase = "answer"  # a first packet is refused; a reset comes from a pod that has accepted
        results.append((f"{phase} {type(error).__name__}", time.monotonic() - began))
        return
    results.append(("", time.monotonic() - began))
    writer.close()


async def hold(address: str, port: int, ended: list[str]) -> None:
    """One long connection: the name of its pod, when it ends."""
    reader, writer = await asyncio.open_connection(address, port)
    name = (await reader.readline()).decode().strip()
    with contextlib.suppress(OSError):
        while True:
            writer.write(b"long")
            if not await reader.readline():
                break
            await asyncio.sleep(0.5)
    ended.append(name)


async def load(address: str, port: int) -> None:
    """All clients; prints the results."""
    loop = asyncio.get_running_loop()
    results: list[tuple[str, float]] = []
    ended: list[str] = []
    async with asyncio.TaskGroup() as holding:
        held = [holding.create_task(hold(address, port, ended)) for _ in range(LONG)]
        await asyncio.sleep(0.5)
        print("begun", flush=True)
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(PER_S * SECONDS):
                await asyncio.sleep(max(0.0, began + number / PER_S - loop.time()))
                group.create_task(one(address, port, results))
        for each in held:
            each.cancel()
    print(json.dumps({"results": results, "ended": ended}), flush=True)


# The data paths.


@contextmanager
def plain_dnat(network: Network, family: int, addresses: Sequence[str]) -> Iterator[None]:
    """Random DNAT, as kube-proxy has it."""
    ip, table = ("ip", "ip") if family == 4 else ("ip6", "ip6")
    slots = ", ".join(f"{number} : {address} . {POD_PORT}" for number, address in enumerate(addresses))
    rule = f"{ip} daddr {SERVICE[family]} tcp dport {PORT} dnat to numgen random mod {PODS} map {{ {slots} }}"
    commands = f"add table {table} plain\n"
    for hook in ("prerouting", "output"):
        commands += f"add chain {table} plain {hook} {{ type nat hook {hook} priority -100; }}\n"
        commands += f"add rule {table} plain {hook} {rule}\n"
    network.node.run(["nft", "-f", "-"], input=commands)
    yield
    network.node.run(["nft", "delete", "table", table, "plain"])


@contextmanager
def daemon(network: Network, family: int, addresses: Sequence[str], *, data_path: str) -> Iterator[None]:
    """The real daemon."""
    with tempfile.TemporaryDirectory(prefix="kubeproxy-failures-") as directory:
        manifests = Path(directory)
        write_manifest(
            manifests / "web.yaml",
            service_manifest(
                "web", cluster_ip=SERVICE[family], ports={"http": (PORT, POD_PORT)}, endpoints=addresses
            ).replace("addressType: IPv4", f"addressType: IPv{family}"),
        )
        running = Daemon(network.node, manifests=manifests, netfilter="nftables", options=["--data-path", data_path])
        try:
            yield
        finally:
            running.terminate()
            running.close()


@contextmanager
def kube_proxy(network: Network, family: int, addresses: Sequence[str]) -> Iterator[None]:
    """kube-proxy itself. Its API server never changes: as in the first seconds of a failure, nothing is reported."""
    programs = binaries()
    if programs is None:
        raise SystemExit(f"{BINARIES} is not set: it names the directory of kube-proxy (tests/tools/kubernetes.sh)")
    service = {
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "clusterIP": SERVICE[family],
            "clusterIPs": [SERVICE[family]],
            "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}],
        },
    }
    ready = [{"ip": address} for address in addresses]
    endpoints = {
        "kind": "Endpoints",
        "metadata": {"name": "web", "namespace": "default"},
        "subsets": [{"addresses": ready, "ports": [{"name": "http", "port": POD_PORT, "protocol": "TCP"}]}],
    }
    with tempfile.TemporaryDirectory(prefix="kubeproxy-failures-") as directory:
        objects, kubeconfig = Path(directory, "objects.json"), Path(directory, "kubeconfig")
        objects.write_text(json.dumps({"kind": "List", "items": [service, endpoints]}))
        command = [sys.executable, "-m", "tests.support.apiserver", "--version=v1.20", f"--objects={objects}"]
        server = network.node.popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "it",
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                    "clusters": [{"name": "it", "cluster": {"server": server.stdout.readline().strip()}}],
                    "users": [{"name": "it", "user": {}}],
                }
            )
        )
        with KubeProxy(
            network.node,
            program=programs / "kube-proxy",
            kubeconfig=kubeconfig,
            node_address=NODE_V4 if family == 4 else NODE_V6,
            address=SERVICE[family],
        ):
            yield
        server.kill()


Path_ = Callable[[Network, int, Sequence[str]], contextlib.AbstractContextManager[None]]
PATHS: dict[str, Path_] = {
    "dnat": plain_dnat,
    "kube-proxy": kube_proxy,
    "kernel": lambda *arguments: daemon(*arguments, data_path="kernel"),
    "userspace": lambda *arguments: daemon(*arguments, data_path="userspace"),
}


def run(path: str, place: str, family: int) -> Seen:
    """One run."""
    with ExitStack() as stack:
        network = stack.enter_context(make_network(pods=PODS))
        addresses = [Network.pod_v4(pod) if family == 4 else Network.pod_v6(pod) for pod in range(PODS)]
        module = [sys.executable, "-m", "tests.tools.bench.failures"]
        servers = [
            network.pods[pod].popen([*module, "serve", address, str(POD_PORT), f"pod{pod}"])
            for pod, address in enumerate(addresses)
        ]
        for pod, address in enumerate(addresses):
            _until_it_listens(network.pods[pod], address)
        stack.enter_context(PATHS[path](network, family, addresses))
        host = network.client if place == "host" else network.node
        clients = host.popen([*module, "load", SERVICE[family], str(PORT)], stdout=subprocess.PIPE, text=True)
        assert clients.stdout is not None
        assert clients.stdout.readline() == "begun\n"
        began = time.monotonic()
        time.sleep(max(0.0, began + REFUSES_S - time.monotonic()))
        servers[REFUSING].kill()
        time.sleep(max(0.0, began + BLACK_HOLE_S - time.monotonic()))
        network.pods[BLACK_HOLED].run(
            ["nft", "add table inet t; add chain inet t c { type filter hook input priority 0; policy drop; }"]
        )
        found = json.loads(clients.stdout.readline())
    seen = Seen()
    for failure, wait_s in found["results"]:
        if failure:
            seen.failures[failure] += 1
        else:
            seen.waits_s.append(wait_s)
    seen.long_ended = sum(name not in (f"pod{REFUSING}", f"pod{BLACK_HOLED}") for name in found["ended"])
    return seen


def _until_it_listens(host: Host, address: str) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(OSError), host.connect((address, POD_PORT)):
            return
        time.sleep(0.05)
    raise AssertionError(f"{address} does not listen")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--from", dest="place", choices=["host", "node"], default="host")
    parser.add_argument("--family", type=int, choices=[4, 6], default=4)
    default = [path for path in PATHS if path != "kube-proxy" or binaries() is not None]
    parser.add_argument("--paths", default=",".join(default))
    arguments = parser.parse_args()
    sums = {path: Seen() for path in arguments.paths.split(",")}
    for number in range(arguments.runs):
        for path, seen in sums.items():
            one_run = run(path, arguments.place, arguments.family)
            seen.add(one_run)
            print(f"run {number + 1} {path:10} {one_run.line()}", flush=True)
    print(f"from {arguments.place}, IPv{arguments.family}, {arguments.runs} runs:")
    for path, seen in sums.items():
        print(f"{path:10} {seen.line()}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", address, port, name]:
            asyncio.run(serve(address, int(port), name))
        case ["load", address, port]:
            asyncio.run(load(address, int(port)))
        case _:
            main()
