"""A real control plane on a host of the laboratory: etcd, kube-apiserver and kube-controller-manager.

Tests use it to see the real behaviour of these programs. docs/reliability.md describes how to install them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, Self

from tests.support.lab import Host
from tests.system.e2e.stage import Object, until

BINARIES: Final = "KUBERNETES_BINARIES"
"""The environment variable with the directory of `PROGRAMS`."""
PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy")
ADDRESS = ("10.2.0.2", 6443)
CONTROLLERS = "daemonset,endpoint,endpointslice,endpointslicemirroring,namespace,serviceaccount,garbagecollector"
ACCOUNT = ("kube-system", "kube-proxy")
"""The ServiceAccount bound to system:node-proxier."""
_ETCD = "http://127.0.0.1:2379"
_SLICES = "discovery.k8s.io"
"""The group of EndpointSlices; its version is the server's."""
_MASTERS = "masters"
"""The token of cluster administrators."""
_COLLECTIONS: Final = {
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "EndpointSlice": "/apis/discovery.k8s.io/namespaces/{}/endpointslices",
    "Endpoints": "/api/v1/namespaces/{}/endpoints",
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ReplicationController": "/api/v1/namespaces/{}/replicationcontrollers",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
}


def binaries() -> Path | None:
    """The directory of the programs; None if the environment variable is not set."""
    named = os.environ.get(BINARIES)
    return Path(named) if named else None


def program(programs: Path, name: str) -> str:
    """The path of a program in that directory, or else in PATH."""
    found = shutil.which(name, path=f"{programs}{os.pathsep}{os.environ.get('PATH', '')}")
    assert found is not None, f"{name} is not in {programs} and not in PATH"
    return found


def without_plain_port(controller_manager: str) -> list[str]:
    """The flag that turns the port without TLS off, where kube-controller-manager has one: before 1.24."""
    told = subprocess.run([controller_manager, "--help"], capture_output=True, text=True, check=True).stdout
    return ["--port=0"] if " --port int " in told else []


