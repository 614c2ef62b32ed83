"""Deletes the flows to failed endpoints, so that their clients' next packets are balanced anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from kubeproxy.model import Address, Destination, Family, Protocol, Target, family_of
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack import messages as wire
from kubeproxy.netfilter.conntrack.delete_flows import Ctnetlink, explained
from kubeproxy.netfilter.conntrack.stale_flows import TrackedFlow

FLOWS_MAX: Final = 1000
"""The largest number of flows of an endpoint that are deleted at once. In a flood the other flows expire by themselves,
within a second."""
ALL_FLOWS_MAX: Final = 4000
"""The largest number of flows of all endpoints together. Endpoints with few flows have all of theirs deleted."""
WALKS_S, WALKS_MIN = 0.1, 4
"""How long the kernel may walk through its table for one endpoint, if each walk takes as long as the reading of the
flows, and how many walks it may make in any case: one for each kind of address of the endpoint (an IPv4 destination is
one)."""


class Deleted(NamedTuple):
    """A deleted flow, and the client as the endpoint saw it."""

    flow: TrackedFlow
    peer: Address
    peer_port: int


async def delete_flows_to(
    endpoints: Collection[Target],
    protocol: Protocol,
    *,
    is_ours: Callable[[Destination], bool],
    timeout_s: float = 5.0,
) -> dict[Target, list[Deleted]]:
    """Delete translated flows to endpoints, in a thread, and return those that were there. Raise KernelError when the
    kernel refuses. At most `FLOWS_MAX` flows of each endpoint are deleted. The kernel's flows are read once for all
    endpoints of a family.

    `is_ours` returns whether our rules translate a destination. Flows that other programs have translated are left
    alone. A TCP flow is deleted only if the endpoint has not answered it.

    On a busy host the thread may be stopped between reading a flow and deleting it, and the answer may come in that
    time. Without its flow that connection would hang, so the kernel looks again when it deletes. A flow that is
    answered in between is among the results, and stays. A SYN that is sent again on such a flow is a retransmission.
    Kernels that cannot filter deletions delete such a flow, too, and so does every kernel if there are too many flows
    at once. The time in which that can happen is only the delay of the thread.
    """
    try:
        return await asyncio.to_thread(_delete, endpoints, protocol, is_ours, timeout_s)
    except OSError as error:
        raise explained(f"cannot delete flows to {_named(endpoints)} by ctnetlink", error.errno, str(error)) from error
    except RuntimeError as error:  # no thread can be started
        what = f"cannot delete flows to {_named(endpoints)}"
        raise KernelError(f"{what}: {error}; raise the limit on processes") from error


def _named(endpoints: Collection[Target]) -> str:
    first = str(next(iter(endpoints), ""))
    return first if len(endpoints) <= 1 else f"{first} and {len(endpoints) - 1} other endpoints"


def _delete(
    endpoints: Collection[Target], protocol: Protocol, is_ours: Callable[[Destination], bool], timeout_s: float
) -> dict[Target, list[Deleted]]:
    found: dict[Target, list[TrackedFlow]] = {}
    for family in Family:
        if of_family := frozenset(each for each in endpoints if family_of(each.address) is family):
            found |= _delete_of(family, of_family, protocol, is_ours, timeout_s)
    return {target: [Deleted(flow, *wire.peer(flow)) for flow in flows] for target, flows in found.items()}


def _delete_of(
    family: Family,
    endpoints: frozenset[Target],
    protocol: Protocol,
    is_ours: Callable[[Destination], bool],
    timeout_s: float,
) -> dict[Target, list[TrackedFlow]]:
    """Delete the flows to endpoints of one family, and return those that were there."""
    tcp = protocol is Protocol.TCP
    began = time.monotonic()
    found: dict[Target, list[TrackedFlow]] = {}
    full = 0
    with Ctnetlink(timeout_s=timeout_s) as ctnetlink:
        for flow in ctnetlink.dump(family, protocol, unanswered=tcp):
            target = Target(flow.target, flow.target_port)
            if (
                target in endpoints
                and len(flows := found.get(target, [])) < FLOWS_MAX
                and flow.is_translated
                and is_ours(Destination(flow.address, protocol, flow.port))
                and not (tcp and not wire.is_unanswered(flow))
            ):
                found[target] = flows
                flows.append(flow)
                full += len(flows) == FLOWS_MAX
                if full == len(endpoints):
                    break
    _trim(found)
    walks = max(WALKS_MIN, int(WALKS_S / (time.monotonic() - began)))
    with Ctnetlink(timeout_s=timeout_s) as ctnetlink:  # The rest of the answers may stay in the other socket.
        by_name: list[TrackedFlow] = []
        for flows in found.values():
            if not (tcp and ctnetlink.delete_unanswered(flows, protocol, at_most=walks)):
                by_name += flows
        ctnetlink.delete(by_name)
    return found


def _trim(found: dict[Target, list[TrackedFlow]]) -> None:
    """Leave no more than `ALL_FLOWS_MAX` flows, by taking them from the endpoints that have most."""
    left = ALL_FLOWS_MAX
    by_number = sorted(found.values(), key=len)
    for done, flows in enumerate(by_number):
        del flows[left // (len(by_number) - done) :]
        left -= len(flows)
