"""Subscribes to the ends of translated flows: conntrack's events of the group NFNLGRP_CONNTRACK_DESTROY.

The kernel queues events until they are read or the socket's buffer is full, and never waits for the reader. A filter in
the kernel (BPF) drops events of flows without a translated destination, so a flood of those costs nothing here.

From Linux 5.19 on, a flow has events only if it began while some process had a subscription, unless
net.netfilter.nf_conntrack_events is 1.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from typing import Final

from kubeproxy.netfilter.conntrack.flow_records import DELETE, DST_NAT, NFGEN, STATUS, FlowRecord, records
from kubeproxy.netfilter.netlink.messages import HEADER, NETLINK_NETFILTER
from kubeproxy.netfilter.netlink.multicast import received, subscribe
from kubeproxy.runtime.classic_bpf import (
    JEQ,
    JSET,
    LD_ABS,
    LD_IMM,
    LD_IND,
    LDX_IMM,
    RET,
    SO_ATTACH_FILTER,
    TAX,
    assemble,
    attach,
)

BUFFER_BYTES: Final = 8 << 20
"""The requested size of the receive buffer in bytes: some 10,000 events. The kernel doubles this for its own
overhead."""
_GROUP: Final = 3
"""NFNLGRP_CONNTRACK_DESTROY (linux/netfilter/nfnetlink_compat.h)."""
_SO_RCVBUFFORCE: Final = 33
"""asm-generic/socket.h."""


class FlowEnds:
    """The subscription, for one thread at a time. The constructor raises OSError if the kernel refuses it."""

    def __init__(self) -> None:
        self.overflows = 0
        """How often the kernel's buffer has overflowed since the last call of `take_overflows`."""
        self._socket = subscribe(NETLINK_NETFILTER, _GROUP)
        try:
            with contextlib.suppress(PermissionError):  # Without CAP_NET_ADMIN the buffer is smaller.
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
            _attach(self._socket)
        except BaseException:
            self._socket.close()
            raise

    def take(self, *, cpu_s: float) -> Iterator[FlowRecord]:
        """Yield the ended flows that the kernel has reported.

        After `cpu_s` seconds of this thread's CPU time, the rest stays in the kernel until the next call.
        """
        ends_at = time.thread_time() + cpu_s
        for number, data in enumerate(received(self._socket)):
            if data is None:
                self.overflows += 1
                continue
            yield from records(data, DELETE)
            if number % 64 == 63 and time.thread_time() >= ends_at:
                return

    def take_overflows(self) -> int:
        """Return how often the kernel's buffer has overflowed since the last call. Each time an unknown number of
        events was lost."""
        found, self.overflows = self.overflows, 0
        return found

    def close(self) -> None:
        """End the subscription."""
        self._socket.close()


def _attach(sock: socket.socket) -> None:
    """Attach a filter that drops events of flows without a translated destination."""
    try:
        attach(sock, SO_ATTACH_FILTER, filter_program())
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOPROTOOPT):
            raise  # A kernel without this filter sends all events, and `records` skips the others.


def filter_program() -> bytes:
    """Return the filter. It passes events with the bit DST_NAT in their status, and events without a status."""
    next_attribute = 0xFFFFF000 + 12  # SKF_AD_OFF + SKF_AD_NLATTR: from A on, look for attribute X
    steps = [
        (LD_IMM, 0, 0, HEADER.size + NFGEN.size),
        (LDX_IMM, 0, 0, STATUS),
        (LD_ABS, 0, 0, next_attribute),
        (JEQ, 3, 0, 0),
        (TAX, 0, 0, 0),
        (LD_IND, 0, 0, 4),
        (JSET, 0, 1, DST_NAT),
        (RET, 0, 0, 0xFFFFFFFF),
        (RET, 0, 0, 0),
    ]
    return assemble(steps)
