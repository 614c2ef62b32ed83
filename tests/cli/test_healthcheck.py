"""``kubeproxy healthcheck`` against a small server with fixed answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from kubeproxy.cli import main
from kubeproxy.cli.healthcheck import has_visible_listener
from tests.support.web_server import in_thread, web_server

ANSWERS = {"/readyz": (503, '{"ready": false, "reason": "draining"}'), "/livez": (200, '{"healthy": true}')}


async def answer(request: web.Request) -> web.Response:
    status, text = ANSWERS[request.path]
    return web.Response(status=status, text=text)


@pytest.fixture
def server() -> Iterator[str]:
    with in_thread(web_server(answer)) as server:
        yield server.address


def test_a_live_daemon(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["healthcheck", "--address", server, "--path=/livez"]) == 0
    assert capsys.readouterr().out == '{"healthy": true}\n'


def test_a_daemon_that_is_not_ready(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["healthcheck", "--address", server]) == 1
    assert "draining" in capsys.readouterr().out


def test_no_answer(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    no_server = "127.0.0.1:1"
    assert main.status_of(["healthcheck", "--address", no_server]) == 1
    assert capsys.readouterr().err == f"{no_server} does not answer: [Errno 111] Connection refused\n"


@pytest.mark.parametrize(
    "args", [["--address=10256"], ["--address=localhost:http"], ["--path=/metrics"], ["--timeout=0"]]
)
def test_wrong_options(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["healthcheck", *args]) == 64
    assert args[0].partition("=")[0] in capsys.readouterr().err


def test_here_accepts_a_visible_server(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["healthcheck", "--here", "--address", server, "--path=/livez"]) == 0


LISTENING = "0A"
"""include/net/tcp_states.h."""


def test_here_refuses_a_server_of_another_container(server: str, tmp_path: Path) -> None:
    """Its socket is visible in the shared network namespace; its process is not."""
    port = int(server.rpartition(":")[2])
    (tmp_path / "net").mkdir()
    for table in ("tcp", "tcp6"):
        (tmp_path / "net" / table).write_text(Path("/proc/net", table).read_text())
    (tmp_path / "1/fd").mkdir(parents=True)
    (tmp_path / "1/fd/3").symlink_to("socket:[1]")
    (tmp_path / "2").mkdir()
    assert not has_visible_listener(port, proc=tmp_path)
    rows = (line.split() for line in (tmp_path / "net/tcp").read_text().splitlines())
    # Connections of that port may still exist.
    (own,) = (row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == LISTENING)
    (tmp_path / "1/fd/4").symlink_to(f"socket:[{own}]")
    assert has_visible_listener(port, proc=tmp_path)


def test_here_without_a_listener(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["healthcheck", "--here", "--address=127.0.0.1:1"]) == 1
    assert "no process that is visible here" in capsys.readouterr().err
