"""Lists the names of the nftables tables in this network namespace through netlink.

`nft list tables` (1.0.6) makes the kernel list every element of every set first. With 10,000 Services on the kernel
path that takes 210 MB and seconds of CPU time, and starts again whenever another transaction interferes.
"""

from __future__ import annotations

import struct
from typing import Final

from kubeproxy.netfilter.netlink.messages import (
    NETLINK_NETFILTER,
    NLM_F_DUMP,
    answers,
    attributes,
    frame,
    open_netlink,
)

_GET: Final = 10 << 8 | 1  # NFT_MSG_GETTABLE of NFNL_SUBSYS_NFTABLES
_NAME: Final = 1  # NFTA_TABLE_NAME
_FAMILIES: Final = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}  # NFPROTO_*
_TIMEOUT_S: Final = 10.0


def tables() -> list[str]:
    """Return the family and name of each table in nft's form, such as ``inet kubeproxy``. Raise OSError if the kernel
    refuses."""
    with open_netlink(NETLINK_NETFILTER) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.send(frame(_GET, struct.pack(">BBH", 0, 0, 0), flags=NLM_F_DUMP, sequence=1))
        found = []
        for message in answers(sock, 1):
            names = [value.rstrip(b"\0").decode() for kind, value in attributes(message.body[4:]) if kind == _NAME]
            found += [f"{_FAMILIES.get(message.body[0], message.body[0])} {name}" for name in names]
        return found
