"""Reads flows from the kernel's conntrack table: all translated ones, or those to some addresses. Call it in a
thread."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Collection, Iterator
from typing import Final

from kubeproxy.model import Address
from kubeproxy.netfilter.conntrack.delete_flows import FILTERED, explained
from kubeproxy.netfilter.conntrack.flow_records import (
    DST_NAT,
    NEW,
    FlowRecord,
    dump_all_request,
    dump_request,
    dump_to_request,
    end_of_dump,
    naming,
    records,
)
from kubeproxy.netfilter.netlink.messages import NETLINK_NETFILTER, open_netlink

TIMEOUT_S: Final = 10.0
"""How many seconds one read may take. To find the next translated flow, the kernel may have to walk through the whole
table."""
_READ_BYTES: Final = 1 << 15
"""The size of a read in bytes, as much as the kernel writes at once. Reads release the interpreter lock, so the event
loop can run."""


def translated_flows() -> Iterator[FlowRecord]:
    """Yield the TCP and UDP flows with a translated destination, of both families. Raise KernelError if the kernel
    refuses."""
    return _flows(dump_request(1), DST_NAT)


def flows_to(addresses: Collection[Address]) -> Iterator[FlowRecord]:
    """Yield the TCP and UDP flows whose replies come from these addresses, translated or not. Raise KernelError if the
    kernel refuses."""
    parsed = [ipaddress.ip_address(each) for each in addresses]
    for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
        wanted = {each.packed for each in parsed if each.version == version}
        # With a filter for an IPv6 address, Linux 6.18 omits just the flows of that address. So the filter is used for
        # IPv4 only.
        if version == 4 and len(wanted) <= FILTERED:
            requests = [dump_to_request(1, address) for address in wanted]
        else:
            requests = [dump_all_request(1, family)] if wanted else []
        for request in requests:
            yield from (flow for flow in _flows(request, 0, naming(wanted)) if flow.route[3] in wanted)


def _flows(request: bytes, status: int, among: re.Pattern[bytes] | None = None) -> Iterator[FlowRecord]:
    try:
        with open_netlink(NETLINK_NETFILTER) as netlink:
            netlink.settimeout(TIMEOUT_S)
            netlink.send(request)
            ended: int | None = None
            while ended is None:
                data = netlink.recv(_READ_BYTES)
                yield from records(data, NEW, status=status, among=among)
                ended = end_of_dump(data)
            if ended:
                raise OSError(ended, os.strerror(ended))
    except OSError as error:
        raise explained("cannot read flows by ctnetlink", error.errno, str(error)) from error
