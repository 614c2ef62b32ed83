"""Landlock, with which a process gives up the file system for good, without any privilege (Linux 5.13).

The rule set is empty, so every right that the running kernel can withhold is withheld: reading, writing, executing,
creating, removing. In addition to files these are signals to other processes and abstract Unix sockets of others (Linux
6.12), and binding a TCP port of its own choice (6.7). See landlock(7).

Landlock does not cover calls that need no open file: chmod, stat, connect to a Unix socket in the file system. The
filter of `seccomp` refuses the first of these; `sandbox` has both.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The numbers of the system calls, on all architectures."""
_ASK_VERSION, _NET_PORT = 1, 2
"""LANDLOCK_CREATE_RULESET_VERSION and LANDLOCK_RULE_NET_PORT. They are from linux/landlock.h, like the other numbers
here."""
_FILE_RIGHTS: Final = ((1, 13), (2, 14), (3, 15), (5, 16))
"""How many rights concern files, from each version of the interface on."""
_BIND_TCP, _NETWORK_SINCE = 1, 4
_ABSTRACT_SOCKETS, _SIGNALS, _SCOPES_SINCE = 1, 2, 6
_ANY_PORT = 0
"""The port number that lets the kernel choose the port."""

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long] * 5


def version() -> int:
    """Return the version of Landlock's interface. Raise OSError if the kernel has no Landlock, or has it disabled."""
    return _call(_CREATE_RULESET, 0, 0, _ASK_VERSION)


def restrict(*, abstract_sockets: bool) -> None:
    """Give up files, signals to others, and all TCP ports except those that the kernel chooses.

    With `abstract_sockets` this process may still connect to abstract sockets of other processes. This requires
    no_new_privs (`privileges.drop`), and applies to this thread and those that it starts. Raise OSError if the kernel
    refuses.
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
