"""What a process of ours gives up before it meets what others say: every capability, and ever getting one again."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Collection
from enum import IntEnum
from itertools import count


class Capability(IntEnum):
    """Those that dialing can do with (linux/capability.h). Either is enough to dial from a client's address; to mark a
    dial takes the first one before Linux 5.17, either since."""

    NET_ADMIN = 12
    NET_RAW = 13


FOR_DIALING = (Capability.NET_RAW,)
"""What a worker keeps: to mark its dials, and to dial from clients' addresses. Never CAP_NET_ADMIN, with which it could
rewrite every rule of the node."""

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 23, 24, 38, 47, 4
"""linux/prctl.h."""
_VERSION_3 = 0x20080522
"""linux/capability.h: sets of 64 bits, in two halves."""
_SETS = struct.Struct("=6I")

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def held() -> int:
    """The capabilities that are permitted to this process, as a set of bits."""
    permitted: int = _SETS.unpack(_call_with_sets("capget", bytes(_SETS.size)))[1]
    return permitted


def drop(keep: Collection[Capability] = ()) -> None:
    """Give up every capability but the first of these that is there, in all sets, and gain none by exec for ever.
    OSError if the kernel says no to giving up."""
    kept = _first_held(keep)
    # Asks for CAP_SETPCAP, so it comes first. Who has not got that cannot use the bounding set either.
    for number in count():
        if _prctl(_PR_CAPBSET_READ, number, 0, 0, 0) < 0:
            break
        if not kept >> number & 1 and _prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            _forgive(errno.EPERM)
    if _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0:
        _forgive(errno.EINVAL)  # before Linux 4.3 there were none
    _call_with_sets("capset", _SETS.pack(kept, kept, 0, 0, 0, 0))
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
        _forgive()


def use_alone(keep: Collection[Capability]) -> None:
    """Have this thread do with the first of these capabilities that is there, to see what is possible with it. OSError
    if the kernel says no."""
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
