"""Shell completion: what is proposed, and that the shells take the scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kubeproxy.cli import main

PROGRAM = str(Path(sys.executable).with_name("kubeproxy"))


def proposed(words: str, *, cwd: Path | None = None) -> list[str]:
    environment = os.environ | {
        "_KUBEPROXY_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, check=True, cwd=cwd)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_every_command_is_proposed() -> None:
    assert proposed("kubeproxy ") == main.commands.list_commands(click.Context(main.commands))
    assert proposed("kubeproxy cr") == ["create"]


def test_flags_are_proposed() -> None:
    assert "--skip-existing" in proposed("kubeproxy create --s")
    assert "--netfilter" in proposed("kubeproxy run --net")
    assert proposed("kubeproxy completion z") == ["zsh"]


def test_manifests_are_proposed(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.json", "c.txt", ".d.yml"):
        (tmp_path / name).write_text("")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "e.yml").write_text("")
    assert proposed("kubeproxy create -f ", cwd=tmp_path) == ["a.yaml", "b.json", "dir/"]
    assert proposed("kubeproxy create -f dir/", cwd=tmp_path) == ["dir/e.yml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_takes_the_script(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.status_of(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_KUBEPROXY_COMPLETE" in script
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script)
    subprocess.run([program, "-n", str(path)], check=True, capture_output=True)


def test_another_shell_is_refused() -> None:
    assert main.status_of(["completion", "tcsh"]) == 64


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_proposes_flags_and_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.status_of(["completion", "fish"]) == 0
    script = tmp_path / "kubeproxy.fish"
    script.write_text(capsys.readouterr().out)
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb"}

    def asked(line: str) -> list[str]:
        command = ["fish", "--private", "-c", f"source {script}; complete -C '{line}'"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return [each.partition("\t")[0] for each in done.stdout.splitlines()]

    assert asked("kubeproxy create --dry") == ["--dry-run"]
    assert set(asked("kubeproxy rollout ")) >= {"status", "history", "undo", "pause", "resume", "restart", "explain"}
