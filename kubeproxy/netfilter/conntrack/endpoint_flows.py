"""Deletes the flows to a failed endpoint, so that their clients' next packets are balanced anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from kubeproxy.model import Address, Destination, Protocol, Target, family_of
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack import messages as wire
from kubeproxy.netfilter.conntrack.delete_flows import Ctnetlink, explained
from kubeproxy.netfilter.conntrack.stale_flows import Flow

FLOWS_MAX: Final = 1000
"""The most flows deleted at once: under a flood the others expire by themselves, within a second."""
WALKS_S, WALKS_MIN = 0.1, 4
"""How long walks through the kernel's table may take, if each is as long as that which read the flows; and as many as
an endpoint has kinds of addresses (an IPv4 destination is one) in any case."""


class Deleted(NamedTuple):
    """A deleted flow, and the client as the endpoint saw it."""

    flow: Flow
    peer: Address
    peer_port: int


async def delete_flows_to(
    endpoint: Target, protocol: Protocol, *, is_ours: Callable[[Destination], bool], timeout_s: float = 5.0
) -> list[Deleted]:
    """Delete translated flows to an endpoint, in a thread, at most `FLOWS_MAX`; those that were there. KernelError.

    `is_ours`: whether our rules translate a destination. What other programs have translated is left alone.

    Of TCP only those that the endpoint has not answered: its running connections are left alone. On a busy host the
    thread may stand still between reading a flow and deleting it, and the answer come meanwhile; without its flow that
    connection would hang. So the kernel looks again when it deletes. A flow that is answered in between is among the
    results, and stays: a SYN that is sent again on it is a retransmission. Kernels without filters of deletions, and
    with too many flows at once, delete such a flow, too; nothing but the delay of the thread is between.
    """
    try:
        return await asyncio.to_thread(_delete, endpoint, protocol, is_ours, timeout_s)
    except OSError as error:
        raise explained(f"cannot delete flows to {endpoint} by ctnetlink", error.errno, str(error)) from error
    except RuntimeError as error:  # no thread can be started
        raise KernelError(f"cannot delete flows to {endpoint}: {error}; raise the limit on processes") from error


def _delete(
    endpoint: Target, protocol: Protocol, is_ours: Callable[[Destination], bool], timeout_s: float
) -> list[Deleted]:
    tcp = protocol is Protocol.TCP
    began = time.monotonic()
    with Ctnetlink(timeout_s=timeout_s) as ctnetlink:
        flows = (
            flow
            for flow in ctnetlink.dump(family_of(endpoint.address), protocol, unanswered=tcp)
            if (flow.target, flow.target_port) == endpoint
            and flow.is_translated
            and is_ours(Destination(flow.address, protocol, flow.port))
            and not (tcp and not wire.is_unanswered(flow))
        )
        found = list(islice(flows, FLOWS_MAX))
    took_s = time.monotonic() - began
    walks = max(WALKS_MIN, int(WALKS_S / took_s))
    with Ctnetlink(timeout_s=timeout_s) as ctnetlink:  # the rest of the answers stays in the other socket
        if not (tcp and ctnetlink.delete_unanswered(found, protocol, at_most=walks)):
            ctnetlink.delete(found)
    return [Deleted(flow, *wire.peer(flow)) for flow in found]
