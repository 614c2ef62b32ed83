"""The certificate authority of the cluster, and a kubeconfig for each of its users."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.system.cluster.layout import DOMAIN, FIRST_SERVICE, SERVER, SWITCH, Place

_USERS = {
    "admin": "/O=system:masters/CN=admin",
    "kubelet-client": "/O=system:masters/CN=kube-apiserver-kubelet-client",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "front-proxy": "/CN=front-proxy",
}
_KUBERNETES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}")


class Authority:
    """Files of `directory`: NAME.crt and NAME.key, and the kubeconfig NAME.conf for who asks the API server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def make(self, nodes: Sequence[Place]) -> None:
        """Make everything that is not there yet."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not (self.directory / "ca.crt").exists():
            self._openssl("req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=cluster -keyout ca.key -out ca.crt")
            self._openssl("genrsa -out sa.key 2048")
            self._openssl("rsa -in sa.key -pubout -out sa.pub")
        addresses = [f"IP:{address}" for address in (SWITCH, FIRST_SERVICE, "127.0.0.1")]
        self._certify("apiserver", "/CN=kube-apiserver", [*addresses, *(f"DNS:{name}" for name in _KUBERNETES)])
        for name, subject in _USERS.items():
            self._certify(name, subject)
        for node in nodes:
            subject = f"/O=system:nodes/CN=system:node:{node.name}"
            self._certify(node.name, subject, [f"IP:{node.address}", f"DNS:{node.name}"])

    def file(self, name: str) -> str:
        """The path of a file, for a command line."""
        return str(self.directory / name)

    def kubeconfig(self, name: str) -> str:
        """The path of the kubeconfig of a user or node."""
        return self.file(f"{name}.conf")

    def token_kubeconfig(self, name: str, token: str) -> str:
        """Write a kubeconfig with a bearer token and return its path."""
        return self._write(name, {"token": token})

    def _certify(self, name: str, subject: str, names: Sequence[str] = ()) -> None:
        if (self.directory / f"{name}.crt").exists():
            return
        extensions = [
            "extendedKeyUsage=clientAuth,serverAuth",
            *([f"subjectAltName={','.join(names)}"] if names else ()),
        ]
        (self.directory / f"{name}.ext").write_text("\n".join(extensions))
        self._openssl(f"req -new -newkey rsa:2048 -nodes -subj {subject} -keyout {name}.key -out {name}.csr")
        signing = "x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 365"
        self._openssl(f"{signing} -in {name}.csr -extfile {name}.ext -out {name}.crt")
        self._write(name, {"client-certificate": self.file(f"{name}.crt"), "client-key": self.file(f"{name}.key")})

    def _write(self, name: str, user: dict[str, str]) -> str:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": name}}],
            "clusters": [{"name": "it", "cluster": {"server": SERVER, "certificate-authority": self.file("ca.crt")}}],
            "users": [{"name": name, "user": user}],
        }
        path = self.directory / f"{name}.conf"
        path.write_text(json.dumps(config))
        return str(path)

    def _openssl(self, command: str) -> None:
        subprocess.run(["openssl", *command.split()], cwd=self.directory, check=True, capture_output=True)
