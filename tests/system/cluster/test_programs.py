"""What a cluster needs is looked for, and what is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.cluster import programs
from tests.system.cluster.programs import Programs, missing


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with everything; nothing is taken from this system."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(programs, "PLUGIN_DIRECTORIES", (tmp_path / "cni",))
    for name in (*programs.KUBERNETES, *programs.SYSTEM, *(f"cni/{it}" for it in programs.PLUGINS)):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
        file.chmod(0o755)
    (tmp_path / "images").mkdir()
    (tmp_path / "images/pause.tar").write_text("")
    for name in programs.CONTROLLERS:
        (tmp_path / "cgroup" / name).mkdir(parents=True)
    return tmp_path


def test_without_a_directory_the_variable_is_named() -> None:
    reason = missing(None)
    assert reason is not None
    assert "KUBERNETES_BINARIES is not set" in reason


def test_nothing_is_missing_where_everything_is(complete: Path) -> None:
    assert missing(complete, complete / "cgroup") is None


@pytest.mark.parametrize("lacking", ["kubelet", "e2e.test", "cni/portmap", "images/pause.tar"])
def test_what_is_missing_is_named(complete: Path, lacking: str) -> None:
    (complete / lacking).unlink()
    reason = missing(complete, complete / "cgroup")
    assert reason is not None
    assert Path(lacking).parent.name in reason or Path(lacking).name in reason


def test_a_machine_without_the_old_cgroups_is_told_so(complete: Path) -> None:
    (complete / "cgroup/memory").rmdir()
    assert "no cgroup v1 hierarchy of memory" in (missing(complete, complete / "cgroup") or "")


def test_the_directory_wins_over_the_system(complete: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert Programs(complete)["kubectl"] == str(complete / "kubectl")
