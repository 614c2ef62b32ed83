"""`kubeproxy.netfilter.nftables.table_names`: the names of tables."""

from __future__ import annotations

import pytest

from kubeproxy.netfilter.nftables.table_names import tables
from tests.support.lab import Host

pytestmark = pytest.mark.netns


def test_tables_are_named_as_nft_names_them() -> None:
    with Host("tables") as host, host.entered():
        assert tables() == []
        names = ["inet kubeproxy", "ip nat", "ip6 nat", "arp filter", "bridge filter", "netdev ingress"]
        host.run(["nft", "; ".join(f"add table {name}" for name in names)])
        assert sorted(tables()) == sorted(names)
        printed = host.run(["nft", "list", "tables"]).stdout
        assert sorted(printed.splitlines()) == sorted(f"table {name}" for name in tables())
