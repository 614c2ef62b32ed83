"""Watches our nftables table for transactions of other processes, by the kernel's notifications."""

from __future__ import annotations

import contextlib
import socket

from kubeproxy.netfilter.netlink.messages import NETLINK_NETFILTER, encode, kind_of
from kubeproxy.netfilter.netlink.multicast import received, subscribe
from kubeproxy.netfilter.nftables.declarations import TABLE
from kubeproxy.netfilter.nftables.rescue import ALIVE

_GROUP_NFTABLES = 7  # NFNLGRP_NFTABLES, linux/netfilter/nfnetlink.h
_NEWGEN = 10 << 8 | 15  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN: the last message of each transaction
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_ROOM_BYTES = 16 << 20
"""The size of the receive buffer: room for the notifications of our own largest transactions, about 400 bytes of kernel
memory per element. It is used only while they wait to be read."""

_MANY = 1 << 20
"""A number that stands for unknown transactions, whose notifications were lost because the buffer was full."""

_TABLE_ATTRIBUTE = encode([(1, TABLE.split()[1].encode() + b"\0")])
"""The name of our table in a notification. It is attribute 1 of every kind of object."""
_ALIVE_ATTRIBUTE = encode([(2, ALIVE.encode() + b"\0")])
"""The name of the set in a notification of its elements: NFTA_SET_ELEM_LIST_SET."""


class TableWatch:
    """A subscription to the transactions of this network namespace. It is not for two threads at once."""

    def __init__(self) -> None:
        """Raise OSError when the kernel has no such notifications, or refuses them (CAP_NET_ADMIN)."""
        self._socket = subscribe(NETLINK_NETFILTER, _GROUP_NFTABLES)
        self._touched = False
        self._own_under_way = False
        self._unaccounted = 0
        # In a user namespace the buffer stays as it is.
        with contextlib.suppress(PermissionError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to `look` at."""
        return self._socket.fileno()

    def look(self) -> bool:
        """Return whether another process has, or may have, changed our table since the last look. Return False while a
        transaction of our own is in progress; its result comes afterwards."""
        self._unaccounted += self._count()
        if self._own_under_way:
            return False
        found, self._unaccounted = self._unaccounted > 0, 0
        return found

    def begin(self) -> None:
        """Note that a transaction of our own begins."""
        self._own_under_way = True

    def end(self, *, committed: bool) -> None:
        """Note that our transaction has ended.

        The kernel notifies of a transaction before it answers the process that sent it, so ours is among those counted
        by now."""
        self._unaccounted = max(0, self._unaccounted + self._count() - committed)
        self._own_under_way = False

    def _count(self) -> int:
        """Return the number of transactions that have changed our table since the last call."""
        ended = 0
        for message in received(self._socket):
            if message is None:
                ended += _MANY
            elif kind_of(message) != _NEWGEN:
                # Not parsed: there is a message for every element. `alive` is ours to renew, beside all transactions.
                self._touched |= _TABLE_ATTRIBUTE in message and _ALIVE_ATTRIBUTE not in message
            elif self._touched:
                ended += 1
                self._touched = False
        return ended

    def close(self) -> None:
        """End the subscription."""
        self._socket.close()
