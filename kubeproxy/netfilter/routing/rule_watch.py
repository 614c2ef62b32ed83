"""Watches for removals of our routing rules, by the kernel's notifications.

When network managers start, they are known to remove all rules that they have not made.
"""

from __future__ import annotations

import socket

from kubeproxy.netfilter.netlink.multicast import received, subscribe
from kubeproxy.netfilter.routing.rules import is_removal_of_ours

_GROUPS = (8, 19)  # linux/rtnetlink.h: RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE


class RuleWatch:
    """A subscription to the routing rules of this network namespace."""

    def __init__(self) -> None:
        """Raise OSError when the kernel has no such notifications."""
        self._socket = subscribe(socket.NETLINK_ROUTE, *_GROUPS)

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to `look` at."""
        return self._socket.fileno()

    def look(self) -> bool:
        """Return whether rules of ours have been removed since the last look, or may have been."""
        found = False
        for message in received(self._socket):
            found |= message is None or is_removal_of_ours(message)
        return found

    def close(self) -> None:
        """End the subscription."""
        self._socket.close()
