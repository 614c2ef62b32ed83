"""Memory of `kubeproxy create` on a long stream: ``python -m tests.tools.bench.streaming [--objects N ...]``.

ConfigMaps come by standard input, with ``--dry-run=client``, against the tests' own API server. Printed: the most
memory that the command ever had, for each number of objects.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.support.apiserver import ApiServer, command_cluster

OURS = str(Path(sys.executable).with_name("kubeproxy"))
AT_ONCE = 1000
_MEASURED = """
import os, resource, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
status = os.waitpid(pid, 0)[1]
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command, and prints the most memory that it had, in KiB."""


def _documents(first: int) -> bytes:
    filler = "x" * 200
    return "".join(
        f"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c-{number}}}\ndata: {{a: '{number}', b: {filler}}}\n"
        for number in range(first, first + AT_ONCE)
    ).encode()


async def _peak_mib(server: ApiServer, objects: int, home: str) -> float:
    command = [OURS, "create", "-f", "-", "--dry-run=client", "-s", server.url, "--token=good", "--cache-dir", home]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MEASURED, *command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"HOME": home, "KUBECONFIG": "/nonexistent"},
    )
    assert process.stdin is not None
    assert process.stderr is not None
    for first in range(0, objects, AT_ONCE):
        process.stdin.write(_documents(first))
        await process.stdin.drain()
    process.stdin.close()
    printed = (await process.stderr.read()).decode()
    assert await process.wait() == 0, printed
    return int(printed.splitlines()[-1]) / 1024


async def _measure(numbers: list[int]) -> None:
    async with ApiServer(command_cluster(), tokens={"good"}) as server:
        for objects in numbers:
            with tempfile.TemporaryDirectory() as home:
                print(f"{objects} objects: {await _peak_mib(server, objects, home):.0f} MiB", flush=True)


def main() -> None:
    """Print a line for each number."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.streaming", description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=[1000, 10_000, 100_000])
    asyncio.run(_measure(parser.parse_args().objects))


if __name__ == "__main__":
    main()
