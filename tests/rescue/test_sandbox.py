"""What code of an attacker can do in the rescue process: tried inside a real one, which then works."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kubeproxy.runtime.seccomp import MACHINES
from tests.support import confined
from tests.support.confined import DONE
from tests.support.lab import Host

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.uname().machine not in MACHINES, reason="no filter for this architecture"),
]

START = """if True:
    import asyncio, json, sys
    from pathlib import Path
    from kubeproxy.rescue import process
    from tests.support import confined

    place, results, without = sys.argv[1:]
    command = process.command

    def as_attacker(fd, group):
        *_, module, channel, preferred = command(fd, group)
        return confined.command(module, Path(place), Path(results), [channel, preferred], without=without)

    async def main():
        process.command = as_attacker
        rescue = process.RescueProcess(64, on_failed=print)
        await rescue.started
        lines = Path(f"/proc/{rescue.pid}/status").read_text().splitlines()
        status = dict(each.split(":", 1) for each in lines)
        print(json.dumps({"well": rescue.well, "unfiltered": rescue.unfiltered, **status}))
        await rescue.close()

    asyncio.run(main())
"""
OTHERWISE = {
    "start a thread": "RuntimeError",
    "call of the future": "ENOSYS",
    "call of the x32 ABI": "ENOSYS",
    "allocate memory": DONE,
    "find a file": "ENOENT",
    "import a module": "ModuleNotFoundError",
}


@pytest.mark.parametrize("without", ["nothing", "landlock"])
def test_the_rescue_process_keeps_its_sockets_only(tmp_path: Path, without: str) -> None:
    place, results = tmp_path / "place", tmp_path / "results"
    place.mkdir()
    with Host("rescuer") as host, confined.furnish(place):
        host.ip("link set lo up")
        done = host.run([sys.executable, "-c", START, str(place), str(results), without])
    seen = json.loads(done.stdout)
    assert (seen["well"], seen["unfiltered"]) == (True, None)
    assert (seen["Seccomp"].strip(), seen["NoNewPrivs"].strip(), int(seen["CapEff"], 16)) == ("2", "1", 0)
    found = json.loads(results.read_text())
    assert found == {name: OTHERWISE.get(name, "EPERM") for name in found}
    assert sorted(path.name for path in place.iterdir()) == ["directory", "socket", "token"]
    assert (place / "token").read_text() == "secret"
