"""What a start serves from the file, and when the file is written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon import state_keeper
from kubeproxy.daemon.saved_state import SavedState, SourceState, StateFile
from kubeproxy.daemon.state_keeper import FRESH_S, StateKeeper, default_directory, identity
from kubeproxy.model import Node, Service
from kubeproxy.proxier.tracker import Tracker
from tests.config.files import of_flags
from tests.proxier.builders import endpoint_slice, service

API = "kubernetes"
WEB = service("web")
SLICE = endpoint_slice("web", "10.0.0.1")


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path, "me")


def keeper(
    file: StateFile | None,
    tracker: Tracker,
    *,
    owns: bool = True,
    behind_s: Callable[[str], float] = lambda source: 0.0,
) -> StateKeeper:
    return StateKeeper(file, tracker, owns_rules=lambda: owns, behind_s=behind_s)


def complete(*services: Service) -> Tracker:
    tracker = Tracker([API])
    tracker.replace_services(API, services)
    tracker.replace_slices(API, [SLICE])
    return tracker


async def test_the_next_start_serves_what_this_one_had(file: StateFile) -> None:
    tracker = complete(WEB)
    tracker.set_node(Node("node-1"))
    await keeper(file, tracker).write()
    tracker = Tracker([API])
    second = keeper(file, tracker)
    assert await second.recall(at_once=True)
    assert not await second.recall(), "once"
    assert tracker.served() == {API: ([WEB], [SLICE])}
    assert tracker.node == Node("node-1")
    assert second.stale.keys() == {API}
    assert second.complaint() is None, "the sources may still be listed"
    tracker.replace_services(API, [])
    tracker.replace_slices(API, [])
    assert second.stale == {}


async def test_a_source_that_does_not_come_is_a_complaint(file: StateFile, monkeypatch: pytest.MonkeyPatch) -> None:
    await keeper(file, complete(WEB)).write()
    second = keeper(file, Tracker([API]))
    await second.recall(at_once=True)
    monkeypatch.setattr(state_keeper, "START_GRACE_S", 0.0)
    assert (second.complaint() or "").startswith("serving the state of an earlier run, stale since 20")
    assert (second.complaint() or "").endswith("kubernetes not listed since the start")


async def test_an_old_state_waits_for_the_sources(file: StateFile) -> None:
    await keeper(file, complete(WEB)).write()
    old = time.time() - FRESH_S - 60
    os.utime(file.path, (old, old))
    second = keeper(file, Tracker([API]))
    assert not await second.recall(at_once=True)
    assert await second.recall()
    assert second.stale == {API: pytest.approx(old, abs=1)}


async def test_nothing_is_recalled_beside_complete_sources_or_without_a_file(file: StateFile) -> None:
    await keeper(file, complete(WEB)).write()
    assert not await keeper(file, complete(WEB)).recall()
    assert not await keeper(None, Tracker([API])).recall()
    assert await keeper(None, complete(WEB)).write() == 0.0


async def test_it_is_written_by_the_owner_alone_and_after_changes_alone(file: StateFile) -> None:
    await keeper(file, complete(WEB), owns=False).write()
    await keeper(file, Tracker([API])).write()
    assert file.read() is None
    tracker = complete(WEB)
    writer = keeper(file, tracker)
    await writer.write()
    before = file.path.stat()
    await writer.write()
    assert file.path.stat().st_ino == before.st_ino
    tracker.put_service(API, service("dns"))
    await writer.write()
    assert file.path.stat().st_ino != before.st_ino


@pytest.mark.parametrize("behind_s", [0.0, 500.0])
async def test_it_is_confirmed_while_the_sources_are_in_step(
    file: StateFile, monkeypatch: pytest.MonkeyPatch, behind_s: float
) -> None:
    monkeypatch.setattr(state_keeper, "CONFIRM_S", 0.0)
    writer = keeper(file, complete(WEB), behind_s=lambda source: behind_s)
    await writer.write()
    os.utime(file.path, (1_000.0, 1_000.0))
    await writer.write()
    assert (file.path.stat().st_mtime != 1_000.0) is (behind_s == 0)
    (source,) = (file.read() or SavedState([])).sources
    assert time.time() - (source.since or 0) == pytest.approx(behind_s, abs=30)


async def test_what_stays_stale_is_kept_as_stale(file: StateFile) -> None:
    file.write(SavedState([SourceState(API, [WEB], [], 1_000.0), SourceState("manifests", [], [], None)]))
    tracker = Tracker(["manifests", API])
    second = keeper(file, tracker, behind_s=lambda source: 50.0 if source == API else 0.0)
    await second.recall()
    tracker.replace_services("manifests", [service("dns")])
    tracker.replace_slices("manifests", [])
    await second.write()
    found = {source.name: source for source in (file.read() or SavedState([])).sources}
    assert list(found["manifests"].services) == [service("dns")]
    assert (list(found[API].services), found[API].since) == ([WEB], 1_000.0)


async def test_a_directory_that_cannot_be_written_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    writer = keeper(StateFile(tmp_path / "file", "me"), complete(WEB))
    for _ in range(3):
        await writer.write()
    assert capsys.readouterr().out.count("state is not kept for next start") == 1


def test_another_node_and_other_sources_have_another_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = tmp_path / "kubeconfig"

    def of(server: str, **flags: str) -> str:
        kubeconfig.write_text(
            "current-context: it\ncontexts: [{name: it, context: {cluster: it}}]\n"
            f"clusters: [{{name: it, cluster: {{server: '{server}'}}}}]\n"
        )
        return identity(of_flags(kubeconfig=str(kubeconfig), **flags).configuration)

    def of_manifests(**flags: str) -> str:
        return identity(of_flags(manifests="/a", **flags).configuration)

    here = of("https://192.0.2.1:6443")
    assert of("https://192.0.2.1:6443") == here
    others = [
        of("https://192.0.2.2:6443"),
        of("https://192.0.2.1:6443", hostname_override="other"),
        of_manifests(),
        of_manifests(recursive="true"),
        of_manifests(namespace="b"),
    ]
    assert len({here, *others}) == 6
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/one:/run/two")
    assert default_directory() == Path("/run/one")
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    assert default_directory() == Path("/run/kubeproxy")
    assert identity(Configuration()) != here
