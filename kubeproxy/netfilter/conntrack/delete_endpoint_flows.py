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
from kubeproxy.netfilter.conntrack.stale_flows import Flow

FLOWS_MAX: Final = 1000
"""The most flows of an endpoint deleted at once: under a flood the others expire by themselves, within a second."""
ALL_FLOWS_MAX: Final = 4000
"""The most flows of all endpoints together: those with few flows keep theirs."""
WALKS_S, WALKS_MIN = 0.1, 4
"""How long walks through the kernel's table for an endpoint may take, if each is as long as that which read the flows;
and as many as an endpoint has kinds of addresses (an IPv4 destination is one) in any case."""


class Deleted(NamedTuple):
    """A deleted flow, and the client as the endpoint saw it."""

    flow: Flow
    peer: Address
    peer_port: int


async def delete_flows_to(
    endpoints: Collection[Target],
    protocol: Protocol,
    *,
    is_ours: Callable[[Destination], bool],
    timeout_s: float = 5.0,
) -> dict[Target, list[Deleted]]:
    """Delete translated flows to endpoints, in a thread; those that were there. KernelError.

    At most `FLOWS_MAX` of each are. The kernel's flows are read once for all endpoints of a family. `is_ours`: whether
    our rules translate a destination. What other programs have translated is left alone.

    Of TCP only those that the endpoint has not answered: its running connections are left alone. On a busy host the
    thread may stand still between reading a flow and deleting it, and the answer come meanwhile; without its flow that
    connection would hang. So the kernel looks again when it deletes. A flow that is answered in between is among the
    results, and stays: a SYN that is sent again on it is a retransmission. Kernels without filters of deletions, and
    with too many flows at once, delete such a flow, too; nothing but the delay of the thread is between.
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
    found: dict[Target, list[Flow]] = {}
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
) -> dict[Target, list[Flow]]:
    """Return the same for endpoints of one family."""
    tcp = protocol is Protocol.TCP
    began = time.monotonic()
    found: dict[Target, list[Flow]] = {}
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
    with Ctnetlink(timeout_s=timeout_s) as ctnetlink:  # the rest of the answers may stay in the other socket
        by_name: list[Flow] = []
        for flows in found.values():
            if not (tcp and ctnetlink.delete_unanswered(flows, protocol, at_most=walks)):
                by_name += flows
        ctnetlink.delete(by_name)
    return found


def _trim(found: dict[Target, list[Flow]]) -> None:
    """Leave no more than `ALL_FLOWS_MAX` flows, by taking them from the endpoints that have most."""
    left = ALL_FLOWS_MAX
    by_number = sorted(found.values(), key=len)
    for done, flows in enumerate(by_number):
        del flows[left // (len(by_number) - done) :]
        left -= len(flows)
