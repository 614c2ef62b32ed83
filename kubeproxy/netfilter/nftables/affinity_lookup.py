"""Looks up the endpoint that session affinity has for a client of the kernel path, by one request to the kernel."""

from __future__ import annotations

import re
from typing import NamedTuple

from kubeproxy.model import Address, Target, family_of
from kubeproxy.netfilter.nftables.affinity import affinity_name, clients_map
from kubeproxy.netfilter.nftables.declarations import TABLE
from kubeproxy.netfilter.nftables.execute import NftCommands, NotFoundError
from kubeproxy.netfilter.ruleset import Spread


class Bond(NamedTuple):
    """The endpoint of a client, and how long the client keeps it without a new connection."""

    endpoint: Target
    expires: str
    """The remaining time as nft prints it: ``9m59s996ms``."""


async def bond_of(client: Address, spread: Spread) -> Bond | None:
    """Return the endpoint that the kernel keeps for a client, or None if there is none and the client gets any
    endpoint. Raise KernelError when nft fails. The map of a port may name an endpoint that has just left; that does not
    count."""
    if spread.affinity_timeout_s is None:
        return None
    commands = NftCommands(timeout_s=5.0)
    name = affinity_name(spread, family_of(client))
    for port in sorted({target.port for target in spread.endpoints}):
        try:
            # `get element` prints no JSON (nft 1.0.6).
            printed = await commands.run("get", "element", *TABLE.split(), clients_map(name, port), f"{{ {client} }}")
        except NotFoundError:
            continue
        match = _ELEMENT.search(printed.decode())
        if match is not None and (endpoint := Target(Address(match[2]), port)) in spread.targets:
            return Bond(endpoint, match[1])
    return None


_ELEMENT = re.compile(r"elements = \{ \S+ timeout \S+ expires (\S+) : (\S+) \}")
