"""Fuzz the decoders. ``python -m tests.fuzz [TARGET...] [--seconds 60] [--replay FILE]``

Inputs that reached something new are kept in ``.fuzz/TARGET/corpus`` for the next time, diagnostics (with the traceback
beside them) in ``.fuzz/TARGET/diagnostics``. The exit status is 1 when there are new ones.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent
WORK = Path(".fuzz")
LONGEST = 16384
"""Bytes of an input; 4,096 for what is slow by nature."""
SLOWEST_S = 10
"""A single input that takes longer is a finding."""
MEMORY_MB = 1024
"""A process that takes more is a finding."""


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all of: {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--replay", type=Path, help="only this input, without the fuzzer")
    options = parser.parse_args()
    wanted = options.targets or list(TARGETS)
    if unknown := set(wanted) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if options.replay is not None:
        for name in wanted:
            TARGETS[name](options.replay.read_bytes())
        return 0
    return 1 if sum(fuzz(name, options.seconds) for name in wanted) else 0


def fuzz(name: str, seconds: int) -> int:
    """How many new diagnostics there are. A finding ends a run of the fuzzer, so there may be several in the time."""
    corpus, diagnostics = WORK / name / "corpus", WORK / name / "diagnostics"
    corpus.mkdir(parents=True, exist_ok=True)
    diagnostics.mkdir(exist_ok=True)
    seeds = [str(path) for path in (HERE / "corpus" / name, HERE / "regressions" / name) if path.is_dir()]
    end, executions, found = time.monotonic() + seconds, 0, 0
    while (left := round(end - time.monotonic())) > 0:
        command = [
            *(sys.executable, "-m", "tests.fuzz.engine", name, str(corpus), *seeds),
            *(f"-max_total_time={left}", f"-timeout={SLOWEST_S}", f"-rss_limit_mb={MEMORY_MB}"),
            *(f"-max_len={LONGEST}", f"-artifact_prefix={diagnostics}/", "-print_final_stats=1", "-verbosity=1"),
        ]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=os.environ)
        said = run.stdout + run.stderr
        executions += max(map(int, re.findall(r"^#(\d+)\s", said, re.MULTILINE)), default=0)
        if run.returncode == 0:
            continue
        written = re.findall(r"Test unit written to (\S+)", said)
        if not written:
            sys.stderr.write(said)
            raise SystemExit(f"{name}: the fuzzer did not run")
        found += 1
        Path(f"{written[-1]}.txt").write_text(run.stdout[-20_000:] + run.stderr[-4_000:])
        print(f"{name}: found {written[-1]}", flush=True)
    kept = len(list(corpus.iterdir()))
    print(f"{name}: {executions} executions in {seconds} s, {found} diagnostics, {kept} inputs kept", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
