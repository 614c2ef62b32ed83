"""Drops capabilities for good. Workers drop nearly all of them, and the control process most of them."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Collection
from enum import IntEnum
from itertools import count


class Capability(IntEnum):
    """The capabilities in use (linux/capability.h)."""

    DAC_OVERRIDE = 1
    """Reading files of other users: manifests, certificates and keys, the access log, the lock of iptables."""
    NET_BIND_SERVICE = 10
    """Binding ports below 1024."""
    NET_ADMIN = 12
    """Changing rules and routes, and dialing from a client's address."""
    NET_RAW = 13
    """Using the legacy tables, and dialing from a client's address."""
    SYS_CHROOT = 18
    """Leaving the file system, for workers and the rescue process that a person has started as root."""


FOR_DIALING = (Capability.NET_RAW,)
"""The capability of a worker, which marks its dials and dials from clients' addresses. It is never CAP_NET_ADMIN, with
which every rule of the node could be rewritten."""
CONTROL = frozenset(Capability)
"""The capabilities of the control process."""

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38
"""linux/prctl.h."""
_VERSION_3 = 0x20080522
"""linux/capability.h: sets of 64 bits, in two halves."""
_SETS = struct.Struct("=6I")

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def held() -> int:
    """Return the permitted capabilities of this process, as a set of bits."""
    permitted: int = _SETS.unpack(_call_with_sets("capget", bytes(_SETS.size)))[1]
    return permitted


def drop(keep: Collection[Capability] = ()) -> None:
    """Drop every capability except the first of `keep` that is permitted, in all sets. No exec returns any of them.
    Raise OSError if the kernel refuses."""
    kept = _first_held(keep)
    _restrict(kept, inheritable=0)


def restrict(keep: Collection[Capability] = CONTROL) -> None:
    """Drop every capability except `keep`, in all sets. No exec returns any of them.

    Programs that this process starts, and the program that it executes next, keep the same ones: as root by the
    bounding set, as another user by the ambient set. This applies to the calling thread and those that it starts, so
    call it before there are others. Raise OSError if the kernel refuses.
    """
    kept = held() & sum(1 << capability for capability in keep)
    _restrict(kept, inheritable=kept & _inheritable())


def _inheritable() -> int:
    sets: int = _SETS.unpack(_call_with_sets("capget", bytes(_SETS.size)))[2]
    return sets


def _restrict(kept: int, *, inheritable: int) -> None:
    # This needs CAP_SETPCAP, so it comes first. Without that capability the bounding set does not matter to the process
    # either.
    for number in count():
        if _prctl(_PR_CAPBSET_READ, number, 0, 0, 0) < 0:
            break
        if not kept >> number & 1 and _prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            _forgive(errno.EPERM)
    # The kernel removes from the ambient set what is not both permitted and inheritable.
    _call_with_sets("capset", _SETS.pack(kept, kept, inheritable, 0, 0, 0))
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
        _forgive()


def use_alone(keep: Collection[Capability]) -> None:
    """Reduce this thread to the first of `keep` that is permitted, to try what that allows. Raise OSError on
    refusal."""
    _call_with_sets("capset", _SETS.pack(_first_held(keep), held(), 0, 0, 0, 0))


def _first_held(some: Collection[Capability]) -> int:
    return next((1 << capability for capability in some if held() >> capability & 1), 0)


def _call_with_sets(name: str, sets: bytes) -> bytes:
    header = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0))
    data = ctypes.create_string_buffer(sets, len(sets))
    if getattr(_libc, name)(header, data) < 0:
        _forgive()
    return data.raw


def _forgive(*forgiven: int) -> None:
    error = ctypes.get_errno()
    if error not in forgiven:
        raise OSError(error, os.strerror(error))
