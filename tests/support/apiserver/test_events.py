"""Events are created, counted and refused as by a real server."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.support.apiserver import ApiServer

PATH = "/api/v1/namespaces/demo/events"
MERGE = "application/merge-patch+json"
EVENT: dict[str, Any] = {
    "kind": "Event",
    "apiVersion": "v1",
    "metadata": {"name": "a"},
    "involvedObject": {"kind": "Service", "namespace": "demo", "name": "web"},
    "count": 1,
}


async def send(
    server: ApiServer, method: str, path: str, body: object, content_type: str = "application/json"
) -> tuple[int, Any]:
    headers = {"Content-Type": content_type}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.url + path, json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


async def test_an_event_is_created_then_counted() -> None:
    async with ApiServer() as server:
        status, created = await send(server, "POST", PATH, EVENT)
        assert (status, created["kind"], created["metadata"]["namespace"]) == (201, "Event", "demo")
        status, patched = await send(server, "PATCH", f"{PATH}/a", {"count": 2}, MERGE)
        assert (status, patched["count"], patched["metadata"]["uid"]) == (200, 2, created["metadata"]["uid"])
        assert int(patched["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
        assert server.counts == {"create events": 1, "patch events": 1}


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "status", "reason"),
    [
        ("POST", PATH, EVENT, "application/json", 409, "AlreadyExists"),
        ("POST", "/api/v1/namespaces/other/events", EVENT, "application/json", 422, "Invalid"),
        ("POST", PATH, {**EVENT, "metadata": {"name": "B"}}, "application/json", 422, "Invalid"),
        ("POST", PATH, {**EVENT, "metadata": {"name": "b", "namespace": "c"}}, "application/json", 400, "BadRequest"),
        ("POST", PATH, {}, "application/json", 400, "BadRequest"),
        ("POST", PATH, [], "application/json", 400, "BadRequest"),
        ("PATCH", f"{PATH}/b", {"count": 2}, MERGE, 404, "NotFound"),
        ("PATCH", f"{PATH}/a", {"count": 2}, "application/json", 415, "UnsupportedMediaType"),
        ("POST", "/api/v1/services", {}, "application/json", 405, "MethodNotAllowed"),
    ],
)
async def test_refusals(method: str, path: str, body: object, content_type: str, status: int, reason: str) -> None:
    async with ApiServer() as server:
        await send(server, "POST", PATH, EVENT)
        answered, refusal = await send(server, method, path, body, content_type)
        assert (answered, refusal["reason"]) == (status, reason)


async def test_forbidden_writes_are_refused() -> None:
    async with ApiServer() as server:
        server.forbidden = True
        status, refusal = await send(server, "POST", PATH, EVENT)
    assert status == 403
    assert refusal["message"] == (
        'events is forbidden: User "system:kube-proxy" cannot create resource "events" in API group "" '
        'in the namespace "demo"'
    )
