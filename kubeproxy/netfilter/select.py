"""Selects the adapter for this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.iptables.adapter import Iptables
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.noop import NoNetfilter
from kubeproxy.netfilter.with_routing import WithRouting

_ADAPTERS: Mapping[str, type[Nftables] | type[Iptables]] = {"nftables": Nftables, "iptables": Iptables}


async def select(order: Sequence[str]) -> tuple[Netfilter, str]:
    """Return the first of these adapters (``nftables``, ``iptables``) that works, and why it was selected.

    Without names, return the adapter that makes no rules. nftables works if the kernel accepts our complete table in a
    check that changes nothing, and iptables works if its lock and tables can be opened. Raise KernelError with all
    reasons if none works.
    """
    if not order:
        return NoNetfilter(), "none, as configured: no rules are made, and proxy ports are open to all clients"
    seen: list[str] = []
    for name in order:
        netfilter = WithRouting(_ADAPTERS[name]())
        try:
            await netfilter.probe()
        except KernelError as error:
            seen.append(f"{name}: {error}")
            await netfilter.close()
            continue
        if len(order) == 1:
            why = "as configured"
        elif seen:
            why = f"because {order[0]} does not work here ({'; '.join(seen)})"
        else:
            why = "because the kernel accepts it"
        return netfilter, f"{name}, {why}"
    raise KernelError(f"no packet filter can be used (tried: {', '.join(order)}): {'; '.join(seen)}")
