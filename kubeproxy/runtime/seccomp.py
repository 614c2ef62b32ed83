"""System call filter of a confined process: refuses calls that only an attacker would make.

A worker reads clients' bytes, and may keep CAP_NET_RAW to dial from clients' addresses. With that capability alone an
attacker could read and forge every packet of the node by a packet or raw socket. The filter leaves TCP, UDP and Unix
sockets, and of netlink the listing of sockets (sock_diag), by which an orphan looks for its next owner. It refuses all
that opens, creates or changes files, starts processes, concerns other processes (signals, by F_SETOWN, too; limits,
priorities), types into a terminal (TIOCSTI), or reaches the parts of the kernel with the most known faults.

A refused call returns EPERM, and one that is newer than the tables of `system_calls` ENOSYS; see seccomp(2). The
kernel remembers which numbers are allowed whatever their arguments are (Linux 5.11), so these cost nothing.
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
    """An architecture: its audit number, and its place in `Numbers`."""

    arch: int
    place: int

    def numbers(self, calls: Mapping[str, Numbers]) -> dict[str, int]:
        """Return the numbers of those calls that the architecture has."""
        return {name: number for name, numbers in calls.items() if (number := numbers[self.place]) is not None}


MACHINES: Final = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}
"""The machines by their name in uname(2); the numbers are those of linux/audit.h."""

_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
"""Offsets in struct seccomp_data. An argument has 64 bits, and these are the offsets of its low half."""
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""linux/seccomp.h."""
_REFUSE, _UNKNOWN = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
_NETLINK_SOCK_DIAG = 4
"""linux/netlink.h."""
_TYPE_MASK = 0xF
"""linux/net.h: the bits of a socket's type that are not flags."""
_IOCTLS = (0x5421, 0x541B, 0x5450, 0x5451, 0x8910, 0x8933)
"""FIONBIO, FIONREAD, FIONCLEX, FIOCLEX, SIOCGIFNAME, SIOCGIFINDEX: Python's and the C library's for sockets. TIOCSTI is
not among them: it types into the terminal at which a person has started the program."""
_SIGNALS_BY_DESCRIPTOR = (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX, by which the kernel sends any signal to any process of the same user."""
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def refused(machine: Machine, *, sockets: bool) -> dict[str, int]:
    """Return the calls that are refused whatever their arguments are, by name."""
    tables = FILES, PROCESSES, KERNEL, PAIRS, *(() if sockets else (SOCKETS,))
    return {name: number for table in tables for name, number in machine.numbers(table).items()}


def program(machine: Machine, pid: int, *, sockets: bool = True) -> bytes:
    """Return the filter for a process, as an array of struct sock_filter. With `sockets` the process may open some."""
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
        (JGE, 0, 1, UNKNOWN_FROM),  # The x32 ABI has other numbers for the same calls.
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
    """Refuse all values except these, and continue with the others."""
    tests = [(JEQ, len(allowed) - place, 0, value) for place, value in enumerate(allowed)]
    return [*tests, (RET, 0, 0, _REFUSE)]


def _plain_socket() -> list[Step]:
    """Allow TCP, UDP and Unix sockets with their own protocols, and of netlink the listing of sockets."""
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
    """Return the first and last number of each unbroken sequence, in order."""
    present = set(numbers)
    firsts = sorted(number for number in present if number - 1 not in present)
    lasts = sorted(number for number in present if number + 1 not in present)
    return zip(firsts, lasts, strict=True)


def confine(*, sockets: bool = True) -> str | None:
    """Filter the system calls of this process. Return the reason why that is not possible, or None if it is done.

    With `sockets` the process may still open those that a worker needs. This requires no_new_privs (`privileges.drop`),
    and applies to this thread, which can start no other.
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
