"""Two versions of the takeover protocol on one node: the old instance leaves its workers to the new one, and their
connections move if both versions speak a version of what moves."""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

import kubeproxy
from kubeproxy.dataplane.workers.takeover_messages import MOVES, PROTOCOL
from tests.support.lab import Daemon
from tests.support.lab.daemon import KUBEPROXY
from tests.system.e2e.conftest import ADAPTERS
from tests.system.e2e.stage import QUICK, VIP, Stage, until
from tests.system.e2e.steady_clients import Crowd

pytestmark = pytest.mark.netns

each_adapter = pytest.mark.parametrize("netfilter", ADAPTERS)


def copy_of_the_package(folder: Path, changes: dict[str, dict[str, str]]) -> Path:
    """Copy the package into a folder, and change lines in its modules; return the folder."""
    package = folder / "kubeproxy"
    shutil.copytree(Path(kubeproxy.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for module, lines in changes.items():
        text = (package / module).read_text()
        for old, new in lines.items():
            assert text.count(f"{old}\n") == 1
            text = text.replace(f"{old}\n", f"{new}\n")
        (package / module).write_text(text)
    return folder


@pytest.fixture(scope="module")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A later version, which knows more of a connection, and goes on speaking the present version of what moves."""
    messages = {
        f"PROTOCOL: Final = {PROTOCOL}": f"PROTOCOL: Final = {PROTOCOL + 1}",
        f"MOVES: Final = {MOVES}": f"MOVES: Final = {MOVES + 1}",
        "MOVES_SINCE: Final = MOVES": f"MOVES_SINCE: Final = {MOVES}",
    }
    state = {"    down: FlowState": "    down: FlowState\n    added: int = 7"}
    return copy_of_the_package(
        tmp_path_factory.mktemp("next_version"),
        {"dataplane/workers/takeover_messages.py": messages, "dataplane/tcp/connection_state.py": state},
    )


@pytest.fixture(scope="module")
def strange_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version that has nothing in common with this one but what is frozen."""
    messages = {
        f"PROTOCOL: Final = {PROTOCOL}": f"PROTOCOL: Final = {PROTOCOL + 2}",
        f"MOVES: Final = {MOVES}": f"MOVES: Final = {MOVES + 2}",
    }
    return copy_of_the_package(
        tmp_path_factory.mktemp("strange_version"), {"dataplane/workers/takeover_messages.py": messages}
    )


def start(stage: Stage, package: Path | None, *options: str, netfilter: str) -> Daemon:
    """A daemon of this package, or of the copy in a folder."""
    command = (KUBEPROXY,) if package is None else ("env", f"PYTHONPATH={package}", KUBEPROXY)
    return stage.daemon(QUICK, *options, netfilter=netfilter, command=command)


@each_adapter
@pytest.mark.parametrize("upgrade", [True, False], ids=["to the next version", "from the next version"])
def test_connections_outlive_a_change_of_the_version(
    stage: Stage, next_version: Path, netfilter: str, upgrade: bool
) -> None:
    """No client waits or fails, also if the old instance was told to stop, and kept connections go on."""
    stage.write_service([0, 1, 2])
    first, second = (None, next_version) if upgrade else (next_version, None)
    before = start(stage, first, "--workers=2", "--shutdown-grace=60s", netfilter=netfilter)
    stage.await_answers(0, 1, 2)
    with (
        Crowd(stage.client, (VIP, 80), rate=70, long=10) as far,
        Crowd(stage.node, (VIP, 80), rate=30, long=0) as near,
        ExitStack() as held,
    ):
        kept = [held.enter_context(stage.client.connect((VIP, 80), timeout=30)) for _ in range(3)]
        for connection in kept:
            connection.sendall(b"echo\nkept")
            assert connection.recv(100) == b"kept"
        if not upgrade:
            before.process.terminate()
        after = start(stage, second, "--workers=2", netfilter=netfilter)
        assert before.wait(30) == 0
        until(lambda: after.log().count("orphaned worker has ended") == 2, "the old workers have ended")
        for connection in kept:
            connection.sendall(b"still")
            assert connection.recv(100) == b"still"
        stage.await_answers(0, 1, 2)
    for crowd, origin in ((far, "a client"), (near, "the node itself")):
        crowd.show(f"another version ({netfilter}), from {origin}")
        assert crowd.report.answered > 20
        assert crowd.report.failures == []
        assert not crowd.report.long_broken
    moved = re.findall(r"connections moved here .*moved=(\d+)", _fields(after))
    assert sum(map(int, moved)) >= len(kept)
    versions = {"first": PROTOCOL + (not upgrade), "second": PROTOCOL + upgrade}
    assert "predecessor: other takeover protocol, stops first" in after.log()
    assert f"its={versions['first']} ours={versions['second']}" in _fields(after)
    assert "new instance: other takeover protocol, stopping" in before.log()
    assert f"its={versions['second']} ours={versions['first']}" in _fields(before)
    for log in (before.log(), after.log()):
        assert "changed our packet filter" not in log
        assert "rules replaced ours" not in log
        assert "does not answer" not in log
    assert "earlier instances have ended" not in after.log()
    until(lambda: _lives(after), "it answers health checks")


@each_adapter
def test_without_a_version_in_common_connections_drain(stage: Stage, strange_version: Path, netfilter: str) -> None:
    """They get the grace period in the workers that are left. New clients do not wait."""
    stage.write_service([0, 1, 2])
    before = start(stage, strange_version, "--workers=2", "--shutdown-grace=2s", netfilter=netfilter)
    stage.await_answers(0, 1, 2)
    with Crowd(stage.client, (VIP, 80), rate=100, long=0) as crowd, ExitStack() as held:
        kept = [held.enter_context(stage.client.connect((VIP, 80), timeout=30)) for _ in range(3)]
        after = start(stage, None, "--workers=2", netfilter=netfilter)
        assert before.wait(30) == 0
        until(lambda: after.log().count("orphaned worker has ended") == 2, "the orphaned workers have ended")
        for connection in kept:
            with pytest.raises(ConnectionResetError):
                connection.recv(100)
    assert crowd.report.answered > 20
    assert crowd.report.failures == []
    assert after.log().count("orphaned worker: other takeover protocol") == 2
    assert after.log().count("orphaned worker: connections stay with it") == 2
    stage.await_answers(0, 1, 2)


def _lives(daemon: Daemon) -> bool:
    try:
        return daemon.get("/livez").status == 200
    except OSError:
        return False


def _fields(daemon: Daemon) -> str:
    """The log without colours, the fields in the order of its lines."""
    return re.sub(r"\x1b\[[0-9;]*m", "", daemon.log())
