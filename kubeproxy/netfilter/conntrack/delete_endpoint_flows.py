"""Deletes the flows to failed endpoints, so that the next packets of their clients are balanced again."""

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
"""The largest number of flows of one endpoint that are deleted at once. In a flood the other flows expire by themselves
within a second."""
ALL_FLOWS_MAX: Final = 4000
"""The largest number of flows of all endpoints that are deleted at once. Endpoints with few flows come first."""
WALKS_S, WALKS_MIN = 0.1, 4
"""How many walks through its table the kernel may make for one endpoint: as many as take this time, if each takes as
long as reading the flows took, but at least this number. Each kind of address of an endpoint takes one walk (and an
IPv4 destination is one kind)."""


class Deleted(NamedTuple):
    """A deleted flow, and the client's address as the endpoint saw it."""

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
    """Delete translated flows to endpoints, in a thread, and return the flows found. Raise KernelError if the kernel
    refuses. At most `FLOWS_MAX` flows of each endpoint are deleted. The kernel's flows are read once for all endpoints
    of a family.

    `is_ours` returns whether our rules translate a destination. Flows that other programs have translated are ignored.
    A TCP flow is deleted only if the endpoint has not answered it.

    On a busy host this thread may be stopped between reading a flow and deleting it, and the endpoint may answer in
    that time. Without its flow that connection would hang. So the kernel is asked to check again when it deletes. A
    flow that is answered in between is in the result although it stays; if its SYN is sent again, it counts as a
    retransmission. Kernels that cannot filter deletions delete such a flow, and so does every kernel if there are too
    many flows. But that can happen only while this thread is stopped.
    """
    try:
        return await asyncio.to_thread(_delete, endpoints, protocol, is_ours, timeout_s)
    except OSError as error:
        raise explained(f"cannot delete flows to {_named(endpoints)} by ctnetlink", error.errno, str(error)) from error
    except RuntimeError as error:  # No thread can be started.
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
    """Delete the flows to endpoints of one family, and return the flows found."""
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
    with Ctnetlink(timeout_s=timeout_s) as ctnetlink:  # A new socket, because the other one may still hold answers.
        by_name: list[TrackedFlow] = []
        for flows in found.values():
            if not (tcp and ctnetlink.delete_unanswered(flows, protocol, at_most=walks)):
                by_name += flows
        ctnetlink.delete(by_name)
    return found


def _trim(found: dict[Target, list[TrackedFlow]]) -> None:
    """Reduce the flows to `ALL_FLOWS_MAX`, by dropping some of the endpoints that have the most."""
    left = ALL_FLOWS_MAX
    by_number = sorted(found.values(), key=len)
    for done, flows in enumerate(by_number):
        del flows[left // (len(by_number) - done) :]
        left -= len(flows)
