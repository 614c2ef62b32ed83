"""Discovery as real servers answered it, and documents that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubeproxy.kubernetes.client.errors import GarbageError
from kubeproxy.kubernetes.resource_builder.discovery import (
    Catalog,
    file_name,
    parse_aggregated,
    parse_groups,
    parse_resources,
    parse_versions,
)
from kubeproxy.kubernetes.resource_builder.mapper import Index

RECORDED = Path(__file__).parents[2] / "support" / "apiserver" / "data"


def recorded(version: str, name: str) -> bytes:
    return json.dumps(json.loads((RECORDED / version / "discovery" / f"{name}.json").read_text())["body"]).encode()


@pytest.mark.parametrize(("server", "served"), [("v1.36", "v1"), ("v1.20", "v1beta1")])
def test_what_real_servers_serve(server: str, served: str) -> None:
    assert parse_versions(recorded(server, "api")) == ["v1"]
    groups = parse_groups(recorded(server, "apis"))
    assert ("apps", "v1") in groups
    assert ("discovery.k8s.io", served) in groups
    resources = parse_resources(recorded(server, f"discovery.k8s.io_{served}"), "discovery.k8s.io", served)
    index = Index(Catalog(tuple(resources)))
    found = index.kind(f"discovery.k8s.io/{served}", "EndpointSlice")
    assert found is not None
    assert found.path("a/b", "..") == f"/apis/discovery.k8s.io/{served}/namespaces/a%2Fb/endpointslices/%2E%2E"


def test_the_preferred_version_comes_first() -> None:
    group = {
        "name": "g",
        "versions": [{"version": "v1alpha1"}, {"version": "v1"}],
        "preferredVersion": {"version": "v1"},
    }
    assert parse_groups(json.dumps({"groups": [group]}).encode()) == [("g", "v1"), ("g", "v1alpha1")]


def test_what_cannot_be_part_of_a_path_is_left_out() -> None:
    assert parse_groups(b'{"groups":[{"name":"../x","versions":[{"version":"v1"}]}]}') == []
    bad = {"name": "a/../../b", "kind": "B", "namespaced": True}
    assert parse_resources(json.dumps({"resources": [bad, {"name": None}, {}]}).encode(), "g", "v1") == []


def test_a_version_that_the_server_cannot_reach_is_known() -> None:
    stale = {"items": [{"metadata": {"name": "metrics.k8s.io"}, "versions": [{"version": "v1", "freshness": "Stale"}]}]}
    assert parse_aggregated(json.dumps(stale).encode()).failed == ("metrics.k8s.io/v1: the server cannot reach it",)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items": 1}', b'{"items": [{"versions": "x"}]}', b"\xff"])
def test_what_is_no_discovery_is_refused(body: bytes) -> None:
    with pytest.raises(GarbageError):
        parse_aggregated(body)


def test_every_server_has_a_file_of_its_own() -> None:
    names = {
        file_name(url) for url in ("https://a:1", "https://a:2", "http://a:1", "https://a_1", "https://" + "x" * 300)
    }
    assert len(names) == 5
    assert all(len(name) < 120 and "/" not in name for name in names)