class Refused(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status


class RealCluster:
    """TLS, RBAC and the controllers that write Endpoints; its state is in `directory`. A context manager.

    `flags` are further ones of kube-apiserver, also at its next starts.
    """

    def __init__(
        self, host: Host, directory: Path, programs: Path, *flags: str, controllers: str = CONTROLLERS
    ) -> None:
        self.host = host
        self.controllers = controllers
        self.flags = list(flags)
        self.url = f"https://{ADDRESS[0]}:{ADDRESS[1]}"
        self.storage = directory / "etcd"
        """The data of etcd."""
        self._directory = directory
        self._programs = programs
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self.make_certificates()
        self._write("tokens.csv", f"{_MASTERS},admin,admin,system:masters\n")
        self._write("admin.conf", self.kubeconfig(token=_MASTERS))

    def make_certificates(self, *, days: int = 7) -> None:
        """Create a new CA, server certificate and signing key for ServiceAccount tokens."""
        here = self._directory
        here.mkdir(parents=True, exist_ok=True)
        self._write("san", f"subjectAltName=IP:{ADDRESS[0]},IP:127.0.0.1,IP:10.96.0.1\n")
        for command in (
            f"req -x509 -newkey rsa:2048 -nodes -subj /CN=ca -days {days} -keyout ca.key -out ca.crt",
            "req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout server.key -out server.csr",
            f"x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days {days} -extfile san"
            " -out server.crt",
            "genrsa -out accounts.key 2048",
        ):
            subprocess.run(["openssl", *command.split()], cwd=here, check=True, capture_output=True)

    def kubeconfig(self, *, token: str | None = None, token_file: Path | None = None) -> str:
        """A kubeconfig for this server with that token."""
        user = {"token": token} if token_file is None else {"tokenFile": str(token_file)}
        cluster = {"server": self.url, "certificate-authority": str(self._directory / "ca.crt")}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "it",
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": "it", "user": user}],
            }
        )

    # Processes

    def start_etcd(self) -> None:
        """Start etcd with the data of its earlier run, if there is one."""
        self._start("etcd", f"--data-dir={self.storage}", f"--listen-client-urls={_ETCD}", *_QUIET_ETCD)

    def start_server(self) -> None:
        """Start kube-apiserver and wait until it is ready."""
        here = self._directory
        self._start(
            "kube-apiserver",
            f"--etcd-servers={_ETCD}",
            f"--bind-address={ADDRESS[0]}",
            f"--advertise-address={ADDRESS[0]}",
            f"--secure-port={ADDRESS[1]}",
            f"--tls-cert-file={here}/server.crt",
            f"--tls-private-key-file={here}/server.key",
            f"--token-auth-file={here}/tokens.csv",
            f"--service-account-key-file={here}/accounts.key",
            f"--service-account-signing-key-file={here}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            *self.flags,
        )
        self.await_ready()

    def start_controllers(self) -> None:
        """Start kube-controller-manager."""
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self._directory}/admin.conf",
            f"--controllers={self.controllers}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *without_plain_port(program(self._programs, "kube-controller-manager")),
        )

    def await_ready(self) -> None:
        """Wait until the server reports that it is ready."""

        def ready() -> bool:
            try:
                return bool(self.ask("GET", "/readyz") == "ok")
            except (OSError, HTTPException, Refused):
                return False

        until(ready, "kube-apiserver is ready", within_s=60)

    def signal(self, program: str, number: signal.Signals, *, within_s: float | None = 90.0) -> None:
        """Send a signal and wait for the end of the process, unless `within_s` is None."""
        process = self._processes[program]
        process.send_signal(number)
        if within_s is not None:
            process.wait(within_s)

    def log(self, program: str) -> str:
        """The log of a program."""
        return (self._directory / f"{program}.log").read_text(errors="replace")

    def _start(self, name: str, *arguments: str) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            command = [program(self._programs, name), *arguments]
            self._processes[name] = self.host.popen(command, stdout=log, stderr=log)

    # Objects

    def ask(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """Send one request as administrator and return the answer, decoded if it is JSON. `Refused` if it fails."""
        tls = ssl.create_default_context(cafile=str(self._directory / "ca.crt"))
        with self.host.connect(ADDRESS) as plain, tls.wrap_socket(plain, server_hostname=ADDRESS[0]) as sock:
            connection = HTTPConnection(*ADDRESS)
            connection.sock = sock
            headers = {"Authorization": f"Bearer {_MASTERS}", "Content-Type": content_type}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            said = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            found = json.loads(said) if is_json else said.decode(errors="replace")
            if answer.status >= 300:
                raise Refused(answer.status, found)
            return found

    def put(self, *objects: Object) -> None:
        """Create these objects, or replace those of the same name. With their status if they have one."""
        for item in objects:
            path = self._path(item)
            try:
                self.ask("PATCH", path, item, content_type="application/merge-patch+json")
            except Refused as refused:
                if refused.status != 404:
                    raise
                self.ask("POST", path.rpartition("/")[0], item)
            if "status" in item:
                status = {"status": item["status"]}
                self.ask("PATCH", f"{path}/status", status, content_type="application/merge-patch+json")

    def delete(self, item: Object) -> None:
        """Delete this object at once."""
        self.ask("DELETE", self._path(item), {"gracePeriodSeconds": 0})

    def preferred(self, group: str) -> str:
        """The name of an API group with the version that this server prefers: 1.20 has no v1 of some."""
        return str(self.ask("GET", f"/apis/{group}")["preferredVersion"]["groupVersion"])

    def _path(self, item: Mapping[str, Any]) -> str:
        metadata = item["metadata"]
        collection = _COLLECTIONS[item["kind"]].format(metadata.get("namespace", "default"))
        if collection.startswith(f"/apis/{_SLICES}/"):
            collection = collection.replace(_SLICES, self.preferred(_SLICES), 1)
        return f"{collection}/{metadata['name']}"

    def bind_proxier(self) -> None:
        """Create `ACCOUNT` with the rights of kube-proxy."""
        self.put(_ACCOUNT, BINDING)

    def renew_account(self) -> None:
        """Delete `ACCOUNT` and create it again, so that its old tokens are invalid."""
        self.delete(_ACCOUNT)
        self.put(_ACCOUNT)

    def token(self, *, seconds: int = 3600) -> str:
        """A new token of `ACCOUNT`."""
        path = f"/api/v1/namespaces/{ACCOUNT[0]}/serviceaccounts/{ACCOUNT[1]}/token"
        asked = {"spec": {"expirationSeconds": seconds}}
        return str(self.ask("POST", path, asked)["status"]["token"])

    def events(self, namespace: str = "default") -> list[Object]:
        """The Events of a namespace."""
        return list(self.ask("GET", f"/api/v1/namespaces/{namespace}/events")["items"])

    def _write(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text)

    def __enter__(self) -> Self:
        self.start_etcd()
        self.start_server()
        self.start_controllers()
        self.bind_proxier()
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()


BINDING: Final[Object] = {
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "kube-proxy"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
    "subjects": [{"kind": "ServiceAccount", "namespace": ACCOUNT[0], "name": ACCOUNT[1]}],
}
_ACCOUNT: Final[Object] = {"kind": "ServiceAccount", "metadata": {"namespace": ACCOUNT[0], "name": ACCOUNT[1]}}
_QUIET_ETCD: Final = (
    f"--advertise-client-urls={_ETCD}",
    "--listen-peer-urls=http://127.0.0.1:2380",
    "--unsafe-no-fsync",
)
