"""Makes the SO_REUSEPORT program that assigns clients to the sockets of a port by client address.

So a client always gets the same socket. The program is written in classic BPF. It is attached to the group of sockets
and returns the index of a socket in the group. The kernel numbers the sockets in the order in which they began to
listen (TCP) or were bound (UDP). When a socket leaves the group, the last one gets its index. If the program returns an
index beyond the group, the kernel itself chooses.
"""

from __future__ import annotations

import socket
import struct

from kubeproxy.model import Family
from kubeproxy.runtime import classic_bpf
from kubeproxy.runtime.classic_bpf import (
    ADD,
    ADD_X,
    LD_ABS,
    LD_IMM,
    LDX_MEM,
    MOD,
    MUL,
    NETWORK_HEADER,
    RET_A,
    RSH,
    SO_ATTACH_REUSEPORT_CBPF,
    ST,
    TAX,
    XOR_X,
    assemble,
)

_SOURCE_WORDS = {Family.IPV4: (12,), Family.IPV6: (8, 12, 16, 20)}
"""The offsets of the source address in the IP header."""
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
"""Odd numbers (primes of xxHash) by which the words of an IPv6 address are multiplied."""
_FINISH = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
"""The constants of MurmurHash3's finalizer. It lets every bit of the address affect every bit of the hash."""

_WORD = 0xFFFF_FFFF
"""A mask for the bits of the accumulator."""

Instruction = tuple[int, int]
"""An operation code and a constant. Programs have no jumps."""


def program(family: Family, *, count: int, first: int = 0) -> tuple[Instruction, ...]:
    """Return the program that distributes clients evenly over `count` indices, starting with `first`."""
    steps: list[Instruction] = [(LD_IMM, 0), (ST, 0)]
    for offset, factor in zip(_SOURCE_WORDS[family], _FACTORS, strict=False):
        steps += [(LD_ABS, NETWORK_HEADER + offset), (MUL, factor), (LDX_MEM, 0), (ADD_X, 0), (ST, 0)]
    for shift, factor in _FINISH:
        steps += [(TAX, 0), (RSH, shift), (XOR_X, 0), (MUL, factor)]
    return (*steps, (TAX, 0), (RSH, 16), (XOR_X, 0), (MOD, count), (ADD, first), (RET_A, 0))


def place(client: str, *, count: int) -> int:
    """Return the index, from 0 to `count` - 1, that `program` computes for a client's address. Raise OSError for an
    invalid address."""
    address, _, _ = client.partition("%")
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    words: tuple[int, ...] = struct.unpack(f"!{len(packed) // 4}I", packed)
    found = sum(word * factor for word, factor in zip(words, _FACTORS, strict=False)) & _WORD
    for shift, factor in _FINISH:
        found = (found ^ found >> shift) * factor & _WORD
    return (found ^ found >> 16) % count


def attach(sock: socket.socket, instructions: tuple[Instruction, ...]) -> None:
    """Attach a program to a socket's group. Raise OSError if the kernel rejects it."""
    steps = ((operation, 0, 0, constant) for operation, constant in instructions)
    classic_bpf.attach(sock, SO_ATTACH_REUSEPORT_CBPF, assemble(steps))
