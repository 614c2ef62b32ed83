"""Server and identity: flags, files and their order, relative paths, what is wrong."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kubeproxy.kubernetes.client import kubeconfig, kubeconfig_file
from kubeproxy.kubernetes.client.kubeconfig import Overrides, load
from kubeproxy.model.errors import ConfigError


def config(name: str = "it", *, user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"{name}-ns"}}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example.com:6443/"} | cluster}],
        "users": [{"name": name, "user": user or {"token": f"{name}-token"}}],
    }


def written(path: Path, document: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return str(path)


def test_a_file_says_all(tmp_path: Path) -> None:
    found = load(Overrides(kubeconfig=written(tmp_path / "c", config())), {})
    assert (found.host, found.token) == ("https://it.example.com:6443", "it-token")
    assert (found.namespace, found.namespace_enforced) == ("it-ns", False)


def test_flags_win(tmp_path: Path) -> None:
    path = written(tmp_path / "c", config())
    found = load(
        Overrides(kubeconfig=path, server="https://x", token="t", namespace="n", insecure_skip_tls_verify=True), {}
    )
    assert (found.host, found.token, found.namespace, found.namespace_enforced) == ("https://x", "t", "n", True)
    assert found.verify_ssl is False


def test_an_authority_and_no_check_of_certificates_exclude_each_other(tmp_path: Path) -> None:
    authority = written(tmp_path / "ca", "CA")
    both: dict[str, Any] = {"certificate-authority": authority, "insecure-skip-tls-verify": True}
    path = written(tmp_path / "c", config(**both))
    with pytest.raises(ConfigError, match="root certificates file with the insecure flag is not allowed"):
        load(Overrides(kubeconfig=path), {})
    found = load(Overrides(kubeconfig=path, insecure_skip_tls_verify=True), {})
    assert (found.verify_ssl, found.ssl_ca_cert) == (False, None), "the flag wins, as kubectl's"
    with pytest.raises(ConfigError, match="not allowed"):
        load(Overrides(kubeconfig=path, insecure_skip_tls_verify=True, certificate_authority=authority), {})
    unchecked: dict[str, Any] = {"insecure-skip-tls-verify": True}
    lax = written(tmp_path / "d", config(**unchecked))
    with pytest.raises(ConfigError, match="not allowed"):
        load(Overrides(kubeconfig=lax, certificate_authority=authority), {})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"kind": "Pod"}, "kind: found 'Pod'; allowed: Config"),
        ({"contexts": [{"name": "it"}, {"name": "it"}]}, r"contexts\[1\].name: 'it' is there twice"),
    ],
)
def test_what_is_no_kubeconfig_is_refused(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    path = written(tmp_path / "c", config() | change)
    with pytest.raises(ConfigError, match=fault):
        load(Overrides(kubeconfig=path), {})


@pytest.mark.parametrize("data", ["!!!", "QUJ", "Q U\nJD!"])
def test_data_that_is_not_base64_is_refused(tmp_path: Path, data: str) -> None:
    broken: dict[str, Any] = {"certificate-authority-data": data}
    path = written(tmp_path / "c", config(**broken))
    with pytest.raises(ConfigError, match="certificate-authority-data is not base64"):
        load(Overrides(kubeconfig=path), {})


@pytest.mark.parametrize(
    ("server", "sent"),
    [("https://x", True), ("http://127.0.0.1:1", True), ("http://[::1]:1", True), ("http://x", False), ("x", False)],
)
def test_credentials_are_not_sent_in_clear_text(server: str, sent: bool) -> None:
    found = load(Overrides(server=server, token="t", username="u", password="p"), {"HOME": "/none"})
    assert (found.token, found.username, found.password) == (("t", "u", "p") if sent else ("", "", ""))


def test_of_several_files_the_first_counts(tmp_path: Path) -> None:
    first, second = config("a"), config("b")
    second["users"].append({"name": "a", "user": {"token": "other"}})
    del first["current-context"]
    paths = [written(tmp_path / "1", first), str(tmp_path / "missing"), written(tmp_path / "2", second)]
    environment = {"KUBECONFIG": ":".join(paths)}
    assert load(Overrides(), environment).host == "https://b.example.com:6443"
    assert load(Overrides(context="a"), environment).token == "a-token"
    assert load(Overrides(cluster="a", user="b"), environment).token == "b-token"


def test_the_home_directory_is_the_last_resort(tmp_path: Path) -> None:
    written(tmp_path / ".kube" / "config", config("home"))
    assert load(Overrides(), {"HOME": str(tmp_path)}).token == "home-token"
    assert load(Overrides(), {"HOME": str(tmp_path / "none")}).host == kubeconfig.NO_SERVER


def test_a_pod_is_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("CA")
    (tmp_path / "namespace").write_text("shop\n")
    environment = {"HOME": "/none", "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = load(Overrides(), environment)
    assert (found.host, found.namespace) == ("https://[fd00::1]:443", "shop")
    assert found.token_file == str(tmp_path / "token")


def test_paths_are_relative_to_their_file_and_data_stays_in_memory(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("CA")
    user = {"client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key-data": "S0VZ"}
    found = load(
        Overrides(kubeconfig=written(tmp_path / "c", config(user=user, **{"certificate-authority": "ca.crt"}))), {}
    )
    assert found.ssl_ca_cert == str(tmp_path / "ca.crt")
    assert found.cert_file is not None
    assert found.key_file is not None
    assert (Path(found.cert_file).read_bytes(), Path(found.key_file).read_bytes()) == (b"CERT", b"KEY")
    assert found.cert_file.startswith("/proc/self/fd/")


def test_impersonation(tmp_path: Path) -> None:
    path = written(tmp_path / "c", config(user={"token": "t", "as": "jane", "as-groups": ["dev"]}))
    assert load(Overrides(kubeconfig=path), {}).impersonate["user"] == "jane"
    found = load(Overrides(kubeconfig=path, impersonate="joe", impersonate_groups=("ops",)), {}).impersonate
    assert (found["user"], found["groups"]) == ("joe", ["ops"])
    with pytest.raises(ConfigError, match="--as-group and --as-uid need --as"):
        load(Overrides(kubeconfig=path, impersonate_groups=("ops",)), {})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"context": "x"}, 'context "x" does not exist'),
        ({"cluster": "x"}, 'cluster "x" does not exist'),
        ({"user": "x"}, 'auth info "x" does not exist'),
        ({"kubeconfig": "/nowhere"}, "--kubeconfig: /nowhere: no such file"),
        ({"server": "ftp://x"}, 'server "ftp://x": allowed: an http or https URL'),
        ({"client_certificate": "/nowhere"}, "--client-certificate: found /nowhere (no such file)"),
    ],
)
def test_what_is_named_has_to_be_there(tmp_path: Path, flags: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(Overrides(**({"kubeconfig": written(tmp_path / "c", config())} | flags)), {})  # type: ignore[arg-type]
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("clusters: null", ""),
        ("[", "line 1: "),
        ("- a", "c: found a list; allowed: a mapping"),
        ("clusters: {}", "c: clusters: found a mapping; allowed: a list"),
        ("clusters: [1]", "c: clusters[0]: found a number; allowed: a mapping"),
        ("clusters: [{name: 1}]", "c: clusters[0].name: found a number; allowed: a text"),
        ("clusters: [{name: a, cluster: 1}]", "c: clusters[0].cluster: found a number; allowed: a mapping"),
        ("current-context: x", 'the current context "x" of'),
        ("\0", "c: line 1: "),
        ("\udcff".encode("utf-8", "surrogateescape"), "c: line 1: byte 0xff is not UTF-8"),
    ],
)
def test_a_wrong_file_is_reported(tmp_path: Path, text: str | bytes, expected: str) -> None:
    (tmp_path / "c").write_bytes(text.encode() if isinstance(text, str) else text)
    if not expected:
        load(Overrides(kubeconfig=str(tmp_path / "c")), {})
        return
    with pytest.raises(ConfigError) as raised:
        load(Overrides(kubeconfig=str(tmp_path / "c")), {})
    assert expected in str(raised.value)


CLUSTER, USER = "clusters: [{name: c, cluster: {%s}}]", "users: [{name: u, user: {%s}}]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            CLUSTER % 'insecure-skip-tls-verify: "false"',
            'clusters[0].cluster.insecure-skip-tls-verify: found the text "false"; allowed: true or false',
        ),
        (CLUSTER % "insecure-skip-tls-verify: 1", "found a number; allowed: true or false"),
        (CLUSTER % "insecure-skip-tls-verify: []", "found a list; allowed: true or false"),
        (CLUSTER % "insecure-skip-tls-verify: no", ""),  # false, in YAML 1.1 and so in kubectl
        (CLUSTER % "insecure-skip-tls-verify: null", ""),
        (CLUSTER % "unknown: 1, extensions: [{name: x, extension: {y: 1}}]", ""),
        (CLUSTER % "certificate-authority: [a]", "clusters[0].cluster.certificate-authority: found a list"),
        (
            CLUSTER % "tls-server-name: true",
            "clusters[0].cluster.tls-server-name: found true or false; allowed: a text",
        ),
        (CLUSTER % "proxy-url: {}", "clusters[0].cluster.proxy-url: found a mapping; allowed: a text"),
        (USER % "token: 12345", "users[0].user.token: found a number; allowed: a text"),
        (USER % "token: 2026-01-01", ""),  # a text, as in kubectl
        (USER % "as-groups: dev", "users[0].user.as-groups: found a text; allowed: a list"),
        (USER % "as-user-extra: {a: b}", "users[0].user.as-user-extra[...]: found a text; allowed: a list"),
        (USER % "exec: {command: x, args: [1]}", "users[0].user.exec.args[0]: found a number; allowed: a text"),
        (USER % "exec: {command: x, env: [{name: a}]}", "exec.env[0]: found no value; allowed: a mapping with name"),
        (USER % "exec: [x]", "users[0].user.exec: found a list; allowed: a mapping"),
        (USER % "auth-provider: {name: oidc, config: {a: 1}}", "auth-provider.config[...]: found a number"),
    ],
)
def test_a_field_of_a_wrong_type_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """As by kubectl, whether the current context needs it or not. Its value, which may be a secret, is not shown."""
    test_a_wrong_file_is_reported(tmp_path, text, expected)


def test_a_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig_file, "MAX_BYTES", 100)
    test_a_wrong_file_is_reported(tmp_path, "#" * 101, "found more than 100 bytes")


def test_a_server_without_a_scheme_is_as_client_go_takes_it(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("CA")
    assert load(Overrides(server="h:1"), {"HOME": "/none"}).host == "http://h:1"
    assert (
        load(Overrides(server="h:1", certificate_authority=str(tmp_path / "ca")), {"HOME": "/none"}).host
        == "https://h:1"
    )
