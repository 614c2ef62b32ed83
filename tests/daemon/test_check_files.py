"""The files that a configuration names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeproxy.config.load import load
from kubeproxy.daemon import check_files
from kubeproxy.model.errors import ConfigError


def faults(**given: str) -> list[str]:
    configuration = load({name.replace("_", "-"): [text] for name, text in given.items()}).configuration
    return list(check_files.faults(configuration, {}))


def kubeconfig(directory: Path, *, user: dict[str, Any] | None = None, **cluster: Any) -> str:
    path = directory / "kubeconfig"
    data = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443", **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(data))
    return str(path)


def test_everything_is_there(tmp_path: Path) -> None:
    for name in ("ca", "key", "one.yaml"):
        (tmp_path / name).touch()
    settings = {
        "kubeconfig": kubeconfig(tmp_path, user={"client-key": "key"}, **{"certificate-authority": "ca"}),
        "access_log": str(tmp_path / "new.log"),
    }
    for manifests in (tmp_path, tmp_path / "one.yaml", tmp_path / "*.yaml", "https://192.0.2.1/a.yaml", "-"):
        assert faults(manifests=str(manifests), **settings) == []
    assert not (tmp_path / "new.log").exists(), "nothing is made"


def test_missing_manifests(tmp_path: Path) -> None:
    assert faults(manifests=str(tmp_path / "none")) == [
        f"kubeproxy.manifests.paths[0]: found {tmp_path}/none (No such file or directory);"
        " allowed: a file, a directory, a pattern of files, a URL or -"
    ]
    assert len(faults(manifests=str(tmp_path / "*.yaml"))) == 1


def test_files_that_a_kubeconfig_names(tmp_path: Path) -> None:
    user = {"client-certificate": "cert", "client-key": "key", "tokenFile": "/none/token"}
    path = kubeconfig(tmp_path, user=user, **{"certificate-authority": "ca"})
    (tmp_path / "key").touch()
    assert [fault.partition(" (")[0] for fault in faults(kubeconfig=path)] == [
        f"clientConnection.kubeconfig: {path}: clusters[0].cluster.certificate-authority: found {tmp_path}/ca",
        f"clientConnection.kubeconfig: {path}: users[0].user.client-certificate: found {tmp_path}/cert",
        f"clientConnection.kubeconfig: {path}: users[0].user.tokenFile: found /none/token",
    ]
    plugin = kubeconfig(tmp_path, user={"exec": {"command": "no-such-plugin"}})
    assert 'users[0].user.exec.command: found "no-such-plugin" (no such program)' in faults(kubeconfig=plugin)[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "line 1: "),
        ("- a", "found a list; allowed: a mapping"),
        ("a: b", "current-context: found nothing"),
        ("current-context: x\ncontexts: []", 'the current context "x" of '),
        ("current-context: x\ncontexts: [{name: x, context: {cluster: c}}]", 'cluster "c" does not exist'),
        (
            "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c}]",
            'cluster "c" of the current context has no server',
        ),
        (
            "clusters: [{name: c, cluster: {insecure-skip-tls-verify: 'false'}}]",
            'clusters[0].cluster.insecure-skip-tls-verify: found the text "false"; allowed: true or false',
        ),
    ],
)
def test_a_faulty_kubeconfig(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    (fault,) = faults(kubeconfig=str(path))
    assert fault.startswith("clientConnection.kubeconfig: ")
    assert str(path) in fault
    assert why in fault


def test_a_pod_without_a_service_account() -> None:
    assert faults(kubernetes="always") == [], "a configuration for a pod can be checked elsewhere"
    with pytest.raises(ConfigError) as caught:
        check_files.require(load({"kubernetes": ["always"]}).configuration, {})
    assert [fault.partition(":")[0] for fault in caught.value.faults] == ["kubeproxy.kubernetes"] * 2
    assert faults(master="http://192.0.2.1") == []


def test_an_access_log_that_cannot_be_written(tmp_path: Path) -> None:
    assert "No such file or directory" in faults(manifests="/", access_log=str(tmp_path / "none/log"))[0]
    assert "Is a directory" in faults(manifests="/", access_log=str(tmp_path))[0]
    os.mkfifo(tmp_path / "pipe")
    assert faults(manifests="/", access_log=str(tmp_path / "pipe")) == []


def test_every_file_is_named_at_once(tmp_path: Path) -> None:
    configuration = load({"manifests": ["/none"], "access-log": ["/none/log"]}).configuration
    with pytest.raises(ConfigError) as caught:
        check_files.require(configuration, {})
    assert len(caught.value.faults) == 2
