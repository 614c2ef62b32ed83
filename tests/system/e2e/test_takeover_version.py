"""Two versions of the takeover protocol on one node: a new instance has the other one stop, then starts."""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

import kubeproxy
from kubeproxy.dataplane.workers.takeover_messages import PROTOCOL
from tests.support.lab import Daemon
from tests.support.lab.daemon import KUBEPROXY
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import ADAPTERS
from tests.system.e2e.stage import QUICK, VIP, Stage, until
from tests.system.e2e.steady_clients import Crowd

pytestmark = pytest.mark.netns

each_adapter = pytest.mark.parametrize("netfilter", ADAPTERS)
GRACE = "--shutdown-grace=2s"


@pytest.fixture(scope="module")
def other_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, with another version of the takeover protocol."""
    folder = tmp_path_factory.mktemp("other_version")
    package = folder / "kubeproxy"
    shutil.copytree(Path(kubeproxy.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    messages = package / "dataplane/workers/takeover_messages.py"
    text, replaced = re.subn(
        rf"^PROTOCOL: Final = {PROTOCOL}$", f"PROTOCOL: Final = {PROTOCOL + 1}", messages.read_text(), flags=re.M
    )
    assert replaced == 1
    messages.write_text(text)
    return folder


def start(stage: Stage, package: Path | None, *options: str, netfilter: str) -> Daemon:
    """A daemon of this package, or of the copy in a folder."""
    command = (KUBEPROXY,) if package is None else ("env", f"PYTHONPATH={package}", KUBEPROXY)
    return stage.daemon(QUICK, GRACE, *options, netfilter=netfilter, command=command)


@each_adapter
@pytest.mark.parametrize("upgrade", [True, False], ids=["to the other version", "from the other version"])
def test_an_owner_of_another_version_stops_first(
    stage: Stage, other_version: Path, netfilter: str, upgrade: bool
) -> None:
    """Clients wait as for a stop and a start. None fails, and the rules are the new instance's. Kept connections
    are cut when the grace period is over, and the log says how many."""
    stage.write_service([0, 1, 2])
    first, second = (None, other_version) if upgrade else (other_version, None)
    before = start(stage, first, "--workers=1", "--cleanup-on-exit", netfilter=netfilter)
    stage.await_answers(0, 1, 2)
    with (
        Crowd(stage.client, (VIP, 80), rate=70, long=0) as far,
        Crowd(stage.node, (VIP, 80), rate=30, long=0) as near,
        ExitStack() as held,
    ):
        kept = [held.enter_context(stage.client.connect((VIP, 80), timeout=30)) for _ in range(3)]
        until(lambda: before.get("/healthz").status == 200, "the first is well")
        after = start(stage, second, "--workers=1", netfilter=netfilter)
        assert before.wait(30) == 0
        for connection in kept:
            with pytest.raises(ConnectionResetError):
                connection.recv(100)
        stage.await_answers(0, 1, 2)
    for crowd, origin in ((far, "a client"), (near, "the node itself")):
        crowd.show(f"another version ({netfilter}), from {origin}")
        assert crowd.report.answered > 20
        assert crowd.report.failures == []
    versions = {"first": PROTOCOL + (not upgrade), "second": PROTOCOL + upgrade}
    assert "predecessor: other takeover protocol, stops first" in after.log()
    assert f"its={versions['first']} ours={versions['second']}" in _fields(after)
    assert "new instance: other takeover protocol, stopping" in before.log()
    cut = re.findall(r"connections are cut off open=(\d+)", _fields(before))
    assert max(map(int, cut)) >= len(kept)
    assert f"its={versions['second']} ours={versions['first']}" in _fields(before)
    for log in (before.log(), after.log()):
        assert "changed our packet filter" not in log
        assert "rules replaced ours" not in log
        assert "does not answer" not in log
    assert "earlier instances have ended" not in after.log()
    until(lambda: _lives(after), "it answers health checks")


@each_adapter
def test_orphaned_workers_of_another_version_serve_on(stage: Stage, other_version: Path, netfilter: str) -> None:
    """Until the rules are the new instance's; then they retire."""
    stage.write_service([0, 1, 2])
    first = start(stage, other_version, "--workers=2", netfilter=netfilter)
    stage.await_answers(0, 1, 2)
    port = kernel_state.redirects(stage.node)[VIP, 80]
    with Crowd(stage.client, (VIP, 80), rate=100, long=0) as crowd:
        first.process.kill()
        first.process.wait()
        second = start(stage, None, "--workers=2", netfilter=netfilter)
        until(lambda: kernel_state.redirects(stage.node)[VIP, 80] != port, "the rules lead to the new instance")
        until(lambda: second.log().count("orphaned worker has ended") == 2, "the orphaned workers have ended")
    assert crowd.report.answered > 20
    assert crowd.report.failures == []
    assert second.log().count("orphaned worker: other takeover protocol") == 2
    stage.await_answers(0, 1, 2)


def _lives(daemon: Daemon) -> bool:
    try:
        return daemon.get("/livez").status == 200
    except OSError:
        return False


def _fields(daemon: Daemon) -> str:
    """The log without colours, the fields in the order of its lines."""
    return re.sub(r"\x1b\[[0-9;]*m", "", daemon.log())
