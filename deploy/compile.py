"""Compiles the busiest modules of the byte path: python deploy/compile.py DIRECTORY

Needs a C compiler, Python's headers, mypy and setuptools. `kubeproxy/runtime/compiled.py` imports what it makes, and
docs/performance.md says why these modules, and why by mypyc.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution

MODULES = (
    *("loop/reactor", "loop/turn_end", "loop/dial_timeouts"),
    *("sockets/fd_calls", "sockets/connect", "sockets/loop_prevention"),
    *("balancing/balancer", "balancing/round_robin", "balancing/open_counts", "balancing/ejections"),
    *("tcp/flow", "tcp/connection", "tcp/dial", "tcp/listener", "tcp/shared_listener"),
)
"""The modules of `kubeproxy.dataplane` that run for every connection and every message. Their classes refer to one
another, so one library has all of them, and calls between them need no look-up."""


def compile_to(directory: Path) -> None:
    """Compile the modules; each becomes a file of `directory` under its full name."""
    directory.mkdir(parents=True, exist_ok=True)
    # Tracebacks name the sources as they are named here.
    os.chdir(Path(__file__).parent.parent)
    with tempfile.TemporaryDirectory() as work:
        options = [f"--python-version={sys.version_info[0]}.{sys.version_info[1]}", "--follow-imports=silent"]
        sources = [f"kubeproxy/dataplane/{module}.py" for module in MODULES]
        extensions = mypycify(
            ["--config-file=", *options, "--ignore-missing-imports", f"--cache-dir={work}/cache", *sources],
            group_name="kubeproxy",
            debug_level="0",
            target_dir=work,
        )
        for extension in extensions:
            # mypyc turns warnings into errors, and a newer compiler has more of them.
            extension.extra_compile_args.append("-Wno-error")
        distribution = Distribution({"name": "kubeproxy", "ext_modules": extensions})
        build = distribution.get_command_obj("build_ext")
        build.build_lib, build.build_temp = f"{work}/made", f"{work}/objects"
        distribution.run_command("build_ext")
        for file in Path(work, "made").rglob("*.so"):
            shutil.copy(file, directory / ".".join(file.relative_to(f"{work}/made").parts))
    # The library has parts of mypyc.
    (licence,) = (file for file in metadata.distribution("mypy").files or () if file.match("licenses/LICENSE"))
    shutil.copy(licence.locate(), directory / "LICENSE.mypyc")


if __name__ == "__main__":
    compile_to(Path(sys.argv[1]).absolute())
