"""``-f`` arguments: files, directories, patterns, web addresses, in kubectl's order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from kubeproxy.kubernetes.manifests import http
from kubeproxy.kubernetes.resource_builder import file_arguments
from kubeproxy.kubernetes.resource_builder.errors import SourceError
from kubeproxy.kubernetes.resource_builder.file_arguments import FileSource, UrlSource, expand
from tests.support.web_server import Handler, WebServer, web_server


def names(root: Path, *arguments: str, recursive: bool = False) -> list[str]:
    sources, errors = expand([str(root / argument) for argument in arguments], recursive=recursive)
    assert errors == []
    return [source.name.removeprefix(f"{root}/") for source in sources]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.yaml", "a.json", "a/z.yml", "a/x.txt", "c/d/e.yaml", "..data/old.yaml", "a,b.yaml", ".hidden.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "b.yaml")
    (tmp_path / "loop").symlink_to(tmp_path)
    return tmp_path


def test_a_directory_is_walked_in_the_order_of_names(tree: Path) -> None:
    assert names(tree, "") == [".hidden.yaml", "a,b.yaml", "a.json", "b.yaml", "link.yaml"]
    assert names(tree, "", recursive=True) == [
        *(".hidden.yaml", "a/z.yml", "a,b.yaml", "a.json", "b.yaml", "c/d/e.yaml", "link.yaml"),
    ]


def test_patterns_lists_and_any_suffix(tree: Path) -> None:
    assert names(tree, "*.json", "a/x.txt") == ["a.json", "a/x.txt"]
    assert names(tree, "a,b.yaml") == ["a,b.yaml"]
    assert names(tree, f"b.yaml,{tree}/a.json") == ["b.yaml", "a.json"]


def test_every_fault_is_reported(tree: Path) -> None:
    sources, errors = expand(["nowhere", "-", "-", str(tree / "c"), "no*thing", ""], recursive=False)
    assert len(sources) == 2
    assert [str(error).replace(str(tree), "") for error in errors] == [
        'the path "nowhere" does not exist',
        "error reading [/c]: recognized file extensions are [.json .yaml .yml]",
        'the path "no*thing" does not exist',
        'the path "" does not exist',
        "standard input cannot be used for multiple arguments",
    ]


async def test_a_file_that_goes_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be accessed"):
        [_ async for _ in FileSource(str(tmp_path / "gone")).read()]


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as found:
        yield found


async def body(url: str) -> bytes:
    return b"".join([data async for data in UrlSource(f"{url}/x.yaml").read()])


def answer(status: int, text: bytes = b"a: 1\n", **more: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=text, **more)  # type: ignore[arg-type]

    return handler


async def test_a_web_server_that_fails_is_asked_three_times(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_arguments, "URL_PAUSE_S", 0.01)
    server.handlers = [answer(503), answer(500), answer(200)]
    assert await body(server.url) == b"a: 1\n"
    server.handlers = [answer(502)]
    with pytest.raises(SourceError, match=r"server reported 502 Bad Gateway, status code=502"):
        await body(server.url)
    server.handlers = [answer(404), answer(200)]
    with pytest.raises(SourceError, match=r"server reported 404 Not Found, status code=404"):
        await body(server.url)
    assert len(server.handlers) == 1


async def test_what_no_manifest_is_answered_with(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_arguments, "MAX_BYTES", 1000)
    monkeypatch.setattr(http, "SILENT_S", 0.5)

    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"{request.path}x")

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"a: 1\n" * 100)

    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    for handler, expected in (
        (redirect, "stopped after 10 redirects"),
        (endless, "more than 1000 bytes"),
        (silent, "the server did not answer in time"),
        (answer(200, b"<html>", content_type="text/html"), "the server answered HTML"),
    ):
        server.handlers = [handler]
        with pytest.raises(SourceError, match=expected):
            await body(server.url)


async def test_no_listener_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_arguments, "URL_PAUSE_S", 0.01)
    with pytest.raises(SourceError, match="unable to read URL"):
        await body("http://127.0.0.1:1")
    with pytest.raises(SourceError, match="unable to read URL"):
        await body("http://[")
