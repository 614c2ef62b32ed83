"""Reading of credentials: the files that it leaves, and its cost at a start."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kubeproxy.kubernetes.client import credentials
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from tests.kubernetes.client.test_client import server_tls
from tests.kubernetes.harness import kubeconfig
from tests.support.apiserver import ApiServer, Cluster
from tests.support.apiserver.recordings import TLS


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def certificate_of(directory: Path) -> tuple[Path, Path]:
    """A self-signed client certificate, and its key."""
    certificate, key = directory / "client.crt", directory / "client.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=node-a"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    return certificate, key


async def test_finding_17_a_client_s_key_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server requires a client certificate. Not even SIGKILL could leave the key in a file."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setattr(tempfile, "mkstemp", None)
    certificate, key = certificate_of(tmp_path)
    tls = server_tls()
    tls.load_verify_locations(certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    async with ApiServer(Cluster(), tls=tls) as server:
        user = {"client-certificate-data": data(certificate), "client-key-data": data(key)}
        path = kubeconfig(tmp_path, server.url, user, certificate_authority_data=data(TLS / "ca.crt"))
        for _ in range(2):
            client = await Client.connect(ClientSettings(kubeconfig=path))
            await client.get_json("/apis")
            await client.close()
    assert list(directory.iterdir()) == []


def test_files_in_memory_are_bounded_and_the_same_content_is_one() -> None:
    first = credentials._in_memory(None, "first")
    assert Path(first).read_text() == "first"
    assert credentials._in_memory(None, b"first") == first
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2 * credentials.MAX_MEMORY_FILES):
        last = credentials._in_memory(None, f"number {number}")
    assert Path(last).read_text() == f"number {2 * credentials.MAX_MEMORY_FILES - 1}"
    assert len(os.listdir("/proc/self/fd")) <= before + credentials.MAX_MEMORY_FILES
    assert len(credentials._memory_files) == credentials.MAX_MEMORY_FILES


SCRIPT = """
import json, sys
from kubeproxy.kubernetes.client.credentials import Access, ClientSettings
Access.load(ClientSettings(kubeconfig="any"))
print(json.dumps(sorted(sys.modules)))
"""


def test_point_9_the_library_s_models_are_not_imported() -> None:
    """The library has some 700 modules. The tests above show that the imported ones are enough."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    modules = json.loads(ended.stdout)
    assert "kubernetes_asyncio.config.kube_config" in modules
    assert not [name for name in modules if name.startswith(("kubernetes_asyncio.client.models", "pygments"))]
    assert sum(name.startswith("kubernetes_asyncio") for name in modules) < 20
