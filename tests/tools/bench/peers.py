"""The proxies of the comparison. A peer runs on the node of its stage, on the proxy's cores, and gives the address at
which the client finds each port of the backends."""

from __future__ import annotations

import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubeproxy.runtime.compiled import DIRECTORY, PURE
from tests.support.compiled_modules import ARE_THERE, environment
from tests.support.lab import Daemon, write_manifest
from tests.support.lab.daemon import KUBEPROXY
from tests.support.lab.node import NODE_V4
from tests.tools.bench import asyncio_streams, data_plane_only
from tests.tools.bench.cpu_pinning import Cores, pinned
from tests.tools.bench.machine import NGINX_STREAM
from tests.tools.bench.stage import BACKENDS, BULK, ECHO, HTTP, SCHEDULED, Stage, wait_for

CLUSTER_IP = "10.96.0.10"


class Peer(ABC):
    """One way from the client to the backends. `lanes` is its number of serving threads or processes: one is pinned to
    a core of its own, several share all cores with the load."""

    def __init__(self, name: str, *, lanes: int = 1) -> None:
        self.name = name
        self.lanes = lanes

    @property
    def cores(self) -> Cores:
        """The cores of its stage."""
        return Cores.split() if self.lanes == 1 else Cores.shared()

    @abstractmethod
    def start(self, stage: Stage) -> None:
        """Start the peer; back when it serves."""

    @abstractmethod
    def address(self, port: int) -> tuple[str, int]:
        """The address at which the client finds that port of the backends."""

    def pid(self) -> int | None:
        """The process that is measured, with its descendants, for CPU time and memory. None: there is none."""
        return None

    def stop(self) -> None:  # noqa: B027  most peers end with their stage
        """End the peer in good order."""


class Direct(Peer):
    """No proxy: the client connects to a backend, the node only forwards. The most that the load generator can do."""

    def start(self, stage: Stage) -> None:
        """Does nothing: there is no proxy."""

    def address(self, port: int) -> tuple[str, int]:
        """The address of the first backend."""
        return BACKENDS[0], port


class Program(Peer):
    """A proxy that listens on the node's own address, under the backends' port numbers."""

    def __init__(self, name: str, *, lanes: int = 1) -> None:
        super().__init__(name, lanes=lanes)
        self._process: subprocess.Popen[Any] | None = None

    @abstractmethod
    def command(self, directory: Path) -> list[str]:
        """The command that runs the proxy in the foreground; its files go into `directory`."""

    def start(self, stage: Stage) -> None:
        """Start the program and wait until it accepts."""
        self._process = stage.node.popen(pinned(stage.cores.proxy, *self.command(stage.directory)))
        for port in (HTTP, BULK):
            wait_for(stage.client, self.address(port))

    def address(self, port: int) -> tuple[str, int]:
        """The node's own address."""
        return NODE_V4, port

    def pid(self) -> int | None:
        """The process number of the program."""
        return self._process.pid if self._process is not None else None


class HAProxy(Program):
    """Debian's HAProxy in TCP mode, with default settings otherwise. `balance` is its own setting."""

    def __init__(self, name: str, *, lanes: int = 1, balance: str = "roundrobin") -> None:
        super().__init__(name, lanes=lanes)
        self._balance = balance

    def command(self, directory: Path) -> list[str]:
        """Return the command: all backends, a listener for each port."""
        config = directory / "haproxy.cfg"
        config.write_text(
            "global\n"
            f"    nbthread {self.lanes}\n"
            f"    maxconn {9500 if ':' in self.name else 8000}\n"
            "defaults\n"
            "    mode tcp\n"
            "    timeout client 10m\n"
            "    timeout server 10m\n"
            "    timeout connect 5s\n"
            + "".join(
                f"listen port{port}\n"
                f"    bind {NODE_V4}:{port} backlog 4096\n"
                f"    balance {self._balance}\n"
                + "".join(f"    server s{index} {address}:{port}\n" for index, address in enumerate(BACKENDS))
                for port in (HTTP, BULK, SCHEDULED)
            )
        )
        return ["haproxy", "-db", "-q", "-f", str(config)]


class RedirectedHAProxy(HAProxy):
    """HAProxy behind a redirect like ours: it adds the cost of service addresses and connection tracking."""

    def start(self, stage: Stage) -> None:
        """Redirect first, so that no connection is tracked in another way."""
        rules = (
            "table ip bench { chain prerouting { type nat hook prerouting priority dstnat; "
            f"ip daddr {CLUSTER_IP} tcp dport {{ {HTTP}, {BULK} }} dnat to {NODE_V4}; }}; }}"
        )
        stage.node.run(["nft", "-f", "-"], input=rules)
        _forget_ended_soon(stage)
        super().start(stage)

    def address(self, port: int) -> tuple[str, int]:
        """The cluster IP of the redirect."""
        return CLUSTER_IP, port


