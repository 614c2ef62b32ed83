"""Imports the compiled form of some modules.

A build that has a compiler also makes extension modules of the byte path's busiest modules (``deploy/compile.py``), in
``kubeproxy/compiled/``, each under the full name of its module. Where that directory has one for this Python, it is
imported instead of the source. Both do the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import ModuleType

PURE = "KUBEPROXY_PURE"
"""A variable of the environment. If it is not empty, the sources are imported everywhere."""
DIRECTORY = "KUBEPROXY_COMPILED"
"""A variable of the environment: another directory with compiled modules, for tests. A source tree has none itself."""


class CompiledModules:
    """A finder of those modules that a directory has in compiled form."""

    def __init__(self, directory: str) -> None:
        suffix = EXTENSION_SUFFIXES[0]
        files = os.listdir(directory) if os.path.isdir(directory) else []
        self.files = {
            file.removesuffix(suffix): os.path.join(directory, file) for file in files if file.endswith(suffix)
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, or None if the usual finders are to look for it."""
        file = self.files.get(name)
        return None if file is None else ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)


def prefer_compiled_modules() -> None:
    """Import compiled modules where there are any, from now on."""
    if not os.environ.get(PURE):
        beside = os.path.join(os.path.dirname(os.path.dirname(__file__)), "compiled")
        finder = CompiledModules(os.environ.get(DIRECTORY) or beside)
        if finder.files:
            sys.meta_path.insert(0, finder)


def form() -> str:
    """Return how the byte path runs: ``compiled`` or ``pure``."""
    return "compiled" if any(isinstance(finder, CompiledModules) for finder in sys.meta_path) else "pure"
