"""Writes of v1 Events, a proxy's only writes: POST creates them, PATCH raises their count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tests.support.apiserver.answers import Refusal
from tests.support.apiserver.cluster import KINDS, Cluster, event_json

_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/events(?:/([^/]+))?")
_VERBS = {"POST": "create", "PATCH": "patch"}
_MERGE = ("application/merge-patch+json", "application/strategic-merge-patch+json")


def verb_of(method: str, path: str) -> str:
    """``create`` or ``patch``; empty for other methods."""
    match = _PATH.fullmatch(path)
    return _VERBS.get(method, "") if match and (method == "PATCH") is (match[2] is not None) else ""


def forbidden(user: str, method: str, path: str) -> Refusal:
    """The answer to a client without permission to write."""
    match = _PATH.fullmatch(path)
    assert match is not None
    return Refusal(
        403,
        f'events is forbidden: User "{user}" cannot {_VERBS[method]} resource "events" in API group "" '
        f'in the namespace "{match[1]}"',
        details={"kind": "events"} if match[2] is None else {"name": match[2], "kind": "events"},
    )


def write(cluster: Cluster, method: str, path: str, content_type: str, body: bytes) -> tuple[int, bytes]:
    """Apply a write; returns status and object. `Refusal` where a real server refuses."""
    match = _PATH.fullmatch(path)
    assert match is not None
    namespace, name = match[1], match[2]
    try:
        sent = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Refusal(400, f"error decoding: {error}") from error
    if method == "POST":
        _create(cluster, namespace, sent)
        name = str(sent["metadata"]["name"])
    else:
        _patch(cluster, namespace, name, content_type, sent)
    stored = cluster.at("events", cluster.version)[f"{namespace}/{name}"]
    return 201 if method == "POST" else 200, event_json(KINDS["events"], stored) + b"\n"


def _create(cluster: Cluster, namespace: str, sent: Mapping[str, Any]) -> None:
    metadata, involved = sent.get("metadata") or {}, sent.get("involvedObject") or {}
    name = metadata.get("name", "")
    if sent.get("kind") != "Event" or sent.get("apiVersion") != "v1":
        raise Refusal(400, f"the object provided is unrecognized: {sent.get('apiVersion')} {sent.get('kind')}")
    if metadata.get("namespace", namespace) != namespace:
        raise Refusal(400, "the namespace of the provided object does not match the namespace sent on the request")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name) or len(name) > 253:
        raise Refusal(422, f'Event "{name}" is invalid: metadata.name: Invalid value: "{name}"')
    if (involved.get("namespace") or "default") != namespace:
        of = involved.get("namespace", "")
        wrong = f'involvedObject.namespace: Invalid value: "{of}": does not match event.namespace'
        raise Refusal(422, f'Event "{name}" is invalid: {wrong}')
    if cluster.get("events", namespace, name) is not None:
        raise Refusal(409, f'events "{name}" already exists', details={"name": name, "kind": "events"})
    cluster.put("events", {**sent, "metadata": {**metadata, "namespace": namespace}})


def _patch(cluster: Cluster, namespace: str, name: str, content_type: str, sent: Mapping[str, Any]) -> None:
    if content_type not in _MERGE:
        raise Refusal(415, f"the body of the request was in an unknown format - accepted media types include: {_MERGE}")
    old = cluster.get("events", namespace, name)
    if old is None:
        raise Refusal(404, f'events "{name}" not found', details={"name": name, "kind": "events"})
    cluster.put("events", {**old, **sent})