class Nginx(Program):
    """Debian's nginx with its stream module, with default settings otherwise; for UDP, too."""

    def command(self, directory: Path) -> list[str]:
        """Round robin over the backends, a server for each port."""
        config = directory / "nginx.conf"
        reuse = " reuseport" if self.lanes > 1 else ""
        config.write_text(
            f"load_module {NGINX_STREAM};\n"
            f"worker_processes {self.lanes};\n"
            "worker_rlimit_nofile 16384;\n"
            "daemon off;\n"
            f"pid {directory}/nginx.pid;\n"
            "error_log stderr crit;\n"
            "events { worker_connections 8000; }\n"
            "stream {\n"
            + "".join(
                f"    upstream port{port} {{ {' '.join(f'server {address}:{port};' for address in BACKENDS)} }}\n"
                f"    server {{ listen {NODE_V4}:{port}{udp}{reuse}{backlog}; proxy_pass port{port}; }}\n"
                for port, udp, backlog in (
                    (HTTP, "", " backlog=4096"),
                    (BULK, "", " backlog=4096"),
                    (ECHO, " udp", ""),
                )
            )
            + "}\n"
        )
        # Its workers would outlive a killed master; the processes of a PID namespace do not outlive its first one.
        alone = ["unshare", "--pid", "--fork", "--kill-child"]
        return [*alone, "nginx", "-p", str(directory), "-e", "stderr", "-c", str(config)]


class Streams(Program):
    """A plain proxy on asyncio's streams (asyncio_streams.py), to compare our byte path with."""

    def command(self, directory: Path) -> list[str]:
        """The command; it needs no files."""
        return [sys.executable, asyncio_streams.__file__, NODE_V4, f"{HTTP},{BULK}", *BACKENDS]


class Bare(Program):
    """The data plane alone (data_plane_only.py), listening as HAProxy does: the byte path without the redirect."""

    def __init__(self, name: str, *, profile: Path | None = None) -> None:
        super().__init__(name)
        self._profile = profile

    def command(self, directory: Path) -> list[str]:
        """The command; it needs no files."""
        return [*_profiled(self._profile), data_plane_only.__file__, NODE_V4, f"{HTTP},{BULK}", *BACKENDS]

    def stop(self) -> None:
        """SIGTERM, so that a profile is written."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)


def ours(*, compiled: bool) -> list[str]:
    """The command of this checkout's program, with one form of its byte path."""
    return ["env", *map("=".join, environment(compiled=compiled).items()), sys.executable, KUBEPROXY]


