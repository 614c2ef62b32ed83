"""Implements ``kubeproxy retry``, which makes the daemon read its sources again at once."""

from __future__ import annotations

import click

from kubeproxy.runtime.output import echo


@click.command(short_help="Have a running daemon ask its sources again now.")
def retry() -> int:
    """Make the running daemon contact the API server and read its manifests at once, without waiting for its next
    attempt. This is useful after a role, a token or the network was repaired. Needs root (CAP_NET_ADMIN).

    Exit status: 0 it has begun; 1 no daemon runs here, or it refused.
    """
    from kubeproxy.cli.endpoint import give_order

    give_order("retry")
    echo("the sources are asked again; `kubeproxy status` shows how they are")
    return 0
