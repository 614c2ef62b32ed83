"""``kubeproxy retry``: have the daemon ask its sources again now."""

from __future__ import annotations

import click

from kubeproxy.runtime.output import echo


@click.command(short_help="Have a running daemon ask its sources again now.")
def retry() -> int:
    """Have the running daemon ask the API server, and read its manifests, at once, without waiting for the end of the
    time between two tries: after a repaired role, token or network. Needs root (CAP_NET_ADMIN).

    Exit status: 0 it has begun; 1 no daemon runs here, or it refused.
    """
    from kubeproxy.cli.endpoint import give_order

    give_order("retry")
    echo("the sources are asked again; `kubeproxy status` shows how they are")
    return 0
