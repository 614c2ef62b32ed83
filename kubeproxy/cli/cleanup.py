"""``kubeproxy cleanup``: removes packet filter rules."""

from __future__ import annotations

import click

from kubeproxy.config.schema import Logging


@click.command(short_help="Remove all packet filter rules, kube-proxy's too.")
def cleanup() -> int:
    """Remove the packet filter rules of kubeproxy and of kube-proxy's userspace mode from this host.

    It removes rules of nftables and iptables, IPv4 and IPv6, and our routing rules, and prints what it removed. Nothing
    to remove is no error. Stop the daemon first: a running daemon restores its rules. Rules of kube-proxy's other modes
    stay; its own --cleanup removes those.
    """
    return clean_up(Logging())


def clean_up(logs: Logging) -> int:
    """Remove all rules and print what was removed; returns the exit status."""
    import asyncio

    from kubeproxy.daemon.takeover.control_socket import PREFIX
    from kubeproxy.netfilter.cleanup import cleanup_all
    from kubeproxy.observability.logs import setup
    from kubeproxy.runtime.abstract_sockets import listening

    setup.configure(verbosity=logs.verbosity, fmt=logs.format)
    removed = asyncio.run(cleanup_all())
    for line in removed or ["nothing to remove"]:
        click.echo(line)
    if listening(PREFIX):
        click.echo("a running kubeproxy on this host restores its rules: stop it first", err=True)
    return 0
