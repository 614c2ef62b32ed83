"""Reads the size of a legacy table. Most changes alter the size, and reading it takes microseconds."""

from __future__ import annotations

import ctypes
import os
import socket

from kubeproxy.model import Family

_libc = ctypes.CDLL(None, use_errno=True)

_GET_INFO = 64  # IPT_SO_GET_INFO, IP6T_SO_GET_INFO: netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h
# struct ipt_getinfo and struct ip6t_getinfo: name, valid hooks, entry and underflow of each hook, number of entries,
# size in bytes
_NAME_BYTES, _INFO_BYTES = 32, 32 + 4 + 2 * 5 * 4 + 4 + 4
_KINDS = {
    Family.IPV4: (socket.AF_INET, socket.IPPROTO_IP),
    Family.IPV6: (socket.AF_INET6, socket.IPPROTO_IPV6),
}


def info_of(family: Family, table: str) -> bytes:
    """Return the kernel's bytes with the positions of the built-in chains, the number of rules and their total size.
    They are used only for comparison.

    Raise OSError without CAP_NET_RAW and CAP_NET_ADMIN. The kernel creates a table that does not exist.
    """
    inet, level = _KINDS[family]
    info = ctypes.create_string_buffer(table.encode(), _INFO_BYTES)
    length = ctypes.c_uint32(_INFO_BYTES)
    with socket.socket(inet, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        if _libc.getsockopt(raw.fileno(), level, _GET_INFO, info, ctypes.byref(length)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    return info.raw[_NAME_BYTES:]
