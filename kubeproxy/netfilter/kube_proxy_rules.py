"""Finds rules of kube-proxy's kernel modes on this node. The daemon reports these rules and never removes them.

Such rules exist if kube-proxy still runs, or was not cleaned up. They may drop clients before our rules see them, or
send clients to endpoints that no longer exist. The names are kube-proxy's
(pkg/proxy/{nftables,iptables,ipvs}/proxier.go). They are not used by its userspace mode or by the kubelet. (Rules of
the userspace mode are replaced by ours, see `kubeproxy.netfilter.iptables.chains`.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter import ipvs
from kubeproxy.netfilter.nftables import table_names as nftables_tables
from kubeproxy.netfilter.subprocess import run

_NET = Path("/proc/net")
_TIMEOUT_S = 30.0
_FAMILIES = ("ip", "ip6")
_SERVED = re.compile(r"^-A KUBE-SERVICES ", re.MULTILINE)
_ENTERED = re.compile(r"^-A (?:PREROUTING|OUTPUT) (?:.* )?-[jg] KUBE-SERVICES$", re.MULTILINE)


async def look() -> list[str]:
    """Return the foreign rules in force, by the names that an operator can search for.

    Rules that cannot be read, for lack of a program or permission, are not reported. Nothing is created or loaded in
    the kernel.
    """
    tables = _tables()
    found = [f"nftables: table {table}" for table in map("{} kube-proxy".format, _FAMILIES) if table in tables]
    for family in _FAMILIES:
        # Read only tables that exist, because listing a missing legacy table would create it.
        is_there = {
            "legacy": "nat" in _text(_NET / f"{family}_tables_names").split(),
            "nft": f"{family} nat" in tables,
        }
        for program in (f"{family}tables-{kind}" for kind in is_there if is_there[kind]):
            if catches(await _printed(f"{program}-save", "-t", "nat")):
                found.append(f"{program}: table nat, chain KUBE-SERVICES")
    with suppress(KernelError):
        found += [str(left)] if (left := ipvs.look()) is not None else []
    return found


def complaint(found: Sequence[str]) -> str | None:
    """Return a warning about the result of `look`, or None if the result is empty."""
    if not found:
        return None
    return (
        f"kube-proxy's own rules are still in force on this node ({'; '.join(found)}) and may drop clients, or lead "
        "them past us to endpoints that are gone; make sure that kube-proxy does not run here, then run "
        "`kube-proxy --cleanup` (for ipvs also `kubeproxy cleanup --ipvs`), or reboot (docs/migration.md)"
    )


def catches(saved: str) -> bool:
    """Return whether a table nat, as printed by ``iptables-save``, sends packets to kube-proxy's rules.

    A chain that is empty, or to which nothing jumps, has no effect."""
    return bool(_ENTERED.search(saved) and _SERVED.search(saved))


def _tables() -> list[str]:
    try:
        return nftables_tables.tables()
    except OSError:
        return []


async def _printed(*command: str) -> str:
    try:
        return (await run(*command, timeout_s=_TIMEOUT_S)).decode(errors="replace")
    except KernelError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
