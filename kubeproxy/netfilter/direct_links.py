"""Finds links on which hosts reach one another without this node: a bridge with pods, or a network with clients and
endpoints.

If the kernel leads a client on such a link to an endpoint there, or to one behind another host there, the answer goes
directly to the client, and not through this node, which has to translate it back. So such a client is masqueraded. Some
bridges show their frames to netfilter (bridge-nf-call-iptables); there netfilter translates the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from kubeproxy.model import Family
from kubeproxy.netfilter.ip_forwarding import DIRECTORY, is_on
from kubeproxy.netfilter.local_addresses import LocalAddress
from kubeproxy.netfilter.ruleset import DirectLink

SETTINGS: Mapping[Family, str] = {
    Family.IPV4: "bridge/bridge-nf-call-iptables",
    Family.IPV6: "bridge/bridge-nf-call-ip6tables",
}
"""The settings of all bridges. A bridge may also have a setting of its own."""
_SEVERAL_HOSTS = {Family.IPV4: 29, Family.IPV6: 126}
"""The longest prefix of a link with more hosts than this node and one other."""


def bridged_families(*, directory: Path = DIRECTORY) -> frozenset[Family]:
    """Return the families of frames that netfilter sees on all bridges of this network namespace."""
    return frozenset(family for family, name in SETTINGS.items() if is_on(directory / name))


def direct_links(addresses: Iterable[LocalAddress], bridged: frozenset[Family]) -> frozenset[DirectLink]:
    """Return the links on which hosts reach one another without this node, as the node's addresses show."""
    found = set()
    for it in addresses:
        if it.network is None or it.address.startswith("fe80:"):
            continue
        if int(it.network.rpartition("/")[2]) > _SEVERAL_HOSTS[it.family]:
            continue
        if it.bridge is not None and it.family in it.bridge | bridged:
            continue
        found.add(DirectLink(it.number, it.interface, it.network))
    return frozenset(found)
