"""Which adapter to use on this host, and why."""

from __future__ import annotations

from kubeproxy.errors import KernelError
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.nftables import Nftables
from kubeproxy.netfilter.none import NoNetfilter


async def select(preference: str) -> tuple[Netfilter, str]:
    """The adapter for ``auto``, ``nftables``, ``iptables`` or ``none``, and a sentence that says which and why.

    An adapter is taken only when the kernel accepted its rules in a trial that changes nothing. KernelError with
    everything that was seen when that is not so.
    """
    if preference == "none":
        return NoNetfilter(), "none, as configured: no rules are made, and proxy ports are open to everybody"
    chosen = preference != "auto"
    seen: list[str] = []
    if preference in ("auto", "nftables"):
        nftables = Nftables()
        try:
            await nftables.probe()
        except KernelError as error:
            seen.append(f"nftables: {error}")
        else:
            return nftables, "nftables, as configured" if chosen else "nftables: the kernel accepts our table"
    raise KernelError("no usable packet filter; " + "; ".join(seen))
