"""The compiled form of the byte path, if `make compiled` has made it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import kubeproxy
from kubeproxy.runtime.compiled import DIRECTORY, PURE, form

COMPILED_MODULES = Path(sys.prefix) / "compiled"
_READY = COMPILED_MODULES / "ready"
_SOURCES = Path(kubeproxy.__file__).parent.rglob("*.py")
ARE_THERE = _READY.exists() and _READY.stat().st_mtime >= max(path.stat().st_mtime for path in _SOURCES)
"""Whether they are there, made of the present sources."""

of_sources = pytest.mark.skipif(
    form() == "compiled", reason="replaces a method or a function that compiled modules call without a look-up"
)
"""Marks tests that hold in the pure form alone."""


def environment(*, compiled: bool) -> dict[str, str]:
    """Return the variables by which a new process runs one form or the other."""
    return {DIRECTORY: str(COMPILED_MODULES), PURE: ""} if compiled else {DIRECTORY: "", PURE: "1"}
