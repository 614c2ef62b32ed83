"""Looks up the endpoint to which session affinity binds a client of the kernel path, with one request to the kernel."""

from __future__ import annotations

import re
from typing import NamedTuple

from kubeproxy.model import Address, Target, family_of
from kubeproxy.netfilter.nftables.affinity import affinity_name, clients_map
from kubeproxy.netfilter.nftables.declarations import TABLE
from kubeproxy.netfilter.nftables.execute import NftCommands, NotFoundError
from kubeproxy.netfilter.ruleset import Spread


class Bond(NamedTuple):
    """A client's endpoint, and how long the binding lasts without a new connection."""

    endpoint: Target
    expires: str
    """The remaining time as nft prints it, such as ``9m59s996ms``."""


async def bond_of(client: Address, spread: Spread) -> Bond | None:
    """Return the endpoint to which the kernel binds a client, or None if the client has no binding. Raise KernelError
    if nft fails. The map may name an endpoint that has just left the spread; that counts as no binding."""
    if spread.affinity_timeout_s is None:
        return None
    commands = NftCommands(timeout_s=5.0)
    name = affinity_name(spread, family_of(client))
    for port in sorted({target.port for target in spread.endpoints}):
        try:
            # `get element` has no JSON output (nft 1.0.6).
            printed = await commands.run("get", "element", *TABLE.split(), clients_map(name, port), f"{{ {client} }}")
        except NotFoundError:
            continue
        match = _ELEMENT.search(printed.decode())
        if match is not None and (endpoint := Target(Address(match[2]), port)) in spread.targets:
            return Bond(endpoint, match[1])
    return None


_ELEMENT = re.compile(r"elements = \{ \S+ timeout \S+ expires (\S+) : (\S+) \}")
