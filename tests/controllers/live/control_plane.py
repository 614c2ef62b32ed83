"""A real etcd and kube-apiserver on loopback, and either kube-controller-manager or ours."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from kubeproxy.kubernetes.client.errors import ApiError
from tests.system.e2e.control_plane import program, without_plain_port

BINARIES: Final = "KUBERNETES_BINARIES"
"""The environment variable that names the directory of etcd, kube-apiserver and kube-controller-manager."""
START_S: Final = 90.0
USERS: Final = ("first", "second")
READING: Final = frozenset({"get", "list", "watch"})
_AUDIT_POLICY: Final = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    users: [admin]
    verbs: [get, list, watch]
  - level: Metadata
"""


def binaries() -> Path | None:
    """Where the programs are."""
    named = os.environ.get(BINARIES)
    return Path(named) if named else None


def _free_ports(number: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class ControlPlane:
    """The processes, with their logs in `directory`. A context manager.

    `users`: names of further users by their tokens, without rights of their own. `flags`: further ones of the server.
    """

    def __init__(
        self,
        directory: Path,
        programs: Path,
        *,
        users: Mapping[str, str] | None = None,
        flags: Sequence[str] = ("--authorization-mode=AlwaysAllow",),
    ) -> None:
        self._flags = flags
        self._directory = directory
        self._programs = programs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd, self._peer, self._port = _free_ports(3)
        tokens = [f"{name},{name},{name},system:masters" for name in ("admin", *USERS)]
        tokens += [f"{token},{name},{token}" for token, name in (users or {}).items()]
        (directory / "tokens.csv").write_text("\n".join(tokens) + "\n")
        (directory / "audit.yaml").write_text(_AUDIT_POLICY)
        key = str(directory / "accounts.key")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self.kubeconfig = self.kubeconfig_of("admin")

    @property
    def url(self) -> str:
        """The API server's."""
        return f"https://127.0.0.1:{self._port}"

    def kubeconfig_of(self, user: str, server: str = "", *, token: str = "") -> Path:
        """A kubeconfig by which the audit log tells processes apart; without `token` that of the user's name."""
        path = self._directory / f"{user}.conf"
        cluster: dict[str, Any] = {"server": server or self.url}
        if not server:
            cluster["insecure-skip-tls-verify"] = True
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "it",
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                    "clusters": [{"name": "it", "cluster": cluster}],
                    "users": [{"name": "it", "user": {"token": token or user}}],
                }
            )
        )
        return path

    def writes_of(self, user: str) -> list[tuple[float, str, str]]:
        """Writes of a user that the server took: Unix seconds at which they arrived, verb, resource."""
        return [each for each in self.requests_of(user) if each[1] not in READING]

    def requests_of(self, user: str) -> list[tuple[float, str, str]]:
        """The same for all requests; reads only of other users than ``admin``."""
        found = []
        for line in (self._directory / "audit.log").read_text().splitlines():
            entry = json.loads(line)
            if entry["user"]["username"] == user and entry.get("responseStatus", {}).get("code", 500) < 300:
                arrived = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
                found.append((arrived, entry["verb"], entry["objectRef"]["resource"]))
        return found

    def __enter__(self) -> ControlPlane:
        etcd = f"http://127.0.0.1:{self._etcd}"
        here = self._directory
        self.start(
            "etcd",
            program(self._programs, "etcd"),
            f"--data-dir={here}/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{self._peer}",
            "--unsafe-no-fsync",
        )
        self.start_server()
        return self

    def start_server(self) -> None:
        """Start kube-apiserver, again after it was stopped."""
        here = self._directory
        self.start(
            "kube-apiserver",
            program(self._programs, "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={here}/certs",
            f"--token-auth-file={here}/tokens.csv",
            f"--service-account-key-file={here}/accounts.key",
            f"--service-account-signing-key-file={here}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            *self._flags,
            "--disable-admission-plugins=ServiceAccount",
            f"--audit-policy-file={here}/audit.yaml",
            f"--audit-log-path={here}/audit.log",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=10000",
        )

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._processes)):
            self.stop(name, signal.SIGKILL)

    async def connect(self) -> Client:
        """A client without limits, once the server is ready."""
        client = await Client.connect(ClientSettings(kubeconfig=str(self.kubeconfig), qps=0))
        end = asyncio.get_running_loop().time() + START_S
        while True:
            try:
                await client.get_json("/api/v1/namespaces/default")
            except ApiError:
                if asyncio.get_running_loop().time() > end:
                    raise
                await asyncio.sleep(0.5)
            else:
                return client

    @contextmanager
    def upstream(
        self, controllers: str = "deployment,replicaset,replicationcontroller", *flags: str, user: str = "admin"
    ) -> Iterator[None]:
        """kube-controller-manager with these controllers, until the end of the block."""
        manager = program(self._programs, "kube-controller-manager")
        self.start(
            "kube-controller-manager",
            manager,
            f"--kubeconfig={self.kubeconfig_of(user)}",
            f"--controllers={controllers}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *without_plain_port(manager),
            "--secure-port=0",
            *flags,
        )
        try:
            yield
        finally:
            self.stop("kube-controller-manager", signal.SIGTERM)

    @contextmanager
    def ours(self, *flags: str, user: str = "admin") -> Iterator[None]:
        """`kubeproxy controller-manager`, until the end of the block."""
        self.start_ours(*flags, user=user)
        try:
            yield
        finally:
            self.stop("ours", signal.SIGTERM)

    def start_ours(self, *flags: str, name: str = "ours", user: str = "admin", server: str = "") -> None:
        """`kubeproxy controller-manager`, as a user of its own; `server`: another URL than the API server's."""
        self.start(
            name,
            sys.executable,
            "-c",
            "from kubeproxy.cli.main import main; main()",
            "controller-manager",
            f"--kubeconfig={self.kubeconfig_of(user, server)}",
            "--port=0",
            "-v=4",
            *flags,
        )

    def start(self, name: str, *command: str) -> None:
        """Start a process under a name."""
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def stop(self, name: str, number: signal.Signals) -> int:
        """End a process; its exit status."""
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            return process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self._processes[name].send_signal(number)

    def runs(self, name: str) -> bool:
        """Whether a process was started and not stopped, and has not ended by itself."""
        return name in self._processes and self._processes[name].poll() is None

    def pid(self, name: str) -> int:
        """The number of a process."""
        return self._processes[name].pid

    def poll(self, name: str) -> int | None:
        """The exit status of a process that has ended by itself."""
        return self._processes[name].poll()

    def log(self, name: str) -> str:
        """What a process has logged."""
        return (self._directory / f"{name}.log").read_text(errors="replace")


async def ask(client: Client, method: str, path: str, body: Any = None) -> Any:
    """One request; the decoded answer."""
    if method == "GET":
        return json.loads(await client.get_json(path))
    content_type = "application/json" if method != "PATCH" else "application/merge-patch+json"
    data = b"" if body is None else json.dumps(body).encode()
    return json.loads(await client.send_json(method, path, data, content_type=content_type))
