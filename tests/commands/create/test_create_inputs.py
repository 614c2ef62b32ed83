"""Inputs that are unusual or broken: what is created all the same, the message, and the exit status."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from aiohttp import web

from kubeproxy.kubernetes.resource_builder import file_arguments
from tests.commands.create.conftest import Run, config_map
from tests.support.apiserver import ApiServer
from tests.support.web_server import web_server

TWO = config_map("a") + config_map("b", data={"text": "ä"})


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF16_LE + TWO.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + TWO.encode("utf-16-be"),
        codecs.BOM_UTF8 + TWO.encode(),
        TWO.replace("\n", "\r\n").encode(),
        b"\n\n# a comment\n---\n" + TWO.encode() + b"---\n---\n# the end\n",
    ],
    ids=["utf-16-le", "utf-16-be", "utf-8-mark", "windows-line-ends", "comments"],
)
async def test_unusual_texts_are_read(server: ApiServer, run: Run, data: bytes) -> None:
    done = await run(server, data)
    assert (done.status, done.err) == (0, "")
    assert server.cluster.names("configmaps") == ["a", "b"]
    assert (server.cluster.get("configmaps", "default", "b") or {})["data"] == {"text": "ä"}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (b"---\nkind: ConfigMap\nmetadata: {name: \xff}\n", "error parsing it.yaml: "),
        (b"---\nkind: ConfigMap\nmetadata: {name: \x00}\n", "error parsing it.yaml: "),
        (b"---\nkind: ConfigMap\n\tmetadata: {}\n", "error parsing it.yaml: "),
        (b"---\n- - a\n  - b\n", 'unable to decode "it.yaml": found a list; allowed: an object'),
        (b"---\njust a text\n", 'unable to decode "it.yaml": found '),
        (b"---\nmetadata: {name: x}\n", "Object 'Kind' is missing in"),
        (b"---\nkind: ConfigMap\nmetadata: {name: x}\n", "Object 'apiVersion' is missing in"),
        (b"---\napiVersion: v1\nkind: List\nitems: {a: 1}\n", 'no matches for kind "List"'),
        (b"---\napiVersion: v1\nkind: List\nitems: [[{kind: ConfigMap}]]\n", "found a list; allowed: an object"),
        (b"---\napiVersion: v1\nkind: ConfigMap\nmetadata: x\n", "metadata: found "),
        (b"---\napiVersion: v1\nkind: [a]\nmetadata: {name: x}\n", "kind: found "),
    ],
)
async def test_a_broken_document_is_named_and_the_others_are_created(
    server: ApiServer, run: Run, broken: bytes, message: str
) -> None:
    done = await run(server, config_map("first").encode() + broken + config_map("last").encode())
    assert done.status == 1
    assert message in done.err
    assert "document 2" in done.err
    assert "Traceback" not in done.err
    assert server.cluster.names("configmaps") == ["first", "last"]


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(config_map("half").encode())
    assert request.transport is not None
    request.transport.abort()
    return response


async def test_a_bad_address_costs_none_of_the_files(
    server: ApiServer, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What else may be wrong with an address: tests/kubernetes/resource_builder/test_file_arguments.py."""
    monkeypatch.setattr(file_arguments, "URL_PAUSE_S", 0.01)
    for name in ("first", "last"):
        (tmp_path / f"{name}.yaml").write_text(config_map(name))
    async with web_server(_cut) as bad:
        addressed = (str(tmp_path / "first.yaml"), f"{bad.url}/x.yaml", str(tmp_path / "last.yaml"))
        done = await run(server, filenames=addressed)
    assert done.status == 1
    assert "unable to read URL " in done.err
    assert server.cluster.names("configmaps") == ["first", "last"]
