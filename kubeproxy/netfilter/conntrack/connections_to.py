"""Counts the open connections to some addresses, and detects recent traffic. Call it in a thread.

UDP connections have no end, so a datagram within the last second or two counts as recent traffic. A TCP connection that
has just ended counts as recent traffic, too.
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
"""For how many seconds traffic counts as recent. The kernel reports the remaining lifetime of a flow in whole seconds
only."""

_STATES: Final = {SYN_RECV: "syn_recv", TIME_WAIT: "time_wait", CLOSE: "close"}
"""The TCP states in which a connection is not open yet, or no longer, each with the name of its timeout."""


class Seen(NamedTuple):
    """The result of a reading for one address."""

    open: int
    """The number of open TCP connections to the address, without those from the address itself."""
    recent: bool
    """Whether a connection has just ended, or a datagram was just exchanged. Traffic of this node itself does not
    count, because the kubelet probes a pod until its end."""


def connections_to(addresses: Collection[Address], *, directory: Path = DIRECTORY) -> Mapping[Address, Seen]:
    """Read the flows, and return the result for each of these addresses. Raise KernelError if the kernel refuses."""
    tcp, udp = tcp_timeouts(directory=directory), udp_timeouts(directory=directory)
    fresh: dict[int | None, Sequence[int]] = {None: udp, **{state: (tcp[name],) for state, name in _STATES.items()}}
    packed = {each: ipaddress.ip_address(each).packed for each in addresses}
    own = {ipaddress.ip_address(it.address).packed for it in local_addresses()}
    opened, recent = Counter[bytes](), set[bytes]()
    for flow in flows_to(addresses):
        target = flow.route[3]
        if flow.source == target:
            continue  # A connection from the pod to itself ends with the pod.
        if flow.tcp_state is not None and is_open(flow):
            opened[target] += 1
        elif flow.source not in own and _is_recent(
            flow.remaining_s, udp if flow.tcp_state is None else fresh.get(flow.tcp_state, ())
        ):
            recent.add(target)
    return {each: Seen(opened[target], target in recent) for each, target in packed.items()}


def _is_recent(left_s: int, timeouts: Sequence[int]) -> bool:
    """Return whether the last packet of a flow was just now. `left_s` is the remaining lifetime of the flow, and the
    flow was given one of these timeouts with its last packet."""
    return any(timeout - RECENT_S < left_s <= timeout for timeout in timeouts)
