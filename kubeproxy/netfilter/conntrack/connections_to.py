"""Counts the open connections to some addresses, and says whether there was any traffic a moment ago. It runs in a
thread.

UDP has no end of a connection, so a datagram of the last second or two counts as recent traffic. The end of a
connection does, too.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kubeproxy.model import Address
from kubeproxy.netfilter.conntrack.flow_table import flows_to
from kubeproxy.netfilter.conntrack.flow_totals import CLOSE, SYN_RECV, TIME_WAIT, is_open
from kubeproxy.netfilter.conntrack.sysctls import DIRECTORY, tcp_timeouts, udp_timeouts
from kubeproxy.netfilter.local_addresses import local_addresses

RECENT_S: Final = 2
"""How long ago traffic may have been to count as recent. The kernel tells only in whole seconds for how long it
remembers a flow."""

_STATES: Final = {SYN_RECV: "syn_recv", TIME_WAIT: "time_wait", CLOSE: "close"}
"""The TCP states before and after a connection is open, each with the name of its timeout."""


class Seen(NamedTuple):
    """What a reading has found about an address."""

    open: int
    """The number of TCP connections from others to the address that have begun and not ended."""
    recent: bool
    """Whether a connection has ended, or a datagram was exchanged, a moment ago. Traffic of this node itself does not
    count, because its kubelet probes a pod to its end."""


def connections_to(addresses: Collection[Address], *, directory: Path = DIRECTORY) -> Mapping[Address, Seen]:
    """Read the flows, and return what was found about each of these addresses. Raise KernelError when the kernel
    refuses."""
    tcp, udp = tcp_timeouts(directory=directory), udp_timeouts(directory=directory)
    fresh: dict[int | None, Sequence[int]] = {None: udp, **{state: (tcp[name],) for state, name in _STATES.items()}}
    packed = {each: ipaddress.ip_address(each).packed for each in addresses}
    own = {ipaddress.ip_address(it.address).packed for it in local_addresses()}
    opened, recent = Counter[bytes](), set[bytes]()
    for flow in flows_to(addresses):
        target = flow.route[3]
        if flow.source == target:
            continue  # A connection of the pod to itself ends with the pod.
        if flow.tcp_state is not None and is_open(flow):
            opened[target] += 1
        elif flow.source not in own and _is_recent(
            flow.remaining_s, udp if flow.tcp_state is None else fresh.get(flow.tcp_state, ())
        ):
            recent.add(target)
    return {each: Seen(opened[target], target in recent) for each, target in packed.items()}


def _is_recent(left_s: int, timeouts: Sequence[int]) -> bool:
    """Return whether the last packet of a flow came a moment ago, judged by how much of one of these timeouts is
    left."""
    return any(timeout - RECENT_S < left_s <= timeout for timeout in timeouts)
