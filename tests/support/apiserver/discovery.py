"""What a server says of the kinds that it serves."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from tests.support.apiserver.answers import PlainRefusal, json_answer, not_found
from tests.support.apiserver.cluster import Cluster, Kind
from tests.support.apiserver.creation import SCHEMAS
from tests.support.apiserver.version import Version

_GROUPLESS = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovery(request: web.Request, cluster: Cluster, version: Version) -> web.Response:
    """The answer to a path that is neither a list nor an object. `Refusal` where nothing is."""
    groups = _groups(cluster, version)
    asks_for_all = "APIGroupDiscoveryList" in request.headers.get("Accept", "")
    match request.path.strip("/").split("/"):
        case ["api" | "apis" as root] if asks_for_all and version.aggregates_discovery:
            return _aggregated([kind for kind in cluster.kinds if (kind.group == "") is (root == "api")])
        case ["api"]:
            return json_answer(request, version, _GROUPLESS)
        case ["apis"]:
            listed = [_group(name, versions) for name, versions in groups.items()]
            return json_answer(request, version, {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})
        case ["apis", group] if group in groups:
            described = {"kind": "APIGroup", "apiVersion": "v1", **_group(group, groups[group])}
            return json_answer(request, version, described)
        case ["apis", group, name] if name in groups.get(group, ()):
            return json_answer(request, version, _resources(cluster, f"{group}/{name}"))
        case ["api", "v1"]:
            return json_answer(request, version, _resources(cluster, "v1"))
        case ["version"]:
            return json_answer(request, version, {"major": "1", "minor": version.minor})
        case ["openapi", "v2"]:
            return json_answer(request, version, {"definitions": SCHEMAS})
        case ["readyz" | "livez" | "healthz"]:
            return web.Response(text="ok")
        case ["api", "v1", *_]:
            raise not_found()
        case ["apis", group, *_] if group in groups:
            raise not_found()
        case _:
            raise PlainRefusal(404, "404 page not found\n")


def _groups(cluster: Cluster, version: Version) -> dict[str, list[str]]:
    """The groups of the server and of its kinds, each with its versions."""
    found = {name: list(versions) for name, versions in version.groups}
    for kind in cluster.kinds:
        if kind.group not in ("", *dict(version.groups)) and kind.version not in found.setdefault(kind.group, []):
            found[kind.group].append(kind.version)
    return found


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    served = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": served, "preferredVersion": served[0]}


def _resources(cluster: Cluster, group_version: str) -> dict[str, Any]:
    resources = [
        {
            "name": kind.resource,
            "singularName": kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": _VERBS,
        }
        for kind in cluster.kinds
        if kind.group_version == group_version
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _aggregated(kinds: list[Kind]) -> web.Response:
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for kind in kinds:
        groups.setdefault(kind.group, {}).setdefault(kind.version, []).append(
            {
                "resource": kind.resource,
                "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
                "scope": "Namespaced" if kind.namespaced else "Cluster",
                "singularResource": kind.kind.lower(),
                "verbs": _VERBS,
            }
        )
    items = [
        {
            "metadata": {"name": name},
            "versions": [
                {"version": version, "resources": resources, "freshness": "Current"}
                for version, resources in versions.items()
            ],
        }
        for name, versions in groups.items()
    ]
    body = json.dumps({"kind": "APIGroupDiscoveryList", "items": items}).encode()
    return web.Response(body=body, headers={"Content-Type": _AGGREGATED})
