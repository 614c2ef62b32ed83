"""Implements ``kubeproxy cleanup``, which removes packet filter rules."""

from __future__ import annotations

import click

from kubeproxy.config.kube_proxy_settings import Logging
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.runtime.output import echo


@click.command(short_help="Remove kubeproxy's own packet filter rules, and those of kube-proxy's userspace mode.")
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
@click.option("--ipvs", is_flag=True, help="Remove only what kube-proxy's ipvs mode left; a kubeproxy may run.")
@click.option(
    "--force", is_flag=True, help="Remove the rules though a kubeproxy runs, which restores them, or a kube-proxy may."
)
def cleanup(dry_run: bool, ipvs: bool, force: bool) -> int:
    """Remove the packet filter rules of kubeproxy and of kube-proxy's userspace mode from this host.

    It removes rules of nftables and iptables for IPv4 and IPv6, kubeproxy's routing rules, the interface kube-ipvs0,
    the virtual servers of kube-proxy's ipvs mode, and the saved state of the sources in the default directory. It
    prints what it has removed. It is no error if there is nothing to remove. Rules of other programs, and of
    kube-proxy's other modes, are not removed; kube-proxy's own --cleanup removes the latter. While a kubeproxy runs,
    nothing is removed, because clients would lose their Services until the daemon has restored its rules; with --ipvs,
    what the ipvs mode has left is removed even then. It is not removed while a kube-proxy runs, or if the host's
    processes cannot be seen, unless --force is given; the rest is removed nevertheless.

    Exit status: 0 done; 1 a kubeproxy runs, a kube-proxy runs or may run, or the kernel refused.
    """
    if ipvs:
        from kubeproxy.netfilter.ipvs import remove

        return _print(remove(dry_run=dry_run, force=force), dry_run=dry_run)
    return clean_up(Logging(), dry_run=dry_run, force=force)


def clean_up(logs: Logging, *, dry_run: bool = False, force: bool = False) -> int:
    """Remove all rules, and print what was removed, or with `dry_run` what would be removed. Return the exit status."""
    import asyncio

    from kubeproxy.daemon.saved_state import StateFile
    from kubeproxy.daemon.state_keeper import default_directory
    from kubeproxy.daemon.takeover.instances import running
    from kubeproxy.netfilter.cleanup import cleanup_all
    from kubeproxy.observability.logs import setup

    setup.configure(verbosity=logs.verbosity, fmt=logs.format)
    if not (dry_run or force) and (instances := running()):
        raise KubeproxyError(
            f"a kubeproxy runs on this host ({', '.join(map(str, instances))}) and would restore its rules; nothing was"
            " removed. Stop it first (systemctl stop kubeproxy), or use --force"
        )
    state = StateFile(default_directory(), "")
    # The state is removed first, because removing rules may raise an error.
    gone = state.is_of_here() if dry_run else state.remove()
    found = asyncio.run(cleanup_all(dry_run=dry_run, force=force))
    if gone:
        found.append(f"{state}, the last state of the sources")
    return _print(found, dry_run=dry_run)


def _print(found: list[str], *, dry_run: bool) -> int:
    for line in found or ["nothing to remove"]:
        echo(f"would remove {line}" if dry_run and found else line)
    return 0
