"""Drops capabilities permanently. Workers drop nearly all capabilities, and the control process drops most of them."""

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
    """Needed to read files of other users: manifests, certificates and keys, the access log, and the lock of
    iptables."""
    NET_BIND_SERVICE = 10
    """Needed to bind ports below 1024."""
    NET_ADMIN = 12
    """Needed to change rules and routes, and to dial from clients' addresses."""
    NET_RAW = 13
    """Needed to use the legacy iptables tables, and to dial from clients' addresses."""
    SYS_CHROOT = 18
    """Needed to leave the file system (chroot), if a person has started the program as root."""


FOR_DIALING = (Capability.NET_RAW,)
"""The capability with which workers mark their connections and dial from clients' addresses. It is not CAP_NET_ADMIN,
with which a worker could change all rules of the node."""
CONTROL = frozenset(Capability)
"""The capabilities that the control process keeps."""

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38
"""linux/prctl.h."""
_VERSION_3 = 0x20080522
"""The version of capget and capset with sets of 64 bits, in two halves (linux/capability.h)."""
_SETS = struct.Struct("=6I")

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def held() -> int:
    """Return the permitted capabilities of this process as a bit mask."""
    permitted: int = _SETS.unpack(_call_with_sets("capget", bytes(_SETS.size)))[1]
    return permitted


def drop(keep: Collection[Capability] = ()) -> None:
    """Drop all capabilities, from all sets, except the first of `keep` that this process has. They cannot be regained
    by exec. Raise OSError if the kernel refuses."""
    kept = _first_held(keep)
    _restrict(kept, inheritable=0)


def restrict(keep: Collection[Capability] = CONTROL) -> None:
    """Drop all capabilities except `keep`, from all sets. They cannot be regained by exec.

    Programs that this process starts or executes keep the same capabilities: as root because of the bounding set, and
    as another user because of the ambient set. The call applies to this thread and to threads that it starts later, so
    make it before there are other threads. Raise OSError if the kernel refuses.
    """
    kept = held() & sum(1 << capability for capability in keep)
    _restrict(kept, inheritable=kept & _inheritable())


def _inheritable() -> int:
    sets: int = _SETS.unpack(_call_with_sets("capget", bytes(_SETS.size)))[2]
    return sets


def _restrict(kept: int, *, inheritable: int) -> None:
    # Changing the bounding set needs CAP_SETPCAP, so it comes first. Without CAP_SETPCAP, the bounding set has no
    # effect on this process.
    for number in count():
        if _prctl(_PR_CAPBSET_READ, number, 0, 0, 0) < 0:
            break
        if not kept >> number & 1 and _prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            _forgive(errno.EPERM)
    # The kernel also removes capabilities from the ambient set that are not both permitted and inheritable.
    _call_with_sets("capset", _SETS.pack(kept, kept, inheritable, 0, 0, 0))
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
        _forgive()


def use_alone(keep: Collection[Capability]) -> None:
    """Reduce this thread's capabilities to the first of `keep` that is permitted, to find out what it allows. Raise
    OSError if the kernel refuses."""
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
