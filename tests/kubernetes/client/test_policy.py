"""Requests of commands: headers, waits that the server asks for, credentials that run out, answers that are none."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import Access
from kubeproxy.kubernetes.client.errors import GarbageError, StatusError, UnreachableError
from kubeproxy.kubernetes.client.kubeconfig import ClientConfig, Overrides, load
from kubeproxy.kubernetes.client.policy import MAX_WAITS, Policy
from kubeproxy.kubernetes.client.status import warnings_of
from kubeproxy.model.errors import ConfigError
from tests.support.web_server import Handler, WebServer, web_server


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as found:
        yield found


def client_of(config: ClientConfig, **policy: Any) -> Client:
    """A client with the policy of commands."""
    return Client(Access(lambda: config), Policy.for_command(**policy))


def answer(status: int, body: object = None, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, body=text, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return handler


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_user_agent_and_identity(server: WebServer) -> None:
    server.handlers = [answer(200, {})]
    impersonate = {"user": "jane", "uid": "7", "groups": ["a", "b"], "extra": {"scopes/x": ["y"]}}
    async with client_of(ClientConfig(host=server.url, token="t", impersonate=impersonate)) as client:
        await client.get("/x", {"a": "b"})
    headers = server.seen[0].headers
    assert headers["Authorization"] == "Bearer t"
    assert headers.getall("Impersonate-Group") == ["a", "b"]
    assert (headers["Impersonate-User"], headers["Impersonate-Uid"]) == ("jane", "7")
    assert headers["Impersonate-Extra-scopes%2Fx"] == "y"
    assert server.seen[0].path_qs == "/x?a=b"


async def test_basic_authentication(server: WebServer) -> None:
    server.handlers = [answer(200, {})]
    async with client_of(ClientConfig(host=server.url, username="u", password="p")) as client:
        await client.get("/x")
    assert server.seen[0].headers["Authorization"] == "Basic dTpw"


async def test_a_header_cannot_be_smuggled_in(server: WebServer) -> None:
    async with client_of(ClientConfig(host=server.url, token="a\r\nX: y")) as client:
        with pytest.raises(ConfigError, match="no HTTP header may have"):
            await client.get("/x")


async def test_waits_that_the_server_asks_for_have_an_end(server: WebServer) -> None:
    waits: list[float] = []
    server.handlers = [answer(429, {}, Retry_After="0")]
    async with client_of(ClientConfig(host=server.url), on_wait=lambda seconds, _: waits.append(seconds)) as client:
        with pytest.raises(StatusError, match="too many requests") as raised:
            await client.request("POST", "/x", body=b"{}")
    assert raised.value.status == 429
    assert len(waits) == MAX_WAITS
    assert raised.value.repeated is False


async def test_a_read_is_tried_again_and_a_write_is_not(server: WebServer) -> None:
    server.handlers = [cut, answer(200, {"a": 1})]
    async with client_of(ClientConfig(host=server.url)) as client:
        assert (await client.get("/x")).decoded() == {"a": 1}
        server.handlers = [cut, answer(200, {})]
        with pytest.raises(UnreachableError):
            await client.request("POST", "/x", body=b"{}")


async def test_a_server_that_does_not_answer_is_given_up(server: WebServer) -> None:
    import asyncio

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    server.handlers = [hang]
    async with client_of(ClientConfig(host=server.url), answer_s=0.2) as client:
        with pytest.raises(UnreachableError, match="no answer in time"):
            await client.get("/x")


async def test_answers_that_are_none(server: WebServer) -> None:
    async with client_of(ClientConfig(host=server.url)) as client:
        server.handlers = [answer(302, b"", Location="/login")]
        with pytest.raises(GarbageError, match="a redirect to /login"):
            await client.get("/x")
        server.handlers = [answer(200, b"<html>")]
        with pytest.raises(GarbageError, match="no JSON"):
            (await client.get("/x")).decoded()
        server.handlers = [answer(404, b"404 page not found\n")]
        with pytest.raises(StatusError, match=r"could not find the requested resource \(get /x\): 404 page not found"):
            await client.get("/x")
        server.handlers = [answer(418, b"")]
        with pytest.raises(StatusError, match="responded with the status code 418"):
            await client.get("/x")


def _with_plugin(server: WebServer, tmp_path: Path) -> ClientConfig:
    """With credentials of a plugin, which gives another token each time."""
    count = tmp_path / "count"
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, pathlib\n"
        f"path = pathlib.Path({str(count)!r})\n"
        "number = int(path.read_text()) + 1 if path.exists() else 1\n"
        "path.write_text(str(number))\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',\n"
        "                  'status': {'token': f'token-{number}'}}))\n"
    )
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": server.url}}],
        "users": [
            {
                "name": "it",
                "user": {
                    "exec": {
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "command": sys.executable,
                        "args": [str(plugin)],
                        "interactiveMode": "Never",
                    }
                },
            }
        ],
    }
    (tmp_path / "config").write_text(json.dumps(document))
    return load(Overrides(kubeconfig=str(tmp_path / "config")), {})


async def test_a_plugin_is_run_once_and_again_after_a_refusal(server: WebServer, tmp_path: Path) -> None:
    config = _with_plugin(server, tmp_path)
    server.handlers = [answer(200, {}), answer(200, {}), answer(401, {}), answer(200, {})]
    async with client_of(config) as client:
        for _ in range(3):
            await client.get("/x")
    assert [request.headers["Authorization"] for request in server.seen] == [
        *("Bearer token-1", "Bearer token-1", "Bearer token-1", "Bearer token-2"),
    ]


async def test_requests_that_begin_together_wait_for_the_plugin(server: WebServer, tmp_path: Path) -> None:
    server.handlers = [answer(200, {})] * 3
    async with client_of(_with_plugin(server, tmp_path)) as client:
        await asyncio.gather(*(client.get(path) for path in ("/api", "/apis", "/version")))
    assert [request.headers.get("Authorization") for request in server.seen] == ["Bearer token-1"] * 3


@pytest.mark.parametrize(
    ("plugin", "why"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1", "command": "/nowhere/plugin"}, ".*/nowhere/plugin"),
        ({"command": "true"}, "exec: command and apiVersion are required"),
    ],
)
async def test_a_failing_plugin_is_reported(server: WebServer, plugin: dict[str, str], why: str) -> None:
    async with client_of(ClientConfig(host=server.url, plugin={"exec": plugin})) as client:
        with pytest.raises(ConfigError, match=f"getting credentials: {why}"):
            await client.get("/x")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('299 - "old"', ["old"]),
        ('299 - "say \\"hi\\" \\\\"', ['say "hi" \\']),
        ('299 agent "a" "Sun, 22 Nov 2026 00:00:00 GMT", 299 - "b"', ["a", "b"]),
        ('199 - "other"', []),
        ("nonsense", []),
        ('299 - "open', ["open"]),
        ("", []),
    ],
)
def test_warnings_are_read(header: str, expected: list[str]) -> None:
    assert warnings_of(header) == expected


async def test_warnings_of_answers_are_handed_on(server: WebServer) -> None:
    said: list[str] = []

    async def warn(request: web.Request) -> web.StreamResponse:
        response = web.json_response({})
        response.headers.add("Warning", '299 - "one"')
        response.headers.add("Warning", '299 - "two"')
        return response

    server.handlers = [warn]
    async with client_of(ClientConfig(host=server.url), on_warning=said.append) as client:
        await client.get("/x")
    assert said == ["one", "two"]


@pytest.mark.parametrize("named_by", ["proxy-url", "the environment's proxy"])
async def test_a_proxy_that_does_not_speak_http_is_refused(named_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "socks5://me:secret@127.0.0.1:1080"
    monkeypatch.setenv("http_proxy", url)
    configured = url if named_by == "proxy-url" else None
    async with client_of(ClientConfig(host="http://api.example.com", proxy=configured)) as client:
        with pytest.raises(ConfigError) as raised:
            await client.get("/x")
    assert str(raised.value) == (
        f"{named_by}: found socks5://127.0.0.1:1080; allowed: the URL of an HTTP proxy, with http or https"
    )


async def test_a_proxy_of_the_environment_is_used(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.handlers = [answer(200, {})]
    monkeypatch.setenv("http_proxy", server.url.replace("://", "://me:se%63ret@"))
    monkeypatch.setenv("no_proxy", "direct.example.com")
    async with client_of(ClientConfig(host="http://api.example.com:8080")) as client:
        await client.get("/x")
    assert server.seen[0].headers["Host"] == "api.example.com:8080"
    assert server.seen[0].headers["Proxy-Authorization"] == "Basic bWU6c2VjcmV0"
    async with client_of(ClientConfig(host="http://api.example.com", proxy=server.url)) as client:
        await client.get("/x")
    assert "Proxy-Authorization" not in server.seen[1].headers
    async with client_of(ClientConfig(host="http://direct.example.com:1"), answer_s=1) as client:
        with pytest.raises(UnreachableError):
            await client.get("/x")
    assert len(server.seen) == 2
