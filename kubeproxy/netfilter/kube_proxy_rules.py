"""Finds rules of kube-proxy's kernel modes on this node. A daemon reports them and never removes any.

They exist if kube-proxy was not cleaned up, or still runs. They may drop clients before our rules match them, or lead
clients to endpoints that are gone. The names are kube-proxy's (pkg/proxy/{nftables,iptables,ipvs}/proxier.go). Neither
its userspace mode nor the kubelet makes any of them. Rules that the userspace mode left are taken over
(`kubeproxy.netfilter.iptables.chains`).
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
    """Return the foreign rules in force, each by the name with which an operator finds it.

    A missing program or permission counts as no rules. The kernel creates and loads nothing for it.
    """
    tables = _tables()
    found = [f"nftables: table {table}" for table in map("{} kube-proxy".format, _FAMILIES) if table in tables]
    for family in _FAMILIES:
        # The kernel makes a missing legacy table when a program asks for it.
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
    """Return the warning for an operator about what `look` found, or None if it found nothing."""
    if not found:
        return None
    return (
        f"kube-proxy's own rules are still in force on this node ({'; '.join(found)}) and may drop clients, or lead "
        "them past us to endpoints that are gone; see that kube-proxy does not run here, then run "
        "`kube-proxy --cleanup` (for ipvs also `kubeproxy cleanup --ipvs`), or reboot (docs/migration.md)"
    )


def catches(saved: str) -> bool:
    """Return whether table nat, as ``iptables-save`` prints it, leads packets to kube-proxy's rules.

    An empty chain, or one without a jump to it, has no effect."""
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
