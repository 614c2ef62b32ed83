"""Programs of classic BPF, and the filter of a socket."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable
from typing import Final

LOAD_WORD, IS_EQUAL, RETURN = 0x20, 0x15, 0x06
"""linux/bpf_common.h: BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K."""
_INSTRUCTION: Final = struct.Struct("=HBBI")
"""struct sock_filter: code, jump if true, jump if false, operand."""
_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44
"""asm-generic/socket.h; Python has no names for them."""


def assembled(steps: Iterable[tuple[int, int, int, int]]) -> bytes:
    """A program as the kernel reads it."""
    return b"".join(_INSTRUCTION.pack(*step) for step in steps)


def attach(sock: socket.socket, program: bytes, *, lock: bool = False) -> None:
    """Have a socket receive only what the program takes; OSError. `lock`: for good, whoever has the socket."""
    memory = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a length, and a pointer at its natural place.
    packed = struct.pack("@HP", len(program) // _INSTRUCTION.size, ctypes.addressof(memory))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, packed)
    if lock:
        sock.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
