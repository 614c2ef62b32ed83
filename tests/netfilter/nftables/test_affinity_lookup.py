"""The endpoint of a client with session affinity, asked of the kernel."""

from __future__ import annotations

import sys

import pytest

from kubeproxy.model import Address, Family, Target
from kubeproxy.netfilter.nftables.affinity import affinity_name, clients_map
from kubeproxy.netfilter.nftables.declarations import CLIENTS, TABLE
from kubeproxy.netfilter.ruleset import Spread
from tests.support.lab import Host

pytestmark = pytest.mark.netns

ASK = """
import asyncio, sys
from kubeproxy.model import Address, Target
from kubeproxy.netfilter.nftables.affinity_lookup import bond_of
from kubeproxy.netfilter.ruleset import Spread
client, endpoint = sys.argv[1:]
targets = tuple(Target(Address(endpoint), port) for port in (8080, 9090))
bond = asyncio.run(bond_of(Address(client), Spread("shop/web:http", targets, targets, 600)))
print(bond.endpoint, bond.expires) if bond else print("none")
"""


@pytest.mark.parametrize(
    ("family", "client", "endpoint"), [(Family.IPV4, "10.2.0.2", "10.3.0.2"), (Family.IPV6, "fd00::2", "fd00:3::2")]
)
def test_the_endpoint_of_a_client(family: Family, client: str, endpoint: str) -> None:
    targets = (Target(Address(endpoint), 9090),)
    name = clients_map(affinity_name(Spread("shop/web:http", targets, targets, 600), family), 9090)
    with Host("asked") as host:

        def ask(asked: str, of: str) -> str:
            return host.run([sys.executable, "-c", ASK, asked, of]).stdout.split(" ")[0].strip()

        def nft(commands: str) -> None:
            host.run(["nft", "-f", "-"], input=commands)

        assert ask(client, endpoint) == "none"  # without a table
        nft(f"add table {TABLE}\nadd map {TABLE} {name} {{ {CLIENTS[family].declaration} }}")
        assert ask(client, endpoint) == "none"
        nft(f"add element {TABLE} {name} {{ {client} timeout 600s : {endpoint} }}")
        assert ask(client, endpoint) == str(targets[0])
        other = "10.2.0.3" if family is Family.IPV4 else "fd00::3"
        assert ask(other, endpoint) == "none"
        # An endpoint that has left the spread no longer counts.
        assert ask(client, "10.3.0.9" if family is Family.IPV4 else "fd00:3::9") == "none"
