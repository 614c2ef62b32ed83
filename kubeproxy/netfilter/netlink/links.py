"""Removes interfaces of this network namespace, through rtnetlink(7)."""

from __future__ import annotations

import errno
import socket
from typing import Final

from kubeproxy.netfilter.netlink.messages import LINK, encode, request

IFLA_IFNAME: Final = 3
"""linux/if_link.h"""
_RTM_DELLINK = 17


def remove_link(netlink: socket.socket, name: str) -> None:
    """Remove an interface, if it exists. Raise OSError if the kernel refuses."""
    header = LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    try:
        request(netlink, _RTM_DELLINK, header + encode([(IFLA_IFNAME, name.encode() + b"\0")]))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
