"""Finds links on which hosts reach one another without this node: a bridge with pods, or a network with clients and
endpoints.

If a client and its endpoint (or the next hop to it) are on the same such link, the endpoint's answer goes directly to
the client. It does not pass through this node, which would have to translate it back. So such a client has to be
masqueraded. This is not necessary on bridges that pass their frames through netfilter (bridge-nf-call-iptables),
because netfilter then translates the answer.
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
"""The settings that apply to all bridges. A single bridge may have a setting of its own."""
_SEVERAL_HOSTS = {Family.IPV4: 29, Family.IPV6: 126}
"""The longest prefix of a link that may have more than two hosts."""


def bridged_families(*, directory: Path = DIRECTORY) -> frozenset[Family]:
    """Return the families for which all bridges of this network namespace pass their frames through netfilter."""
    return frozenset(family for family, name in SETTINGS.items() if is_on(directory / name))


def direct_links(addresses: Iterable[LocalAddress], bridged: frozenset[Family]) -> frozenset[DirectLink]:
    """Return the links on which hosts reach one another without this node, judged by the node's addresses."""
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
