"""Watches our nftables table for transactions of other processes, through the kernel's notifications."""

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
"""The size of the receive buffer in bytes: room for the notifications of our own largest transactions, at about 400
bytes of kernel memory per element. Memory is used only while they wait to be read."""

_MANY = 1 << 20
"""The number that is used for lost notifications, when the buffer was full and the true number of transactions is
unknown."""

_TABLE_ATTRIBUTE = encode([(1, TABLE.split()[1].encode() + b"\0")])
"""The attribute with our table's name in a notification. It has type 1 for every kind of object."""
_ALIVE_ATTRIBUTE = encode([(2, ALIVE.encode() + b"\0")])
"""The attribute with the set's name in a notification about elements (NFTA_SET_ELEM_LIST_SET)."""


class TableWatch:
    """A subscription to the nftables transactions in this network namespace. Only one thread may use it at a time."""

    def __init__(self) -> None:
        """Subscribe. Raise OSError if the kernel has no such notifications, or refuses them (CAP_NET_ADMIN)."""
        self._socket = subscribe(NETLINK_NETFILTER, _GROUP_NFTABLES)
        self._touched = False
        self._own_under_way = False
        self._unaccounted = 0
        # In a user namespace the buffer keeps its default size.
        with contextlib.suppress(PermissionError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when `look` has something to read."""
        return self._socket.fileno()

    def look(self) -> bool:
        """Return whether another process has, or may have, changed our table since the last call. During a transaction
        of our own, return False; the next call after it includes that time."""
        self._unaccounted += self._count()
        if self._own_under_way:
            return False
        found, self._unaccounted = self._unaccounted > 0, 0
        return found

    def begin(self) -> None:
        """Record that a transaction of our own begins."""
        self._own_under_way = True

    def end(self, *, committed: bool) -> None:
        """Record that our transaction has ended.

        The kernel notifies of a transaction before it answers the sender, so by now ours is among those counted."""
        self._unaccounted = max(0, self._unaccounted + self._count() - committed)
        self._own_under_way = False

    def _count(self) -> int:
        """Return the number of transactions that have changed our table since the last call."""
        ended = 0
        for message in received(self._socket):
            if message is None:
                ended += _MANY
            elif kind_of(message) != _NEWGEN:
                # The message is not parsed, because there is one for every element. Renewals of ``alive`` are ours and
                # happen outside of transactions recorded by `begin`.
                self._touched |= _TABLE_ATTRIBUTE in message and _ALIVE_ATTRIBUTE not in message
            elif self._touched:
                ended += 1
                self._touched = False
        return ended

    def close(self) -> None:
        """End the subscription."""
        self._socket.close()
