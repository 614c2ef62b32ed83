"""Assembles programs of classic BPF, and attaches them to sockets.

Such programs filter the packets of a socket, select a socket of a SO_REUSEPORT group, or filter system calls. The names
of operations follow linux/bpf_common.h and linux/filter.h, without BPF_. A is the accumulator, X the index register,
and K the constant of an instruction.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable
from typing import Final

LD_IMM, LD_ABS, LD_ABS_BYTE, LD_IND = 0x00, 0x20, 0x30, 0x40
"""Load into A: K, the word at offset K, the byte at offset K, or the word at offset X + K."""
LDX_IMM, LDX_MEM, ST = 0x01, 0x61, 0x02
"""Load K or memory cell K into X, or store A in memory cell K."""
ADD, MUL, AND, RSH, MOD = 0x04, 0x24, 0x54, 0x74, 0x94
"""Compute A operation K, into A."""
ADD_X, XOR_X = 0x0C, 0xAC
"""Compute A operation X, into A."""
TAX, TXA = 0x07, 0x87
"""Copy A to X, or X to A."""
JEQ, JGE, JSET, JEQ_X = 0x15, 0x35, 0x45, 0x1D
"""Jump if A equals K, is at least K, has a bit of K set, or equals X."""
RET, RET_A = 0x06, 0x16
"""Return K or A as the result of the program."""
NETWORK_HEADER: Final = 0x1_0000_0000 - 0x100000
"""SKF_NET_OFF (-0x100000), the base of offsets from the start of the IP header."""

SO_ATTACH_FILTER, SO_LOCK_FILTER, SO_ATTACH_REUSEPORT_CBPF = 26, 44, 51
"""Socket options from asm-generic/socket.h. Python has no names for them."""

Step = tuple[int, int, int, int]
"""An instruction (struct sock_filter): operation, number of instructions to skip if true, number to skip if false,
K."""
_STEP: Final = struct.Struct("=HBBI")


def assemble(steps: Iterable[Step]) -> bytes:
    """Return the program as an array of struct sock_filter."""
    return b"".join(_STEP.pack(*step) for step in steps)


def fprog(program: bytes) -> tuple[bytes, ctypes.Array[ctypes.c_char]]:
    """Return a struct sock_fprog for a program, and the memory to which it points. The caller has to keep the memory as
    long as it uses the struct."""
    memory = ctypes.create_string_buffer(program, len(program))
    # The struct has a length, and a pointer at its natural alignment.
    return struct.pack("@HP", len(program) // _STEP.size, ctypes.addressof(memory)), memory


def attach(sock: socket.socket, option: int, program: bytes) -> None:
    """Attach a program to a socket. `option` is one of the socket options above. Raise OSError if the kernel rejects
    it."""
    header, _memory = fprog(program)
    sock.setsockopt(socket.SOL_SOCKET, option, header)
