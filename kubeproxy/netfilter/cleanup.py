"""Removes what proxies left on a node: our rules of every adapter, the chains of kube-proxy's userspace mode, and the
interface and virtual servers of its ipvs mode."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from kubeproxy.model import Family
from kubeproxy.model.errors import KernelError, KubeproxyError
from kubeproxy.netfilter import ipvs, reentry
from kubeproxy.netfilter.conntrack.delete_flows import KernelConntrack
from kubeproxy.netfilter.interface import PAUSE_S
from kubeproxy.netfilter.iptables.adapter import Iptables
from kubeproxy.netfilter.iptables.chains import OWN
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.routing import rules
from kubeproxy.netfilter.subprocess import run

_TIMEOUT_S = 30.0
_XTABLES_NFT = {Family.IPV4: "iptables-nft", Family.IPV6: "ip6tables-nft"}


async def cleanup_all(*, keep: str | None = None, dry_run: bool = False, force: bool = False) -> list[str]:
    """Remove the rules of every adapter. Return what was removed, one line each.

    If there is nothing to remove, or if a program is missing (so that its rules cannot exist), that is no error. `keep`
    names the adapter in use: its rules stay, and so do the routing rules and the remains of the ipvs mode. Rules that
    another adapter left in an earlier run are removed, because they would drop or divert packets. If something cannot
    be removed, remove everything else, and then raise KernelError. With `dry_run` nothing is removed, and the lines are
    the same. Without `force`, remains of the ipvs mode that kube-proxy may be using stay, and are part of the error.
    """
    removed: list[str] = []
    failures: list[str] = []
    if keep != "nftables" and shutil.which("nft"):
        await _clean(Nftables(), "nftables: table inet kubeproxy", removed, failures, dry_run=dry_run)
    if keep != "iptables":
        chains = "iptables: chains KUBE-PORTALS-*, KUBE-PROXY-*, KUBE-NODEPORT-*"
        await _clean(Iptables(), chains, removed, failures, dry_run=dry_run)
    if keep is None:
        try:
            had = rules.present() if dry_run else rules.remove()
            removed += ["routing rules and table of transparent connections"] if had else []
        except KernelError as error:
            failures.append(str(error))
        try:
            for group in sorted(reentry.groups()):
                if not dry_run:
                    reentry.remove(group)
                removed.append(f"device {reentry.device_of(group)}")
        except OSError as error:
            failures.append(f"devices of the rescue: {error.strerror}")
        try:
            removed += ipvs.remove(dry_run=dry_run, force=force)
        except KubeproxyError as error:
            failures.append(str(error))
    for family, program in _XTABLES_NFT.items():
        try:
            removed += [f"{program}: {text}" for text in await _clean_iptables_nft(family, program, dry_run)]
        except KernelError as error:
            failures.append(str(error))
    if failures:
        done = "would be removed" if dry_run else "removed"
        raise KernelError("; ".join([*failures, *(f"{done}: {text}" for text in removed)]))
    return removed


async def pause_stale_rules(*, for_s: float = PAUSE_S) -> list[str]:
    """Pause the stale rules of an earlier run (see `Netfilter.pause`), of any adapter. Return the names of the adapters
    that had redirects.

    Stale rules redirect to proxy ports that this process does not own. Call this at start, before the first listener
    opens, if no other instance serves with these rules. Raise KernelError if it fails; the rules then keep redirecting
    until the first `apply`. The unanswered flows of clients that wait at a proxy port are deleted, so that their next
    SYN meets new rules. This happens before the pause, because the pause removes the guard of these ports, and again
    after it, for clients that arrived in between.
    """
    waiting: list[str] = []
    failures: list[str] = []
    conntrack = KernelConntrack()
    await _forget_waiting(conntrack, failures)
    adapters: list[Nftables | Iptables] = [Nftables()] if shutil.which("nft") else []
    for adapter in (*adapters, Iptables()):
        try:
            waiting += [adapter.name] if await adapter.pause(for_s) else []
        except KernelError as error:
            failures.append(f"{adapter.name}: {error}")
        finally:
            await adapter.close()
    if waiting:
        await _forget_waiting(conntrack, failures)
    if failures:
        raise KernelError("; ".join(failures))
    return waiting


async def _forget_waiting(conntrack: KernelConntrack, failures: list[str]) -> None:
    try:
        await conntrack.forget_waiting()
    except KernelError as error:
        failures.append(str(error))


async def _clean(
    netfilter: Nftables | Iptables, what: str, removed: list[str], failures: list[str], *, dry_run: bool
) -> None:
    try:
        if await (netfilter.has_rules() if dry_run else netfilter.cleanup()):
            removed.append(what)
    except KernelError as error:
        failures.append(f"{netfilter.name}: {error}")
    finally:
        await netfilter.close()


async def _clean_iptables_nft(family: Family, program: str, dry_run: bool) -> list[str]:
    """Remove kube-proxy's chains if the host's ``iptables`` keeps its rules in nftables. Return what was removed."""
    if shutil.which(f"{program}-save") is None or shutil.which(f"{program}-restore") is None:
        return []
    saved = (await run(f"{program}-save", timeout_s=_TIMEOUT_S)).decode(errors="replace")
    commands, removed = removal(saved)
    if commands and not dry_run:
        await run(f"{program}-restore", "--noflush", commands=commands, timeout_s=_TIMEOUT_S)
    return [f"{family} {text}" for text in removed]


def removal(saved: str) -> tuple[str, list[str]]:
    """Return the input for ``iptables-restore --noflush`` that removes kube-proxy's userspace chains and the jumps to
    them, and the names of those chains.

    `saved` is the output of ``iptables-save``."""
    commands: list[str] = []
    removed: list[str] = []
    table, chains, jumps = "", list[str](), list[str]()
    for line in saved.splitlines():
        match line.split():
            case [word, *_] if word.startswith("*"):
                table, chains, jumps = word[1:], [], []
            case [word, *_] if word.startswith(":") and word[1:] in OWN.get(table, ()):
                chains.append(word[1:])
            case ["-A", chain, *_, "-j" | "-g", target] if target in OWN.get(table, ()) and chain not in OWN[table]:
                jumps.append(f"-D{line[2:]}")
            case ["COMMIT"] if chains:
                commands += [f"*{table}", *jumps, *_each("-F", chains), *_each("-X", chains), "COMMIT"]
                removed += (f"{table} {chain}" for chain in chains)
            case _:
                pass
    return "".join(f"{line}\n" for line in commands), removed


def _each(option: str, chains: Iterable[str]) -> list[str]:
    return [f"{option} {chain}" for chain in chains]
