"""Commands that reach another program than kubeproxy at the daemon's address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiohttp import web

from kubeproxy.cli import main
from tests.support.web_server import in_thread, web_server

# What kube-proxy's metrics server answers.
KUBE_PROXY = {"/proxyMode": "nftables", "/statusz": "kube-proxy statusz\n"}


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    async def answer(asked: web.Request) -> web.Response:
        text = request.param.get(asked.path)
        # The servers of kubeproxy in this process have set aiohttp's own value for all.
        return web.Response(status=404 if text is None else 200, text=text, headers={"Server": "another"})

    with in_thread(web_server(answer)) as server:
        yield server.address


@pytest.mark.parametrize(
    ("address", "said"), [(KUBE_PROXY, "kube-proxy (mode nftables)"), ({}, "another program")], indirect=["address"]
)
@pytest.mark.parametrize("command", [["status"], ["trace", "10.96.0.1:80"]], ids=" ".join)
def test_the_stranger_is_named(address: str, said: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of([*command, f"--address={address}"]) == 1
    assert f"{said} answers at {address}" in capsys.readouterr().err
