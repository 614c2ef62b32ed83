"""Landlock alone, without the filter of system calls, as on an architecture that the filter does not know."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.confined import landlock_version

pytestmark = pytest.mark.skipif(not landlock_version(), reason="the kernel has no Landlock, or does not enable it")

TRY = """if True:
    import json, os, signal, socket, sys
    from kubeproxy.runtime import landlock, privileges
    place, name, abstract_sockets = sys.argv[1:]
    inherited = os.open(f"{place}/file", os.O_RDONLY)

    def connect():
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect("\\0" + name)

    def bind(port):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))

    tries = {
        "read": lambda: os.open(f"{place}/file", os.O_RDONLY),
        "write": lambda: os.open(f"{place}/file", os.O_WRONLY),
        "create": lambda: os.open(f"{place}/new", os.O_WRONLY | os.O_CREAT),
        "list": lambda: os.listdir(place),
        "remove": lambda: os.unlink(f"{place}/file"),
        "rename": lambda: os.rename(f"{place}/file", f"{place}/other"),
        "make": lambda: os.mkdir(f"{place}/directory"),
        "execute": lambda: os.execv("/bin/true", ["true"]),
        "proc": lambda: os.open("/proc/self/status", os.O_RDONLY),
        "truncate": lambda: os.truncate(f"{place}/file", 0),
        "bind": lambda: bind(18080),
        "signal": lambda: os.kill(os.getppid(), 0),
        "connect": connect,
        "bind any": lambda: bind(0),
        "inherited": lambda: os.read(inherited, 1),
        "signal itself": lambda: os.kill(os.getpid(), 0),
        "fork": lambda: os.fork() or os._exit(0),
    }
    privileges.drop()
    landlock.restrict(abstract_sockets=abstract_sockets == "allowed")
    found = {}
    for what, attempt in tries.items():
        try:
            attempt()
            found[what] = 0
        except OSError as error:
            found[what] = error.errno
    print(json.dumps(found))
"""


@pytest.mark.parametrize("abstract_sockets", ["allowed", "forbidden"])
def test_landlock_withholds_all_that_the_kernel_can(tmp_path: Path, abstract_sockets: str) -> None:
    (tmp_path / "file").write_text("kept")
    name = f"kubeproxy-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        command = [sys.executable, "-c", TRY, str(tmp_path), name, abstract_sockets]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    version = landlock_version()
    EACCES, EPERM = 13, 1
    withheld = dict.fromkeys(["read", "write", "create", "list", "remove", "rename", "make", "execute", "proc"], EACCES)
    withheld["truncate"] = EACCES if version >= 3 else 0
    withheld["bind"] = EACCES if version >= 4 else 0
    withheld["signal"] = EPERM if version >= 6 else 0
    withheld["connect"] = EPERM if version >= 6 and abstract_sockets == "forbidden" else 0
    assert found == {**dict.fromkeys(found, 0), **withheld}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"
