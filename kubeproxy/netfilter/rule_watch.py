"""Who else removes our routing rules: the kernel tells of each that goes. Network managers that start anew are known to
remove all that they have not made."""

from __future__ import annotations

import errno
import socket

from kubeproxy.netfilter.routing import is_removal_of_ours

_GROUPS = (8, 19)  # linux/rtnetlink.h: RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE
_MESSAGE_BYTES = 1 << 16


class RuleWatch:
    """A subscription to the routing rules of this network namespace."""

    def __init__(self) -> None:
        """OSError when the kernel has no such notifications."""
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        try:
            self._socket.bind((0, sum(1 << (group - 1) for group in _GROUPS)))
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Readable when there is something to `look` at."""
        return self._socket.fileno()

    def look(self) -> bool:
        """Whether rules of ours have been removed, by whomever, since the last look; or may have been."""
        found = False
        while True:
            try:
                message = self._socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                found = True  # more happened than there was room for
                continue
            found |= is_removal_of_ours(message)

    def close(self) -> None:
        """End the subscription."""
        self._socket.close()
