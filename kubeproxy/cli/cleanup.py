"""``kubeproxy cleanup``."""

from __future__ import annotations

import click

from kubeproxy.config.schema import Logging


@click.command(short_help="Remove all packet filter rules, kube-proxy's too.")
def cleanup() -> int:
    """Remove our packet filter rules, and those of kube-proxy's userspace mode, from this host.

    Both nftables and iptables, IPv4 and IPv6, and our routing rules. Says what it removed; nothing to remove is no
    error. Stop the daemon first: one that runs puts its rules back. Rules of kube-proxy's other modes stay; its own
    --cleanup removes those.
    """
    return clean_up(Logging())


def clean_up(logs: Logging) -> int:
    """Remove them and say what was removed; the exit status."""
    import asyncio

    from kubeproxy.daemon.takeover.control_socket import PREFIX
    from kubeproxy.netfilter.cleanup import cleanup_all
    from kubeproxy.observability.logs import setup
    from kubeproxy.runtime.unix_names import listening

    setup.configure(verbosity=logs.verbosity, fmt=logs.format)
    removed = asyncio.run(cleanup_all())
    for line in removed or ["nothing to remove"]:
        click.echo(line)
    if listening(PREFIX):
        click.echo("a kubeproxy runs on this host, and puts its rules back: stop it first", err=True)
    return 0
