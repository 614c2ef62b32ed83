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

from kubeproxy.kubernetes.client import credentials, memory_files, plugins
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from kubeproxy.model.errors import ConfigError
from tests.kubernetes.harness import kubeconfig
from tests.support.apiserver import ApiServer, Cluster
from tests.support.apiserver.recordings import TLS, server_tls
from tests.support.waiting import until

TOKEN_OF = (
    "import asyncio, sys\n"
    "from kubeproxy.kubernetes.client.credentials import Access, ClientSettings\n"
    "print(asyncio.run(Access(ClientSettings(kubeconfig=sys.argv[1]).read).configuration()).token, end='')\n"
)
"""Prints the token of a kubeconfig."""


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def certificate_of(directory: Path) -> tuple[Path, Path]:
    """A self-signed client certificate, and its key."""
    certificate, key = directory / "client.crt", directory / "client.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=node-a"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    return certificate, key


def intermediate_of(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """Make a root, an authority that it has signed, and a server's certificate of that authority. Return the file of
    the authority, without the root, and the server's context."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=60)

    (directory / "ca.ext").write_text("basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign\n")
    (directory / "leaf.ext").write_text("subjectAltName=IP:127.0.0.1\n")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *new, "-days", "2", "-subj", "/CN=root", "-keyout", "root.key", "-out", "root.crt")
    for name, issuer, extensions in (("middle", "root", "ca.ext"), ("leaf", "middle", "leaf.ext")):
        openssl("req", *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signing = ["-CA", f"{issuer}.crt", "-CAkey", f"{issuer}.key", "-CAcreateserial", "-days", "2"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-extfile", extensions, "-out", f"{name}.crt")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "leaf.crt", directory / "leaf.key")
    return directory / "middle.crt", tls


async def test_an_authority_that_is_no_root_is_trusted(tmp_path: Path) -> None:
    authority, tls = intermediate_of(tmp_path)
    async with ApiServer(Cluster(), tls=tls) as server:
        path = kubeconfig(tmp_path, server.url, {}, certificate_authority_data=data(authority))
        client = await Client.connect(ClientSettings(kubeconfig=path))
        assert b"APIGroupList" in await client.get_json("/apis")
        await client.close()


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
    first = memory_files.path_of(b"first")
    assert Path(first).read_text() == "first"
    assert memory_files.path_of(b"first") == first
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2 * memory_files.MAX_FILES):
        last = memory_files.path_of(b"number %d" % number)
    assert Path(last).read_text() == f"number {2 * memory_files.MAX_FILES - 1}"
    assert len(os.listdir("/proc/self/fd")) <= before + memory_files.MAX_FILES
    assert len(memory_files._kept) == memory_files.MAX_FILES


async def test_a_plugin_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "PLUGIN_S", 5.0)
    monkeypatch.setattr(plugins, "INTERACTIVE_S", 5.0)
    script = f"echo $$ >{tmp_path}/pid; exec sleep 1000"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
    path = kubeconfig(tmp_path, "http://127.0.0.1:1", {"exec": plugin | {"interactiveMode": "Never"}})
    with pytest.raises(ConfigError, match="did not answer within 5 s"):
        await credentials.Access(ClientSettings(kubeconfig=path).read).configuration()
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_plugin_speaks_to_the_user_and_knows_the_cluster(tmp_path: Path) -> None:
    """More than fits in a pipe comes on stderr first. The standard input is the command's own, not the program's."""
    script = (
        "head -c 200000 /dev/zero | tr '\\0' . >&2; echo open the browser >&2; cat;"
        ' printf \'{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}\''
        ' "$(printf %s "$KUBERNETES_EXEC_INFO" | base64 -w0)"'
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", script],
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": True,
    }
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]
    authority = data(TLS / "ca.crt")
    path = kubeconfig(
        tmp_path,
        "https://127.0.0.1:1",
        {"exec": plugin},
        certificate_authority_data=authority,
        tls_server_name="api",
        extensions=extensions,
    )
    ended = subprocess.run(
        [sys.executable, "-c", TOKEN_OF, path], input=b"a manifest", capture_output=True, check=True, timeout=60
    )
    assert ended.stderr.endswith(b"..open the browser\n")
    assert len(ended.stderr) > 200_000
    asked = json.loads(base64.b64decode(ended.stdout))
    assert asked["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://127.0.0.1:1",
            "tls-server-name": "api",
            "certificate-authority-data": authority,
            "config": {"audience": "a"},
        },
    }


@pytest.mark.parametrize(
    ("mode", "why"),
    [("Always", "standard input is no terminal"), ("Sometimes", "found 'Sometimes'; allowed: Never, IfAvailable")],
)
def test_a_plugin_that_must_ask_needs_a_terminal(tmp_path: Path, mode: str, why: str) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "true", "interactiveMode": mode}
    path = kubeconfig(tmp_path, "http://127.0.0.1:1", {"exec": plugin})
    ended = subprocess.run(
        [sys.executable, "-c", TOKEN_OF, path], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert why in ended.stderr


async def test_no_process_of_ours_imports_the_library_s_modules(tmp_path: Path) -> None:
    """They cost 35 MiB. Reading a kubeconfig needs none, and for a plugin they are in a process that ends."""
    script = (
        "import asyncio, json, sys\n"
        "from kubeproxy.kubernetes.client.credentials import Access, ClientSettings\n"
        "config = asyncio.run(Access(ClientSettings(kubeconfig=sys.argv[1]).read).configuration())\n"
        "print(json.dumps([config.token, *sys.modules]))\n"
    )
    answer = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}'
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [answer]}
    path = kubeconfig(tmp_path, "http://127.0.0.1:1", {"exec": plugin | {"interactiveMode": "Never"}})
    command = [sys.executable, "-c", script, path]
    token, *modules = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert token == "t"
    assert not [name for name in modules if name.startswith("kubernetes_asyncio")]


async def test_a_plugin_whose_credentials_expire_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "RENEW_S", 0.0)
    count = tmp_path / "count"
    script = (
        f"n=$(($(cat {count} 2>/dev/null || echo 0)+1)); echo $n >{count};"
        ' echo \'{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":\''
        ' \'{"expirationTimestamp":"2020-01-01T00:00:00Z","token":"\'t$n\'"}}\''
    )
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
    path = kubeconfig(tmp_path, "http://127.0.0.1:1", {"exec": plugin | {"interactiveMode": "Never"}})
    access = credentials.Access(ClientSettings(kubeconfig=path).read)
    config = await access.configuration()
    assert [(await access.headers(config))["Authorization"] for _ in range(2)] == ["Bearer t2", "Bearer t3"]
    count.write_text("no number")
    with pytest.raises(ConfigError, match="getting credentials"):
        await access.headers(config)
    assert access.last_headers is not None
    assert access.last_headers["Authorization"] == "Bearer t3", "the present ones may still be good"
