"""What code of an attacker can do in a worker: tried inside a real one, which then serves."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kubeproxy.dataplane.workers import pool as worker_pool_module
from kubeproxy.dataplane.workers.process import command
from kubeproxy.runtime import privileges
from kubeproxy.runtime.privileges import Capability
from kubeproxy.runtime.seccomp import MACHINES
from tests.dataplane.conftest import ask, endpoint, sends
from tests.dataplane.workers.harness import status, worker_pool
from tests.support import confined
from tests.support.confined import DONE, landlock_version

pytestmark = pytest.mark.skipif(os.uname().machine not in MACHINES, reason="no filter for this architecture")

OUT_OF_THE_FILE_SYSTEM = {"find a file", "connect to a Unix socket"}
"""Nothing by a name, where a person has started it as root."""
ALLOWED = {"open a UDP socket", "have a TCP port", "allocate memory", *OUT_OF_THE_FILE_SYSTEM}
"""What a worker needs; Unix sockets for its next owner, when its own has ended."""
OTHERWISE = {"start a thread": "RuntimeError", "call of the future": "ENOSYS", "call of the x32 ABI": "ENOSYS"}
BY_LANDLOCK_ONLY = "take a TCP port"


@pytest.mark.parametrize("without", ["nothing", "landlock"])
async def test_a_worker_gets_nothing_but_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    results = tmp_path / "results"

    def as_attacker(fd: int, **named: Any) -> list[str]:
        _, _, _, module, *arguments = command(fd, **named)
        return confined.command(module, place, results, arguments, without=without)

    monkeypatch.setattr(worker_pool_module, "command", as_attacker)
    with confined.furnish(place):
        async with worker_pool(1) as pool, endpoint(sends("alive")) as target:
            (worker,) = pool.workers
            assert (status(worker.pid)["Seccomp"], status(worker.pid)["NoNewPrivs"]) == ("2", "1")
            found = json.loads(results.read_text())
            address = await pool.serve(target)
            assert await ask(address) == "alive"
    expected = {name: OTHERWISE.get(name, "EPERM") for name in found}
    expected |= dict.fromkeys(ALLOWED, DONE)
    if privileges.held() >> Capability.SYS_CHROOT & 1:
        expected |= {**dict.fromkeys(OUT_OF_THE_FILE_SYSTEM, "ENOENT"), "import a module": "ModuleNotFoundError"}
    expected[BY_LANDLOCK_ONLY] = "EACCES" if without == "nothing" and landlock_version() >= 4 else DONE
    assert found == expected
    assert sorted(path.name for path in place.iterdir()) == ["directory", "socket", "token"]
    assert (place / "token").read_text() == "secret"
    assert Counter(found.values())["EPERM"] > 150
