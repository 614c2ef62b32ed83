"""The system call filter of a worker (attack review, finding 10: a worker that keeps CAP_NET_RAW)."""

from __future__ import annotations

import platform
import struct
import subprocess
import sys

import pytest

from kubeproxy.dataplane.workers.seccomp import MACHINES, Machine, program

ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000
PID = 4711


def run(machine: Machine, number: int, *args: int, arch: int | None = None, sockets: bool = True) -> int:
    """The filter's verdict on a system call, by an interpreter of classic BPF."""
    data = struct.pack("<iIQ6Q", number, machine.arch if arch is None else arch, 0, *args, *[0] * (6 - len(args)))
    steps = list(struct.iter_unpack("=HBBI", program(machine, PID, sockets=sockets)))
    place = accumulator = 0
    while True:
        code, if_true, if_false, k = steps[place]
        place += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x54:
                accumulator &= k
            case 0x15:
                place += if_true if accumulator == k else if_false
            case 0x35:
                place += if_true if accumulator >= k else if_false
            case 0x06:
                return int(k)
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


@machines
def test_the_filter_refuses_the_listed_calls_only(machine: Machine) -> None:
    for number in range(500):
        expected = EPERM if number in {*machine.refused, machine.socket, machine.tgkill} else ALLOW
        assert run(machine, number) == expected, number
    assert run(machine, 0x40000000 + 1) == EPERM
    assert run(machine, 1, arch=0x40000003) == KILL
    assert len(set(machine.refused)) == len(machine.refused) == len(MACHINES["x86_64"].refused)


@machines
@pytest.mark.parametrize(
    ("family", "kind", "answer"),
    [
        (1, 1, ALLOW),
        (1, 2, ALLOW),
        (2, 1, ALLOW),
        (2, 2 | 0o2000000 | 0o4000, ALLOW),
        (10, 1, ALLOW),
        (10, 2, ALLOW),
        (2, 3, EPERM),  # SOCK_RAW
        (10, 3, EPERM),
        (17, 3, EPERM),  # AF_PACKET
        (17, 2, EPERM),
        (38, 5, EPERM),  # AF_ALG
        (40, 1, EPERM),  # AF_VSOCK
    ],
)
def test_the_filter_allows_tcp_udp_and_unix_sockets(machine: Machine, family: int, kind: int, answer: int) -> None:
    assert run(machine, machine.socket, family, kind) == answer


@machines
def test_without_sockets_none_is_allowed(machine: Machine) -> None:
    for family in range(50):
        for kind in range(1, 6):
            assert run(machine, machine.socket, family, kind, sockets=False) == EPERM
    assert run(machine, machine.tgkill, PID, PID, 9, sockets=False) == ALLOW
    assert run(machine, 0, sockets=False) == ALLOW


@machines
def test_the_filter_allows_routes_and_sock_diag_of_netlink_only(machine: Machine) -> None:
    for protocol in range(32):
        assert run(machine, machine.socket, 16, 3, protocol) == (ALLOW if protocol in (0, 4) else EPERM), protocol


@machines
def test_the_filter_allows_signals_to_the_process_itself_only(machine: Machine) -> None:
    assert run(machine, machine.tgkill, PID, PID, 6) == ALLOW
    assert run(machine, machine.tgkill, PID + 1, PID + 1, 9) == EPERM


_TRY = """
import os, signal, socket, subprocess, sys
from kubeproxy.runtime import privileges
from kubeproxy.dataplane.workers import seccomp

privileges.drop(keep=(privileges.Capability.NET_RAW,))
assert seccomp.confine() is None
def refused(what):
    try:
        what()
    except PermissionError:
        return
    raise AssertionError(what)
socket.socket().close()
socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()
socket.socketpair()[0].close()
open("/proc/self/status").close()
refused(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
refused(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12))
for protocol in (0, 4):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()
refused(lambda: os.kill(os.getppid(), 0))
refused(lambda: os.pidfd_open(os.getppid()))
refused(lambda: os.execv("/bin/true", ["true"]))
refused(lambda: subprocess.run(["/bin/true"]))
signal.signal(signal.SIGUSR1, lambda *_: print("signalled"))
signal.pthread_kill(__import__("threading").get_ident(), signal.SIGUSR1)
print("confined")
sys.stdout.flush()
os.abort()
"""


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this architecture")
def test_the_kernel_enforces_the_filter() -> None:
    done = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "signalled\nconfined\n", done.stderr
    assert done.returncode == -6
