"""SO_REUSEPORT program: assigns clients to the sockets of a port by client address.

A client always gets the same socket. A program in classic BPF, attached to the group of sockets, returns the index of
the socket in the group. The kernel numbers a group by the order in which its sockets listened (TCP) or were bound
(UDP); when one leaves, the last gets its index. For an index beyond the group the kernel chooses itself.
"""

from __future__ import annotations

import ctypes
import socket
import struct

from kubeproxy.model import Family

SO_ATTACH_REUSEPORT_CBPF = 51
"""asm-generic/socket.h; Python has no name for it."""

_LD_ABS, _LDX_MEM, _ST = 0x20, 0x61, 0x02
_ADD_K, _MUL_K, _RSH_K, _MOD_K, _ADD_X, _XOR_X = 0x04, 0x24, 0x74, 0x94, 0x0C, 0xAC
_TAX, _RET_A, _LD_IMM = 0x07, 0x16, 0x00
"""linux/bpf_common.h, linux/filter.h: loads, and operations on accumulator A and index register X."""
_NETWORK_HEADER = 0x1_0000_0000 - 0x100000
"""SKF_NET_OFF (-0x100000): offsets from the start of the IP header."""
_SOURCE_WORDS = {Family.IPV4: (12,), Family.IPV6: (8, 12, 16, 20)}
"""Offsets of the source address in the IP header."""
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
"""Odd numbers that keep the words of an IPv6 address apart: xxHash's primes."""
_FINISH = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
"""MurmurHash3's finalizer: every bit of the address affects every bit of the hash."""

_WORD = 0xFFFF_FFFF
"""The bits of the accumulator."""

Instruction = tuple[int, int]
"""Operation code and constant; there are no jumps."""


def program(family: Family, *, count: int, first: int = 0) -> tuple[Instruction, ...]:
    """The program that spreads clients evenly over `count` indices from `first` on."""
    steps: list[Instruction] = [(_LD_IMM, 0), (_ST, 0)]
    for offset, factor in zip(_SOURCE_WORDS[family], _FACTORS, strict=False):
        steps += [(_LD_ABS, _NETWORK_HEADER + offset), (_MUL_K, factor), (_LDX_MEM, 0), (_ADD_X, 0), (_ST, 0)]
    for shift, factor in _FINISH:
        steps += [(_TAX, 0), (_RSH_K, shift), (_XOR_X, 0), (_MUL_K, factor)]
    return (*steps, (_TAX, 0), (_RSH_K, 16), (_XOR_X, 0), (_MOD_K, count), (_ADD_K, first), (_RET_A, 0))


def place(client: str, *, count: int) -> int:
    """The index, of `count`, that `program` computes for a client's address. OSError for an invalid address."""
    address, _, _ = client.partition("%")
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    words: tuple[int, ...] = struct.unpack(f"!{len(packed) // 4}I", packed)
    found = sum(word * factor for word, factor in zip(words, _FACTORS, strict=False)) & _WORD
    for shift, factor in _FINISH:
        found = (found ^ found >> shift) * factor & _WORD
    return (found ^ found >> 16) % count


def attach(sock: socket.socket, instructions: tuple[Instruction, ...]) -> None:
    """Attach a program to the group of a socket. OSError when the kernel rejects it."""
    text = b"".join(struct.pack("=HBBI", code, 0, 0, constant) for code, constant in instructions)
    buffer = ctypes.create_string_buffer(text, len(text))
    sock.setsockopt(
        socket.SOL_SOCKET,
        SO_ATTACH_REUSEPORT_CBPF,
        struct.pack("@HP", len(instructions), ctypes.addressof(buffer)),
    )
