"""The selection of an adapter, and its reason."""

from __future__ import annotations

import pytest

from kubeproxy.netfilter.select import select
from tests.netfilter.stage import Adapter, KernelRefusal, dump
from tests.support.lab import Network

NO_NFT = ["env", "PATH=/nowhere"]
POWERLESS = ["setpriv", "--inh-caps=-all", "--bounding-set=-net_admin,-net_raw"]


def choose(adapter: Adapter, *order: str) -> list[str]:
    chosen = adapter.call({"do": "select", "order": order})
    assert isinstance(chosen, list)
    return chosen


@pytest.mark.netns
def test_nftables_comes_first_and_trying_leaves_nothing(network: Network, environment: dict[str, str]) -> None:
    adapter = Adapter(network.node, "nftables", env=environment)
    before = dump(network.node)
    assert choose(adapter, "nftables", "iptables") == ["nftables", "nftables, because the kernel accepts it"]
    assert choose(adapter, "nftables") == ["nftables", "nftables, as configured"]
    assert dump(network.node) == before
    network.node.run(["nft", "add table inet kubeproxy { chain input { }; }"])
    assert choose(adapter, "nftables", "iptables")[0] == "nftables", "what another version left is no obstacle"
    assert choose(adapter, "iptables") == ["iptables", "iptables, as configured"]
    assert choose(adapter, "iptables", "nftables") == ["iptables", "iptables, because the kernel accepts it"]


@pytest.mark.netns
def test_iptables_where_there_is_no_nft(network: Network, environment: dict[str, str]) -> None:
    adapter = Adapter(network.node, "nftables", env=environment, prefix=NO_NFT)
    name, why = choose(adapter, "nftables", "iptables")
    assert name == "iptables"
    assert why.startswith("iptables, because nftables does not work here (nftables: cannot run nft: No such file")
    with pytest.raises(KernelRefusal, match=r"\(tried: nftables\): nftables: cannot run nft"):
        choose(adapter, "nftables")


@pytest.mark.netns
def test_the_error_has_every_reason_when_none_works(network: Network, environment: dict[str, str]) -> None:
    adapter = Adapter(network.node, "nftables", env=environment, prefix=POWERLESS)
    with pytest.raises(KernelRefusal) as caught:
        choose(adapter, "nftables", "iptables")
    text = str(caught.value)
    assert text.startswith("no packet filter can be used (tried: nftables, iptables): nftables: ")
    assert "; iptables: IPv4 table " in text
    assert text.count("CAP_NET_ADMIN") == 2


async def test_none() -> None:
    netfilter, why = await select(())
    assert (netfilter.name, why.partition(",")[0]) == ("none", "none")
