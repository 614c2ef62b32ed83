"""System call filter of a worker: refuses calls that only an attacker would make.

A worker reads clients' bytes, and may keep CAP_NET_RAW to dial from clients' addresses. With that capability alone an
attacker could read and forge every packet of the node by a packet or raw socket. The filter leaves TCP, UDP and Unix
sockets, and of netlink the listing of sockets (sock_diag), by which an orphan looks for its next owner, and questions
for routes, which without CAP_NET_ADMIN change nothing. It also refuses to execute programs, to signal or trace other
processes, and the parts of the kernel with the most known faults (bpf, io_uring, perf, user namespaces, mounts). A
refused call returns EPERM; see seccomp(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from typing import Final, NamedTuple


class Machine(NamedTuple):
    """An architecture: its audit number, and the numbers of `socket`, `tgkill` and the refused calls."""

    arch: int
    socket: int
    tgkill: int
    refused: tuple[int, ...]


_EVERYWHERE: Final = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438)
"""pidfd_send_signal, io_uring_setup/_enter/_register, open_tree, move_mount, fsopen, fsconfig, fsmount, fspick,
pidfd_open, pidfd_getfd: calls from 424 on have one number on all architectures."""

MACHINES: Final = {
    "x86_64": Machine(
        arch=0xC000003E,
        socket=41,
        tgkill=234,
        refused=(
            *(59, 322),  # execve, execveat
            *(62, 200, 129, 297),  # kill, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo
            *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
            *(321, 298, 323),  # bpf, perf_event_open, userfaultfd
            *(272, 308, 165, 166, 155, 161),  # unshare, setns, mount, umount2, pivot_root, chroot
            *(248, 249, 250),  # add_key, request_key, keyctl
            *(175, 313, 176, 246, 320, 304),  # init_module, finit_module, delete_module, kexec_*, open_by_handle_at
            *_EVERYWHERE,
        ),
    ),
    "aarch64": Machine(
        arch=0xC00000B7,
        socket=198,
        tgkill=131,
        refused=(
            *(221, 281),
            *(129, 130, 138, 240),
            *(117, 270, 271, 272),
            *(280, 241, 282),
            *(97, 268, 40, 39, 41, 51),
            *(217, 218, 219),
            *(105, 273, 106, 104, 294, 265),
            *_EVERYWHERE,
        ),
    ),
}
"""arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h; in the same order."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
"""linux/bpf_common.h: BPF_LD|W|ABS, BPF_ALU|AND|K, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_RET|K."""
_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
"""Offsets in struct seccomp_data; an argument has 64 bits, and these are of its low half."""
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
"""linux/seccomp.h."""
_X32 = 0x40000000
"""Numbers from here on are the x32 ABI's numbers of the same calls (x86_64 only)."""
_NETLINK_ROUTE, _NETLINK_SOCK_DIAG = 0, 4
"""linux/netlink.h."""
_TYPE_MASK = 0xF
"""linux/net.h: the bits of a socket's type that are not flags."""
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def program(machine: Machine, pid: int, *, sockets: bool = True) -> bytes:
    """The filter for a process, as an array of struct sock_filter. `sockets`: whether it may open any."""

    def refuse_if(*equal: int) -> list[tuple[int, int, int, int]]:
        return [step for value in equal for step in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _REFUSE))]

    def refuse_unless(*equal: int) -> list[tuple[int, int, int, int]]:
        tests = [(_EQUAL, len(equal) - place, 0, value) for place, value in enumerate(equal)]
        return [*tests, (_RETURN, 0, 0, _REFUSE)]

    own_thread = [(_LOAD, 0, 0, _FIRST), *refuse_unless(pid), (_RETURN, 0, 0, _ALLOW)]
    asking = [(_LOAD, 0, 0, _THIRD), *refuse_unless(_NETLINK_ROUTE, _NETLINK_SOCK_DIAG), (_RETURN, 0, 0, _ALLOW)]
    plain_socket = [
        (_LOAD, 0, 0, _FIRST),
        (_EQUAL, 0, len(asking), socket.AF_NETLINK),
        *asking,
        *refuse_unless(socket.AF_UNIX, socket.AF_INET, socket.AF_INET6),
        (_LOAD, 0, 0, _SECOND),
        (_AND, 0, 0, _TYPE_MASK),
        *refuse_unless(socket.SOCK_STREAM, socket.SOCK_DGRAM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    opening = [(_EQUAL, 0, len(plain_socket), machine.socket), *plain_socket] if sockets else refuse_if(machine.socket)
    steps = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, machine.arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSE),
        *refuse_if(*machine.refused),
        (_EQUAL, 0, len(own_thread), machine.tgkill),
        *own_thread,
        *opening,
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def confine(*, sockets: bool = True) -> str | None:
    """Filter the system calls of this process; None, or the reason why that is not possible.

    `sockets`: whether it may still open those that a worker needs. Requires no_new_privs (`privileges.drop`). Applies
    to this thread and to threads that it starts later.
    """
    machine = MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little" or struct.calcsize("P") != 8:
        return f"no filter for this architecture ({platform.machine()})"
    code = program(machine, os.getpid(), sockets=sockets)
    filters = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    prctl = libc.prctl
    prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    if prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header), 0, 0) < 0:
        return f"the kernel refuses the filter: {os.strerror(ctypes.get_errno())}"
    return None
