"""Reads how many new connections the kernel has led straight to endpoints, from the counters of our maps.

Each lookup of a destination in a map of spreads counts, and nat chains see first packets only. With session affinity
the lookup for a known client comes first, and counts every connection; the other counts new clients again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from kubeproxy.model import Destination
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.nftables.declarations import TABLE, place
from kubeproxy.netfilter.nftables.execute import NftCommands, NotFound
from kubeproxy.netfilter.nftables.listing import counts_in


class Counted(NamedTuple):
    """A destination; `own`: of this node itself and of pods, under a Local traffic policy."""

    destination: Destination
    own: bool


async def new_connections(destinations: Collection[Counted]) -> Mapping[Counted, int]:
    """Return the counters of these destinations, as far as there are any. KernelError when nft fails.

    A counter begins anew when the number of endpoints changes, as its element is replaced. With 10,000 Services one
    reading takes nft a second of processor time."""
    commands = NftCommands(timeout_s=10.0)
    found: dict[Counted, int] = {}
    for kind in ("spreads", "affinities"):
        for name, own in sorted({(place(each.destination, kind, own=each.own), each.own) for each in destinations}):
            try:
                printed = await commands.run("-j", "list", "map", *TABLE.split(), name)
                found.update((Counted(destination, own), count) for destination, count in counts_in(printed, name))
            except NotFound:
                continue
            except msgspec.MsgspecError as error:
                raise KernelError(
                    f"`nft -j list map {TABLE} {name}` printed what is not understood: {error}"
                ) from error
    return {each: count for each, count in found.items() if each in destinations}
