"""Objects of any kind, one at a time: POST creates one, GET finds it. No controllers run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tests.support.apiserver.answers import Refusal, not_found
from tests.support.apiserver.cluster import Cluster, Kind, event_json
from tests.support.apiserver.version import Version

MAX_BODY_BYTES = 3 << 20
MAX_DATA_BYTES = 1 << 20
COMMAND_KINDS = (
    Kind("configmaps", "ConfigMap", "v1"),
    Kind("namespaces", "Namespace", "v1", namespaced=False),
    Kind("pods", "Pod", "v1"),
    Kind("services", "Service", "v1"),
    Kind("serviceaccounts", "ServiceAccount", "v1"),
    Kind("deployments", "Deployment", "apps/v1"),
    Kind("deployments", "Deployment", "apps/v1beta1"),
    Kind("customresourcedefinitions", "CustomResourceDefinition", "apiextensions.k8s.io/v1", namespaced=False),
)
_TEXT = {"type": "string"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_META = dict.fromkeys(("name", "namespace", "generateName"), _TEXT) | dict.fromkeys(("labels", "annotations"), _TEXTS)
_CONFIG_MAP = {
    "apiVersion": _TEXT,
    "kind": _TEXT,
    "metadata": {"type": "object", "properties": _META},
    "data": _TEXTS,
    "immutable": {"type": "boolean"},
}
SCHEMAS = {
    "io.k8s.api.core.v1.ConfigMap": {
        "type": "object",
        "properties": _CONFIG_MAP,
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "ConfigMap"}],
    }
}
"""The one kind whose fields are checked."""


class Place(NamedTuple):
    """What a path names."""

    kind: Kind
    namespace: str
    name: str
    """Empty for all objects."""


def command_cluster() -> Cluster:
    """A cluster with the kinds that commands write, and the namespace ``default``."""
    cluster = Cluster(kinds=COMMAND_KINDS)
    cluster.put("namespaces", {"metadata": {"name": "default"}, "status": {"phase": "Active"}})
    return cluster


def place_of(cluster: Cluster, path: str) -> Place | None:
    """What a path names, or None if no kind is served there."""
    for kind in cluster.kinds:
        root = kind.path.removesuffix(f"/{kind.resource}")
        namespace, rest = "", path.removeprefix(f"{root}/").split("/")
        if not path.startswith(f"{root}/"):
            continue
        if len(rest) >= 3 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if rest[0] == kind.resource and len(rest) <= 2 and bool(namespace) <= kind.namespaced:
            return Place(kind, namespace, (*rest, "")[1])
    return None


def find(cluster: Cluster, place: Place) -> bytes:
    """The JSON of an object. `Refusal` without one."""
    stored = cluster.stored(place.kind.resource, place.namespace, place.name)
    if stored is None:
        raise _refusal(404, f'{place.kind.resource} "{place.name}" not found', place, name=place.name)
    return event_json(place.kind, stored) + b"\n"


def create(
    cluster: Cluster, version: Version, path: str, query: Mapping[str, str], body: bytes
) -> tuple[bytes, list[str]]:
    """Carry a POST out; returns the object's JSON, and warnings. `Refusal` where a real server refuses."""
    place = place_of(cluster, path)
    if place is None:
        raise not_found()
    if place.name or bool(place.namespace) is not place.kind.namespaced:
        raise Refusal(405, "the server does not allow this method on the requested resource", details={})
    if len(body) > MAX_BODY_BYTES:
        raise Refusal(413, f"Request entity too large: limit is {MAX_BODY_BYTES}", details={})
    sent: dict[str, Any] = json.loads(body)
    metadata = sent["metadata"]
    name = metadata.get("name") or f"{metadata['generateName']}{cluster.version:05}"
    _check(cluster, place, name, sent)
    warnings = _check_fields(place.kind, version, query.get("fieldValidation"), sent)
    if cluster.get(place.kind.resource, place.namespace, name) is not None:
        raise _refusal(409, f'{place.kind.resource} "{name}" already exists', place, name=name)
    managers = [{"manager": query.get("fieldManager"), "operation": "Update"}]
    given = {"name": name, "managedFields": managers} | ({"namespace": place.namespace} if place.namespace else {})
    made = sent | {"metadata": metadata | given}
    if warning := metadata.get("annotations", {}).get("warn"):
        warnings.append(warning)
    if query.get("dryRun") == "All":
        return msgspec.json.encode(made), warnings
    cluster.put(place.kind.resource, made)
    if place.kind.kind == "CustomResourceDefinition":
        asyncio.get_running_loop().call_later(cluster.established_s, _serve, cluster, made)
    return find(cluster, place._replace(name=name)), warnings


def _check(cluster: Cluster, place: Place, name: object, sent: Mapping[str, Any]) -> None:
    kind, namespace = place.kind, place.namespace
    if "resourceVersion" in sent["metadata"]:
        raise Refusal(500, "resourceVersion should not be set on objects to be created", details={})
    if namespace:
        standing = cluster.get("namespaces", "", namespace)
        if standing is None:
            details = {"name": namespace, "kind": "namespaces"}
            raise Refusal(404, f'namespaces "{namespace}" not found', details=details)
        if standing.get("status", {}).get("phase") == "Terminating":
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise _refusal(403, f'{kind.resource} "{name}" is forbidden: {text}', place, name=name)
    if not isinstance(name, str) or name != name.lower():
        wrong = f'Invalid value: "{name}": a lowercase RFC 1123 subdomain'
        causes = [{"reason": "FieldValueInvalid", "message": wrong, "field": "metadata.name"}]
        text = f'{kind.kind} "{name}" is invalid: metadata.name: {wrong}'
        raise _refusal(422, text, place, name=name, kind=kind.kind, causes=causes)
    if sum(len(str(value)) for value in (sent.get("data") or {}).values()) > MAX_DATA_BYTES:
        text = f'{kind.kind} "{name}" is invalid: []: Too long: must have at most {MAX_DATA_BYTES} bytes'
        raise _refusal(422, text, place, name=name, kind=kind.kind, causes=[])


def _check_fields(kind: Kind, version: Version, level: str | None, sent: dict[str, Any]) -> list[str]:
    """Drop unknown fields; returns the warnings of a server that tells of them."""
    unknown = [key for key in sent if kind.kind == "ConfigMap" and key not in _CONFIG_MAP]
    for key in unknown:
        del sent[key]
    said = [f'unknown field "{key}"' for key in unknown]
    if not version.checks_fields or not said or level == "Ignore":
        return []
    if level == "Strict":
        text = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: strict decoding error: '
        raise Refusal(400, text + ", ".join(said), details={})
    return said


def _serve(cluster: Cluster, definition: dict[str, Any]) -> None:
    """Begin to serve a defined kind."""
    established = {"conditions": [{"type": "Established", "status": "True"}]}
    cluster.put("customresourcedefinitions", definition | {"status": established})
    spec = definition["spec"]
    for version in spec["versions"]:
        group_version = f"{spec['group']}/{version['name']}"
        cluster.kinds.append(Kind(spec["names"]["plural"], spec["names"]["kind"], group_version))


def _refusal(code: int, message: str, place: Place, **details: Any) -> Refusal:
    return Refusal(code, message, details={"group": place.kind.group, "kind": place.kind.resource} | details)
