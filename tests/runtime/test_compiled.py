"""Which form of a module is imported: the sources, or what a compiler made of them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from kubeproxy.runtime.compiled import DIRECTORY, PURE, CompiledModules

MODULE = "kubeproxy.dataplane.tcp.flow"


def form(**environment: str) -> str:
    """The form that a new process has with these variables."""
    return subprocess.run(
        [sys.executable, "-c", "import kubeproxy.runtime.compiled as it; print(it.form())"],
        env={**{key: value for key, value in os.environ.items() if key not in (DIRECTORY, PURE)}, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """What stands for a module that was compiled for this Python."""
    file = tmp_path / f"{MODULE}{EXTENSION_SUFFIXES[0]}"
    file.touch()
    return file


def test_what_is_compiled_for_this_python_is_found_by_its_full_name(module: Path) -> None:
    finder = CompiledModules(str(module.parent))
    spec = finder.find_spec(MODULE)
    assert spec is not None
    assert spec.origin == str(module)
    assert finder.find_spec("kubeproxy.dataplane.tcp.dial") is None
    assert finder.find_spec("flow") is None


def test_it_is_used_unless_it_is_forbidden(module: Path) -> None:
    there = {DIRECTORY: str(module.parent)}
    assert form(**there) == "compiled"
    assert form(**there, **{PURE: "1"}) == "pure"


def test_a_source_tree_and_what_another_python_has_compiled_are_pure(module: Path) -> None:
    assert form() == "pure"
    module.rename(module.with_name(f"{MODULE}.cpython-300-x86_64-linux-gnu.so"))
    assert form(**{DIRECTORY: str(module.parent)}) == "pure"
