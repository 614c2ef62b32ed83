"""Puts compiled modules into a wheel, which is then for one Python and one architecture, as its tag says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModules(BuildHookInterface[Any]):
    """Takes part if ``HATCH_BUILD_HOOK_ENABLE_CUSTOM=true``. Without it the wheel is pure, and needs no compiler."""

    _directory = ""

    def dependencies(self) -> list[str]:
        """Return what a build needs beyond hatchling."""
        return ["mypy", "setuptools"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the result to the wheel."""
        self._directory = tempfile.mkdtemp()
        command = [sys.executable, "deploy/compile.py", self._directory]
        # Neither symbols nor the directory of the builder's Python belong into what others install.
        linker = {"LDSHARED": "cc -shared -s"}
        subprocess.run(command, cwd=self.root, check=True, stdout=sys.stderr, env={**os.environ, **linker})
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"][self._directory] = "kubeproxy/compiled"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        shutil.rmtree(self._directory)
