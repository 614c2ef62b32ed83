"""Reads how many new connections the kernel has led straight to endpoints, from the counters of our maps.

Each lookup of a destination in a map of spreads counts, and nat chains see first packets only. With session affinity
the map of known clients is looked up first, and this lookup counts every connection. The lookup in the spread then
counts the connections of new clients a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kubeproxy.model import Traffic
from kubeproxy.netfilter.nftables.declarations import KINDS, place
from kubeproxy.netfilter.nftables.execute import NftCommands
from kubeproxy.netfilter.nftables.listing import traffic_of
from kubeproxy.netfilter.nftables.reading import TableReader


async def new_connections(asked: Collection[Traffic] | None = None) -> Mapping[Traffic, int]:
    """Return the counters of this traffic that exist, or all that exist. Raise KernelError when the kernel refuses.

    A counter begins again when the number of endpoints changes, because its element is replaced.
    """
    names = [name for name, kind in KINDS.items() if kind.counted]  # The maps of spreads come before those of affinity.
    if asked is not None:
        needed = {place(it.destination, kind, it.origin) for kind in ("spreads", "affinities") for it in asked}
        names = [name for name in names if name in needed]

    def read(reader: TableReader) -> dict[Traffic, int]:
        return {traffic_of(KINDS[name], key): count for name in names for key, count in reader.counts(name)}

    counts = await NftCommands().read(read)
    return {traffic: count for traffic, count in counts.items() if asked is None or traffic in asked}
