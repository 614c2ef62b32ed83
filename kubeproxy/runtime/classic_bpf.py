"""Programs of classic BPF: operations, assembly, and attachment to sockets.

A filter of a socket, of a SO_REUSEPORT group, of a link or of system calls is such a program. Operations have the names
of linux/bpf_common.h and linux/filter.h without BPF_: A is the accumulator, X the index register, K the constant.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable
from typing import Final

LD_IMM, LD_ABS, LD_ABS_BYTE, LD_IND = 0x00, 0x20, 0x30, 0x40
"""A gets K, the word or byte at offset K, or the word at offset X + K."""
LDX_IMM, LDX_MEM, ST = 0x01, 0x61, 0x02
"""X gets K, or memory K; memory K gets A."""
ADD, MUL, AND, RSH, MOD = 0x04, 0x24, 0x54, 0x74, 0x94
"""A gets A operation K."""
ADD_X, XOR_X = 0x0C, 0xAC
"""A gets A operation X."""
TAX, TXA = 0x07, 0x87
"""X gets A, or A gets X."""
JEQ, JGE, JSET, JEQ_X = 0x15, 0x35, 0x45, 0x1D
"""Jump if A equals K, is at least K, has a bit of K, or equals X."""
RET, RET_A = 0x06, 0x16
"""End with K, or with A."""
NETWORK_HEADER: Final = 0x1_0000_0000 - 0x100000
"""SKF_NET_OFF (-0x100000): offsets from the start of the IP header."""

SO_ATTACH_FILTER, SO_LOCK_FILTER, SO_ATTACH_REUSEPORT_CBPF = 26, 44, 51
"""asm-generic/socket.h; Python has no names for these socket options."""

Step = tuple[int, int, int, int]
"""An instruction, struct sock_filter: operation, how many steps to skip if true and if false, K."""
_STEP: Final = struct.Struct("=HBBI")


def assemble(steps: Iterable[Step]) -> bytes:
    """Return the program as the kernel reads it."""
    return b"".join(_STEP.pack(*step) for step in steps)


def fprog(program: bytes) -> tuple[bytes, ctypes.Array[ctypes.c_char]]:
    """Return struct sock_fprog for a program, and the memory that it points to and that has to outlive its use."""
    memory = ctypes.create_string_buffer(program, len(program))
    # The struct has a length, and a pointer at its natural alignment.
    return struct.pack("@HP", len(program) // _STEP.size, ctypes.addressof(memory)), memory


def attach(sock: socket.socket, option: int, program: bytes) -> None:
    """Attach a program to a socket by one of the options above. Raise OSError if the kernel rejects it."""
    header, _memory = fprog(program)
    sock.setsockopt(socket.SOL_SOCKET, option, header)
