"""Uses Landlock (Linux 5.13), with which a process permanently gives up access to the file system without any
privilege.

The rule set is empty, so the process loses every right that the running kernel can withhold. For files these are
reading, writing, executing, creating and removing. Newer kernels also withhold signals to other processes and
connections to abstract Unix sockets of others (Linux 6.12), and binding TCP ports (6.7). See landlock(7).

Landlock does not cover system calls that need no open file, such as chmod, stat, and connecting to a Unix socket in the
file system. The filter in `seccomp` refuses chmod. `sandbox` uses both.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The numbers of the system calls, which are the same on all architectures."""
_ASK_VERSION, _NET_PORT = 1, 2
"""LANDLOCK_CREATE_RULESET_VERSION and LANDLOCK_RULE_NET_PORT, from linux/landlock.h, like the following numbers."""
_FILE_RIGHTS: Final = ((1, 13), (2, 14), (3, 15), (5, 16))
"""Pairs of a version of the interface and the number of file rights that exist from this version on."""
_BIND_TCP, _NETWORK_SINCE = 1, 4
_ABSTRACT_SOCKETS, _SIGNALS, _SCOPES_SINCE = 1, 2, 6
_ANY_PORT = 0
"""The port number with which the kernel chooses the port."""

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long] * 5


def version() -> int:
    """Return the version of Landlock's interface. Raise OSError if the kernel lacks Landlock, or it is disabled."""
    return _call(_CREATE_RULESET, 0, 0, _ASK_VERSION)


def restrict(*, abstract_sockets: bool) -> None:
    """Give up access to files, signals to other processes, and binding TCP ports, except ports that the kernel chooses.

    With `abstract_sockets`, this process may still connect to abstract Unix sockets of other processes. The call
    requires no_new_privs (see `privileges.drop`), and applies to this thread and to threads that it starts later. Raise
    OSError if the kernel refuses.
    """
    present = version()
    files = (1 << max(count for since, count in _FILE_RIGHTS if since <= present)) - 1
    scopes = _SIGNALS if abstract_sockets else _SIGNALS | _ABSTRACT_SOCKETS
    handled = [files]
    if present >= _NETWORK_SINCE:
        handled.append(_BIND_TCP)
    if present >= _SCOPES_SINCE:
        handled.append(scopes)
    attributes = ctypes.create_string_buffer(struct.pack(f"={len(handled)}Q", *handled), 8 * len(handled))
    rules = _call(_CREATE_RULESET, ctypes.addressof(attributes), len(attributes))
    try:
        if present >= _NETWORK_SINCE:
            allowed = ctypes.create_string_buffer(struct.pack("=QQ", _BIND_TCP, _ANY_PORT), 16)
            _call(_ADD_RULE, rules, _NET_PORT, ctypes.addressof(allowed))
        _call(_RESTRICT_SELF, rules)
    finally:
        os.close(rules)


def _call(number: int, *arguments: int) -> int:
    result: int = _syscall(number, *arguments, *[0] * (4 - len(arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
