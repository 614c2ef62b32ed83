"""Which adapter to use on this host, and why."""

from __future__ import annotations

from collections.abc import Mapping

from kubeproxy.errors import KernelError
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.iptables import Iptables
from kubeproxy.netfilter.nftables import Nftables
from kubeproxy.netfilter.none import NoNetfilter

PREFERENCES = ("auto", "nftables", "iptables", "none")

_CANDIDATES: Mapping[str, tuple[type[Nftables] | type[Iptables], ...]] = {
    "auto": (Nftables, Iptables),
    "nftables": (Nftables,),
    "iptables": (Iptables,),
}


async def select(preference: str) -> tuple[Netfilter, str]:
    """The adapter for a preference (one of `PREFERENCES`), and a sentence that says which and why.

    An adapter is taken only when it works: nftables when the kernel accepts our whole table in a trial that changes
    nothing, iptables when its lock and tables can be opened. KernelError with everything that was seen when none
    does.
    """
    if preference == "none":
        return NoNetfilter(), "none, as configured: no rules are made, and proxy ports are open to everybody"
    seen: list[str] = []
    for candidate in _CANDIDATES[preference]:
        netfilter = candidate()
        try:
            await netfilter.probe()
        except KernelError as error:
            seen.append(f"{netfilter.name}: {error}")
            await netfilter.close()
            continue
        if preference != "auto":
            why = "as configured"
        elif seen:
            why = f"because nftables does not work here ({'; '.join(seen)})"
        else:
            why = "because the kernel accepts it"
        return netfilter, f"{netfilter.name}, {why}"
    raise KernelError(f"no packet filter can be used (--netfilter {preference}): {'; '.join(seen)}")
