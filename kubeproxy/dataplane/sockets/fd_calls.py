"""Socket calls on plain file descriptors, which Python offers only on socket objects.

To make a socket object for an accepted descriptor takes look-ups of enums and a system call, and to close it three
Python calls. For a connection that lives for a millisecond, this is a tenth of all work. So connections are pairs of
descriptors. `os.read` and `os.write`, the fastest functions for this, move the bytes, and this module does the rest.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_shutdown = _libc.shutdown
_shutdown.argtypes = (ctypes.c_int, ctypes.c_int)
_send = _libc.send
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = ctypes.c_ssize_t
_setsockopt = _libc.setsockopt
_setsockopt.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
BACKLOG = 4096
"""The length of the listen queue. The kernel limits it to net.core.somaxconn, which has this default since Linux
5.4."""
LAST = socket.MSG_MORE | socket.MSG_NOSIGNAL
_INT = struct.Struct("i")
_LINGER_ZERO = struct.pack("ii", 1, 0)


def write_last(fd: int, data: bytes) -> int:
    """Write data before FIN, like `os.write`, so that the kernel sends both in one packet."""
    sent: int = _send(fd, data, len(data), LAST)
    if sent < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return sent


def finish_writing(fd: int) -> bool:
    """Send FIN. Return False if the connection is already dead."""
    done: int = _shutdown(fd, socket.SHUT_WR)
    return done == 0


def reset_on_close(fd: int) -> None:
    """Make closing the descriptor send RST, unless the connection is already dead."""
    _setsockopt(fd, socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO, len(_LINGER_ZERO))


def keep_alive(fd: int, seconds: int) -> None:
    """Turn on TCP keepalive. `seconds` is both the idle time and the interval."""
    for level, option, number in (
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ):
        _setsockopt(fd, level, option, _INT.pack(number), _INT.size)
