"""Commands that reach another program than kubeproxy at the daemon's address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kubeproxy.cli import main


class KubeProxy(BaseHTTPRequestHandler):
    """Answers as kube-proxy's metrics server does."""

    pages = {"/proxyMode": b"nftables", "/statusz": b"kube-proxy statusz\n"}  # noqa: RUF012

    def do_GET(self) -> None:
        body = self.pages.get(self.path.partition("?")[0])
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Keep still."""


class Nobody(KubeProxy):
    pages = {}  # noqa: RUF012


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), request.param)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("address", "said"), [(KubeProxy, "kube-proxy (mode nftables)"), (Nobody, "another program")], indirect=["address"]
)
@pytest.mark.parametrize("command", [["status"], ["trace", "10.96.0.1:80"]], ids=" ".join)
def test_the_stranger_is_named(address: str, said: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of([*command, f"--address={address}"]) == 1
    assert f"{said} answers at {address}" in capsys.readouterr().err
