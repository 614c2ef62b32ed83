"""Reads how many new connections the kernel has led straight to endpoints, from the counters of our maps.

Each lookup of a destination in a map of spreads counts, and nat chains see first packets only. With session affinity
the map of known clients is looked up first, and this lookup counts every connection. The lookup in the spread then
counts the connections of new clients a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kubeproxy.model import Traffic
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.nftables.declarations import TABLE, place
from kubeproxy.netfilter.nftables.execute import NftCommands, NotFound
from kubeproxy.netfilter.nftables.listing import counts_in


async def new_connections(asked: Collection[Traffic]) -> Mapping[Traffic, int]:
    """Return the counters of this traffic, as far as there are any. Raise KernelError when nft fails.

    A counter begins anew when the number of endpoints changes, as its element is replaced. With 10,000 Services one
    reading takes nft a second of processor time."""
    commands = NftCommands(timeout_s=10.0)
    counts: dict[Traffic, int] = {}
    for kind in ("spreads", "affinities"):
        for name in sorted({place(destination, kind, origin) for destination, origin in asked}):
            try:
                printed = await commands.run("-j", "list", "map", *TABLE.split(), name)
                counts.update(counts_in(printed, name))
            except NotFound:
                continue
            except msgspec.MsgspecError as error:
                raise KernelError(
                    f"`nft -j list map {TABLE} {name}` printed what is not understood: {error}"
                ) from error
    return {traffic: count for traffic, count in counts.items() if traffic in asked}
