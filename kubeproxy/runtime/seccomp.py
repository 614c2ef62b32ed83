"""The system call filter of a confined process. It refuses system calls that only an attacker would make.

A worker reads clients' bytes, and may keep CAP_NET_RAW to dial from clients' addresses. With that capability, an
attacker could read and forge every packet of the node by a packet socket or raw socket. So the filter allows only TCP,
UDP and Unix sockets, and the netlink protocol that lists sockets (sock_diag), with which an orphaned worker looks for
its next owner. It refuses calls that open, create or change files, start processes, signal other processes (also by
F_SETOWN) or change their limits or priorities, type into a terminal (TIOCSTI), or reach the parts of the kernel with
the most known vulnerabilities.

A refused call returns EPERM. A call that is newer than the tables in `system_calls` returns ENOSYS. Since Linux 5.11,
the kernel caches which calls are allowed regardless of their arguments, so the filter does not slow these down. See
seccomp(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kubeproxy.runtime.classic_bpf import AND, JEQ, JGE, LD_ABS, RET, Step, assemble, fprog
from kubeproxy.runtime.system_calls import FILES, INSPECTED, KERNEL, PAIRS, PROCESSES, SOCKETS, UNKNOWN_FROM, Numbers


class Machine(NamedTuple):
    """An architecture, with its audit number and its index in `Numbers`."""

    arch: int
    place: int

    def numbers(self, calls: Mapping[str, Numbers]) -> dict[str, int]:
        """Return the number of each of these calls that the architecture has, by name."""
        return {name: number for name, numbers in calls.items() if (number := numbers[self.place]) is not None}


MACHINES: Final = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}
"""The architectures by their names in uname(2). The audit numbers are from linux/audit.h."""

_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
"""Offsets in struct seccomp_data. The offset of a 64-bit argument is that of its low half."""
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""linux/seccomp.h."""
_REFUSE, _UNKNOWN = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
_NETLINK_SOCK_DIAG = 4
"""linux/netlink.h."""
_TYPE_MASK = 0xF
"""The bits of a socket's type that are not flags (linux/net.h)."""
_IOCTLS = (0x5421, 0x541B, 0x5450, 0x5451, 0x8910, 0x8933)
"""The allowed ioctls, which Python and the C library use for sockets: FIONBIO, FIONREAD, FIONCLEX, FIOCLEX,
SIOCGIFNAME, SIOCGIFINDEX. Among the refused ioctls is TIOCSTI, which types into the terminal from which the program was
started."""
_SIGNALS_BY_DESCRIPTOR = (8, 10, 15)
"""The refused fcntl commands F_SETOWN, F_SETSIG and F_SETOWN_EX. With them, the kernel would send any signal to any
process of the same user."""
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def refused(machine: Machine, *, sockets: bool) -> dict[str, int]:
    """Return the numbers of the calls that are refused regardless of their arguments, by name."""
    tables = FILES, PROCESSES, KERNEL, PAIRS, *(() if sockets else (SOCKETS,))
    return {name: number for table in tables for name, number in machine.numbers(table).items()}


def program(machine: Machine, pid: int, *, sockets: bool = True) -> bytes:
    """Return the filter for the process `pid`, as an array of struct sock_filter. With `sockets`, the process may open
    sockets."""
    inspected = machine.numbers(INSPECTED)
    rules: dict[str, list[Step]] = {
        "tgkill": _require(_FIRST, pid),
        "prlimit64": _require(_FIRST, 0, pid),
        "ioctl": _require(_SECOND, *_IOCTLS),
        "fcntl": _forbid(_SECOND, *_SIGNALS_BY_DESCRIPTOR),
    }
    if sockets:
        rules["socket"] = _plain_socket()
    steps: list[Step] = [
        (LD_ABS, 0, 0, _ARCH),
        (JEQ, 1, 0, machine.arch),
        (RET, 0, 0, _KILL),
        (LD_ABS, 0, 0, _NUMBER),
        (JGE, 0, 1, UNKNOWN_FROM),  # This also refuses the x32 ABI, which has other numbers for the same calls.
        (RET, 0, 0, _UNKNOWN),
    ]
    for name, rule in rules.items():
        steps += [(JEQ, 0, len(rule), inspected[name]), *rule]
    for first, last in _ranges(refused(machine, sockets=sockets).values()):
        steps += [
            (JGE, 1, 0, first),
            (RET, 0, 0, _ALLOW),
            (JGE, 1, 0, last + 1),
            (RET, 0, 0, _REFUSE),
        ]
    steps.append((RET, 0, 0, _ALLOW))
    return assemble(steps)


def _require(argument: int, *allowed: int) -> list[Step]:
    return [(LD_ABS, 0, 0, argument), *_unless(*allowed), (RET, 0, 0, _ALLOW)]


def _forbid(argument: int, *values: int) -> list[Step]:
    tests = [(JEQ, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(LD_ABS, 0, 0, argument), *tests, (RET, 0, 0, _ALLOW), (RET, 0, 0, _REFUSE)]


def _unless(*allowed: int) -> list[Step]:
    """Return instructions that refuse the call unless A is one of these values."""
    tests = [(JEQ, len(allowed) - place, 0, value) for place, value in enumerate(allowed)]
    return [*tests, (RET, 0, 0, _REFUSE)]


def _plain_socket() -> list[Step]:
    """Return instructions that allow TCP, UDP and Unix sockets with their default protocols, and netlink sockets for
    sock_diag."""
    listing = _require(_THIRD, _NETLINK_SOCK_DIAG)
    return [
        (LD_ABS, 0, 0, _FIRST),
        (JEQ, 0, len(listing), socket.AF_NETLINK),
        *listing,
        *_unless(socket.AF_UNIX, socket.AF_INET, socket.AF_INET6),
        (LD_ABS, 0, 0, _SECOND),
        (AND, 0, 0, _TYPE_MASK),
        *_unless(socket.SOCK_STREAM, socket.SOCK_DGRAM),
        *_require(_THIRD, 0, socket.IPPROTO_TCP, socket.IPPROTO_UDP),
    ]


def _ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each run of consecutive numbers, in order."""
    present = set(numbers)
    firsts = sorted(number for number in present if number - 1 not in present)
    lasts = sorted(number for number in present if number + 1 not in present)
    return zip(firsts, lasts, strict=True)


def confine(*, sockets: bool = True) -> str | None:
    """Filter the system calls of this process. Return the reason why that is impossible, or None if they are filtered.

    With `sockets`, the process may still open the sockets that a worker needs. The call requires no_new_privs (see
    `privileges.drop`). It applies to this thread, which cannot start other threads afterwards.
    """
    machine = MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little" or struct.calcsize("P") != 8:
        return f"no filter for this architecture ({platform.machine()})"
    code = program(machine, os.getpid(), sockets=sockets)
    packed, _filters = fprog(code)
    header = ctypes.create_string_buffer(packed)
    libc = ctypes.CDLL(None, use_errno=True)
    prctl = libc.prctl
    prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    if prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header), 0, 0) < 0:
        return f"the kernel refuses the filter: {os.strerror(ctypes.get_errno())}"
    return None
