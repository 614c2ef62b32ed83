"""Imports compiled modules instead of their Python sources, if a build has made them.

A build with a compiler also compiles the busiest modules of the byte path to extension modules (``deploy/compile.py``),
in ``kubeproxy/compiled/``, under the full names of the modules. If that directory has an extension module for this
Python, it is imported instead of the source. Both have the same behaviour.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import ModuleType

PURE = "KUBEPROXY_PURE"
"""An environment variable. If it is not empty, only sources are imported."""
DIRECTORY = "KUBEPROXY_COMPILED"
"""An environment variable with another directory of compiled modules, for tests, because a source tree has none."""


class CompiledModules:
    """An import finder for the modules that a directory has in compiled form."""

    def __init__(self, directory: str) -> None:
        suffix = EXTENSION_SUFFIXES[0]
        files = os.listdir(directory) if os.path.isdir(directory) else []
        self.files = {
            file.removesuffix(suffix): os.path.join(directory, file) for file in files if file.endswith(suffix)
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a compiled module, or None if there is none, so that the usual finders look for the
        module."""
        file = self.files.get(name)
        return None if file is None else ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)


def prefer_compiled_modules() -> None:
    """Import compiled modules, if there are any, from now on."""
    if not os.environ.get(PURE):
        beside = os.path.join(os.path.dirname(os.path.dirname(__file__)), "compiled")
        finder = CompiledModules(os.environ.get(DIRECTORY) or beside)
        if finder.files:
            sys.meta_path.insert(0, finder)


def form() -> str:
    """Return the form in which the byte path runs: ``compiled`` or ``pure``."""
    return "compiled" if any(isinstance(finder, CompiledModules) for finder in sys.meta_path) else "pure"
