"""Reads how many new connections the kernel has sent straight to endpoints, from the counters in our maps.

Each element of a map of spreads counts its lookups, and nat chains see only first packets, so it counts connections.
With session affinity, the affinity map is looked up first, and its counter has every connection. The counter of the
spread then counts connections of new clients a second time, and is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kubeproxy.model import Traffic
from kubeproxy.netfilter.nftables.declarations import KINDS, place
from kubeproxy.netfilter.nftables.execute import NftCommands
from kubeproxy.netfilter.nftables.listing import traffic_of
from kubeproxy.netfilter.nftables.reading import TableReader


async def new_connections(asked: Collection[Traffic] | None = None) -> Mapping[Traffic, int]:
    """Return the existing counters of the given traffic, or all if `asked` is None. Raise KernelError if the kernel
    refuses.

    A counter restarts when the number of endpoints changes, because its element is replaced.
    """
    # Affinity maps come last, so that their counters replace those of spreads.
    names = [name for name, kind in KINDS.items() if kind.counted]
    if asked is not None:
        needed = {place(it.destination, kind, it.origin) for kind in ("spreads", "affinities") for it in asked}
        names = [name for name in names if name in needed]

    def read(reader: TableReader) -> dict[Traffic, int]:
        return {traffic_of(KINDS[name], key): count for name in names for key, count in reader.counts(name)}

    counts = await NftCommands().read(read)
    return {traffic: count for traffic, count in counts.items() if asked is None or traffic in asked}