def with_python(python: Path) -> list[Kubeproxy]:
    """Return two peers that another Python runs: the sources, and the compiled byte path, which is made if it is not
    there. `python` is the interpreter of an environment of ``make pythons``."""
    version = subprocess.run(
        [python, "-c", "import platform, sys; print(platform.python_version() + sys.abiflags)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    program, compiled = python.with_name("kubeproxy"), python.parent.parent / "compiled"
    if not compiled.exists():
        subprocess.run([python, "deploy/compile.py", compiled], check=True, stdout=subprocess.DEVNULL)
    return [
        Kubeproxy(f"{version}-pure", workers=1, program=["env", f"{PURE}=1", str(python), str(program)]),
        Kubeproxy(version, workers=1, program=["env", f"{DIRECTORY}={compiled}", str(python), str(program)]),
    ]


def _profiled(profile: Path | None) -> list[str]:
    """The command for Python, under cProfile if there is a path for the profile."""
    return [sys.executable, *([] if profile is None else ["-m", "cProfile", "-o", str(profile.absolute())])]


class PlainDnat(Peer):
    """Random DNAT to the backends by rules alone, as kube-proxy has it: what the kernel path is compared with."""

    def start(self, stage: Stage) -> None:
        """Load the rules: a map of numbers to backends for each port."""
        commands = ["add table ip plain", "add chain ip plain prerouting { type nat hook prerouting priority -100; }"]
        for _, port, kind in _PORTS:
            slots = ", ".join(f"{number} : {address} . {port}" for number, address in enumerate(BACKENDS))
            commands.append(
                f"add rule ip plain prerouting ip daddr {CLUSTER_IP} {kind.lower()} dport {port} "
                f"dnat to numgen random mod {len(BACKENDS)} map {{ {slots} }}"
            )
        stage.node.run(["nft", "-f", "-"], input="\n".join(commands) + "\n")
        for port in (HTTP, BULK):
            wait_for(stage.client, self.address(port))

    def address(self, port: int) -> tuple[str, int]:
        """The cluster IP of the Service."""
        return CLUSTER_IP, port


class Kubeproxy(Peer):
    """The daemon, through its real redirect: the client connects to a cluster IP, with connection tracking.

    `workers` is the daemon's flag of that name; 0 is everything in one process. `data_path` and `scheduler` are others.
    Without `program` it is this checkout's, with the compiled byte path if it is there. A profile is of the sources.
    """

    def __init__(
        self,
        name: str,
        *,
        workers: int,
        netfilter: str = "nftables",
        data_path: str = "userspace",
        scheduler: str = "round-robin",
        profile: Path | None = None,
        program: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, lanes=max(1, workers))
        self._program = ours(compiled=ARE_THERE) if program is None else program
        self._scheduler = scheduler
        self._data_path = data_path
        self._workers = workers
        self._netfilter = netfilter
        self._profile = profile
        self._daemon: Daemon | None = None

    def start(self, stage: Stage) -> None:
        """Start the daemon on a manifest directory, and wait for its first sync."""
        manifests = stage.directory / "manifests"
        manifests.mkdir()
        write_manifest(manifests / "bench.yaml", _MANIFEST)
        self._daemon = start_daemon(
            stage,
            manifests=manifests,
            netfilter=self._netfilter,
            workers=self._workers,
            options=["--data-path", self._data_path, "--scheduler", self._scheduler],
            command=self._program if self._profile is None else [*_profiled(self._profile), KUBEPROXY],
        )
        for port in (HTTP, BULK):
            wait_for(stage.client, self.address(port))
        if self._data_path == "kernel" and self._scheduler != "least-connections":
            self._await_slots(stage)

    def _await_slots(self, stage: Stage) -> None:
        """Wait until the kernel leads clients to the backends; AssertionError, with the log, when it does not."""
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            listed = stage.node.run(["nft", "list", "map", "inet", "kubeproxy", "tcp_slots4"], check=False).stdout
            if all(address in listed for address in BACKENDS):
                return
            time.sleep(0.05)
        raise AssertionError(f"no kernel path:\n{self._daemon.log() if self._daemon is not None else ''}")

    def address(self, port: int) -> tuple[str, int]:
        """The cluster IP of the Service."""
        return CLUSTER_IP, port

    def pid(self) -> int | None:
        """The process number of the daemon."""
        return self._daemon.process.pid if self._daemon is not None else None

    def stop(self) -> None:
        """SIGTERM, so that a profile is written. AssertionError, with the log, if it ends in any other way."""
        if self._daemon is None:
            return
        daemon, self._daemon = self._daemon, None
        with daemon:
            status = daemon.terminate()
            if status != 0:
                raise AssertionError(f"kubeproxy ended with status {status}:\n{daemon.log()}")


def start_daemon(
    stage: Stage,
    *,
    workers: int,
    netfilter: str = "nftables",
    manifests: Path | None = None,
    options: Sequence[str] = (),
    command: Sequence[str] = (KUBEPROXY,),
) -> Daemon:
    """Start the daemon on the stage's node and the proxy's cores. Returns when it has begun to serve."""
    daemon = Daemon(
        stage.node,
        manifests=manifests,
        netfilter=netfilter,
        # At the end of a measurement, open connections do not matter, nor does a process that outlives the daemon.
        options=["--workers", str(workers), "--shutdown-grace", "100ms", "--orphan-grace", "1s", *options],
        command=pinned(stage.cores.proxy, *command),
        ready_within_s=120.0,
    )
    _forget_ended_soon(stage)
    return daemon


def _forget_ended_soon(stage: Stage) -> None:
    """Shorten the time for which the kernel tracks ended connections. Its 120 s would fill the table (262,144 by
    default, for all namespaces together) within one run. The setting exists once something on this host tracks
    connections."""
    with suppress(FileNotFoundError, PermissionError):
        stage.node.sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", 10)


_PORTS = (("http", HTTP, "TCP"), ("bulk", BULK, "TCP"), ("echo", ECHO, "UDP"), ("scheduled", SCHEDULED, "TCP"))
_MANIFEST = f"""\
apiVersion: v1
kind: Service
metadata: {{name: bench, namespace: default}}
spec:
  clusterIP: {CLUSTER_IP}
  ports: [{", ".join(f"{{name: {name}, port: {port}, protocol: {kind}}}" for name, port, kind in _PORTS)}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: bench-1, namespace: default, labels: {{kubernetes.io/service-name: bench}}}}
addressType: IPv4
ports: [{", ".join(f"{{name: {name}, port: {port}, protocol: {kind}}}" for name, port, kind in _PORTS)}]
endpoints: [{", ".join(f"{{addresses: [{address}]}}" for address in BACKENDS)}]
"""
