"""The manual page is what the code says, and is well formed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from docs.generators.manual_page import each, render
from kubeproxy.cli.main import commands
from kubeproxy.config.flags import flags

PAGE = Path(__file__).parents[2] / "docs" / "kubeproxy.8"


def test_the_page_is_current() -> None:
    regenerate = "python -m docs.generators.manual_page > docs/kubeproxy.8"
    assert PAGE.read_text(encoding="utf-8") == render(), f"run: {regenerate}"


def test_every_command_and_every_flag_is_in_it() -> None:
    text = render().replace("\\-", "-")
    context = click.Context(commands)
    names = [command.name for command in each(commands, context)]
    assert "rollout status" in names
    assert [name for name in names if f"\n.B {name}\n" not in text] == []
    assert [flag.dashed for flag in flags().values() if flag.dashed not in text] == []


def test_its_sections_are_those_of_a_page_of_section_8() -> None:
    sections = [line[4:] for line in render().splitlines() if line.startswith(".SH ")]
    assert sections == [
        "NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "FLAGS", "SIGNALS", "FILES", "ENVIRONMENT", "EXIT STATUS",
        "EXAMPLES", "SEE ALSO",
    ]  # fmt: skip


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_formatter_has_no_complaint() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", PAGE], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "kubeproxy" in done.stdout
