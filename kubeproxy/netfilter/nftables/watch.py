"""Who else changes our nftables table: the kernel tells, to whoever listens, what each transaction did."""

from __future__ import annotations

import contextlib
import socket
import struct

from kubeproxy.netfilter.netlink.multicast import heard, subscribe
from kubeproxy.netfilter.nftables.table import TABLE

_NETLINK_NETFILTER = 12
"""linux/netlink.h; Python has no name for it."""
_GROUP_NFTABLES = 7  # NFNLGRP_NFTABLES, linux/netfilter/nfnetlink.h
_NEWGEN = 10 << 8 | 15  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN: the last word of each transaction
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_ROOM_BYTES = 16 << 20
"""For the notifications of our own largest transactions, about 400 bytes of the kernel's memory an element; taken only
while they are waiting."""

_MANY = 1 << 20
"""In place of the number of transactions when the kernel had more to tell than there was room for."""

_NAME = TABLE.split()[1].encode() + b"\0"
_ATTRIBUTE = struct.pack("=HH", 4 + len(_NAME), 1) + _NAME
"""How a notification names the table that it is about: every kind of object has that as its attribute 1."""


class TableWatch:
    """A subscription to the transactions of this network namespace. Not for two threads at once."""

    def __init__(self) -> None:
        """OSError when the kernel has no such notifications, or not for us (CAP_NET_ADMIN)."""
        self._socket = subscribe(_NETLINK_NETFILTER, _GROUP_NFTABLES)
        self._touched = False
        self._own_under_way = False
        self._unaccounted = 0
        # In a user namespace the buffer stays as it is.
        with contextlib.suppress(PermissionError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)

    def fileno(self) -> int:
        """Readable when there is something to `look` at."""
        return self._socket.fileno()

    def look(self) -> bool:
        """Whether somebody else has, or may have, changed our table since the last look. Not told while a transaction
        of our own is under way, but afterwards."""
        self._unaccounted += self._count()
        if self._own_under_way:
            return False
        found, self._unaccounted = self._unaccounted > 0, 0
        return found

    def begin(self) -> None:
        """A transaction of our own begins."""
        self._own_under_way = True

    def end(self, *, committed: bool) -> None:
        """It ended. The kernel tells of a transaction before it answers whoever asked for it, so ours is among those
        counted by now."""
        self._unaccounted = max(0, self._unaccounted + self._count() - committed)
        self._own_under_way = False

    def _count(self) -> int:
        """How many transactions have changed our table since the last time."""
        ended = 0
        for message in heard(self._socket):
            if message is None:
                ended += _MANY
            elif struct.unpack_from("=H", message, 4)[0] != _NEWGEN:
                self._touched |= _ATTRIBUTE in message
            elif self._touched:
                ended += 1
                self._touched = False
        return ended

    def close(self) -> None:
        """End the subscription."""
        self._socket.close()
