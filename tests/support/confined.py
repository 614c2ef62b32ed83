"""A worker or a rescue process that tries what an attacker would, once its own code has confined it.

    python confined.py MODULE WITHOUT PLACE RESULTS ARGUMENTS...

MODULE is its main program, which gets ARGUMENTS; WITHOUT is ``landlock`` or ``nothing``; PLACE is a directory made by
`furnish`; RESULTS a file for the results: what each attempt of `attempts` ended with, as JSON. The process then goes on
with its work.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import json
import mmap
import os
import platform
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from kubeproxy.runtime import landlock, sandbox, seccomp
from kubeproxy.runtime.system_calls import UNKNOWN_FROM

DONE: Final = "done"
TIOCSTI, SIOCSPGRP = 0x5412, 0x8902
_libc = ctypes.CDLL(None, use_errno=True)


def furnish(place: Path) -> socket.socket:
    """Fill a directory with what an attacker looks for; the socket that listens there."""
    (place / "token").write_text("secret")
    (place / "token").chmod(0o600)
    (place / "directory").mkdir()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(place / "socket"))
    listener.listen()
    return listener


def command(
    module: str, place: Path, results: Path, arguments: Sequence[str], *, without: str = "nothing"
) -> list[str]:
    """The command line of the process."""
    return [sys.executable, "-P", str(Path(__file__)), module, without, str(place), str(results), *arguments]


def attempts(place: str) -> Mapping[str, Callable[[], object]]:
    """What an attacker would try, each by its name."""
    pipe, parent, token = os.pipe()[0], os.getppid(), f"{place}/token"
    pair = partial(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)
    return {
        "find a file": lambda: os.stat(token),
        "read a file": lambda: os.open(token, os.O_RDONLY),
        "write a file": lambda: os.open(token, os.O_WRONLY),
        "truncate a file": lambda: os.truncate(token, 0),
        "create a file": lambda: os.open(f"{place}/cron", os.O_CREAT | os.O_WRONLY),
        "create a temporary file": lambda: os.open(place, os.O_TMPFILE | os.O_WRONLY),
        "create a named pipe": lambda: os.mkfifo(f"{place}/fifo"),
        "make a directory": lambda: os.mkdir(f"{place}/other"),
        "list a directory": lambda: os.listdir(place),
        "remove a file": lambda: os.unlink(token),
        "remove a directory": lambda: os.rmdir(f"{place}/directory"),
        "rename a file": lambda: os.rename(token, f"{place}/taken"),
        "link a file": lambda: os.link(token, f"{place}/link"),
        "link a file by name": lambda: os.symlink(token, f"{place}/link"),
        "change a mode": lambda: os.chmod(token, 0o666),
        "change an owner": lambda: os.chown(token, 65534, 65534),
        "change a time": lambda: os.utime(token, (0, 0)),
        "change an attribute": lambda: os.setxattr(token, "user.a", b"b"),
        "change the directory": lambda: os.chdir(place),
        "read /proc of this process": lambda: os.open("/proc/self/status", os.O_RDONLY),
        "read /proc of the parent": lambda: os.open(f"/proc/{parent}/environ", os.O_RDONLY),
        "set a sysctl": lambda: os.open("/proc/sys/net/ipv4/ip_forward", os.O_WRONLY),
        "read a link of the parent": lambda: os.readlink(f"/proc/{parent}/exe"),
        "import a module": lambda: importlib.import_module("this"),
        "fork": _fork,
        "start a program": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "become a program": lambda: os.execv("/bin/true", ["true"]),
        "start a thread": lambda: threading.Thread(target=int).start(),
        "signal the parent": lambda: os.kill(parent, 0),
        "signal the parent by a thread": lambda: _call(
            234 if platform.machine() == "x86_64" else 131, parent, parent, 0
        ),
        "signal the parent by a descriptor": lambda: fcntl.fcntl(pipe, fcntl.F_SETOWN, parent),
        "signal the parent by an ioctl": lambda: fcntl.ioctl(pipe, SIOCSPGRP, parent.to_bytes(4, sys.byteorder)),
        "choose the signal of a descriptor": lambda: fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL),
        "hold the parent": lambda: os.pidfd_open(parent),
        "limit the parent": lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE, (3, 3)),
        "slow the parent": lambda: os.setpriority(os.PRIO_PROCESS, parent, 19),
        "pin the parent": lambda: os.sched_setaffinity(parent, {0}),
        "type into the terminal": lambda: fcntl.ioctl(2, TIOCSTI, b"\n"),
        "make a pair of sockets": lambda: pair()[0].sendto(b"hi", f"{place}/socket"),
        "open a packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "open a raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
        "open an ICMP socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
        "open an SCTP socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP),
        "open a netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
        "open a UDP socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "take a TCP port": _take_port,
        "have a TCP port": lambda: socket.socket().bind(("127.0.0.1", 0)),
        "connect to a Unix socket": lambda: socket.socket(socket.AF_UNIX).connect(f"{place}/socket"),
        "allocate memory": lambda: mmap.mmap(-1, 1 << 20),
        **{f"call {name}": partial(_call, number) for name, number in _listed().items()},
        "call of the future": partial(_call, UNKNOWN_FROM),
        "call of the x32 ABI": partial(_call, 0x40000000 + 39),
    }


def landlock_version() -> int:
    """The version of Landlock in this kernel; 0: none."""
    try:
        return landlock.version()
    except OSError:
        return 0


def _listed() -> dict[str, int]:
    machine = seccomp.MACHINES.get(platform.machine())
    return {} if machine is None else seccomp.refused(machine, sockets=True)


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _take_port() -> None:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    socket.socket().bind(("127.0.0.1", port))


def _call(number: int, *arguments: int) -> None:
    """A system call whose pointers lead nowhere: without a filter it fails otherwise, or does nothing."""
    pid = os.getpid()
    if _libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, [*arguments, *[0] * (6 - len(arguments))])) < 0:
        raise OSError(ctypes.get_errno(), "")
    if os.getpid() != pid:
        os._exit(0)  # a fork


def _result(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except Exception as error:
        return type(error).__name__
    return DONE


def main(module: str, without: str, place: str, results: str, *arguments: str) -> int:
    """Run the program, with the attempts right after its call of `sandbox.confine`."""
    program = importlib.import_module(module)
    log = open(results, "w")  # noqa: SIM115 - the sandbox allows no file later
    tried = attempts(place)
    confine = sandbox.confine

    def confine_and_try(**options: Any) -> str | None:
        failure = confine(**options, use_landlock=without != "landlock")
        log.write(json.dumps({name: _result(attempt) for name, attempt in tried.items()}))
        log.close()
        return failure

    sandbox.confine = confine_and_try
    status: int = program.main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
