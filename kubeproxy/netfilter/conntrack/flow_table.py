"""Reads the translated flows of the kernel's conntrack table. CidrSet: for a thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from kubeproxy.netfilter.conntrack.delete_flows import explained
from kubeproxy.netfilter.conntrack.flow_records import NEW, FlowRecord, dump_request, end_of_dump, records
from kubeproxy.netfilter.netlink.messages import NETLINK_NETFILTER, open_netlink

TIMEOUT_S: Final = 10.0
"""How long one read may take: the kernel looks through the whole table for it if no flow is translated."""
_READ_BYTES: Final = 1 << 15
"""As much as the kernel writes at once. Between two reads the event loop runs."""


def translated_flows() -> Iterator[FlowRecord]:
    """The TCP and UDP flows with a translated destination, of both families. KernelError when the kernel refuses."""
    try:
        with open_netlink(NETLINK_NETFILTER) as netlink:
            netlink.settimeout(TIMEOUT_S)
            netlink.send(dump_request(1))
            ended: int | None = None
            while ended is None:
                data = netlink.recv(_READ_BYTES)
                yield from records(data, NEW)
                ended = end_of_dump(data)
            if ended:
                raise OSError(ended, os.strerror(ended))
    except OSError as error:
        raise explained("cannot read flows by ctnetlink", error.errno, str(error)) from error
