"""Watches for removals of our routing rules, through the kernel's notifications.

Some network managers remove all rules of others when they start.
"""

from __future__ import annotations

import socket

from kubeproxy.netfilter.netlink.multicast import received, subscribe
from kubeproxy.netfilter.routing.rules import is_removal_of_ours

_GROUPS = (8, 19)  # linux/rtnetlink.h: RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE


class RuleWatch:
    """A subscription to the routing rules in this network namespace."""

    def __init__(self) -> None:
        """Subscribe. Raise OSError if the kernel has no such notifications."""
        self._socket = subscribe(socket.NETLINK_ROUTE, *_GROUPS)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when `look` has something to read."""
        return self._socket.fileno()

    def look(self) -> bool:
        """Return whether rules of ours have been removed, or may have been, since the last call."""
        found = False
        for message in received(self._socket):
            found |= message is None or is_removal_of_ours(message)
        return found

    def close(self) -> None:
        """End the subscription."""
        self._socket.close()
