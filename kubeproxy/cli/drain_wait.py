"""Implements ``kubeproxy drain-wait``, which waits until no connection to a pod is left."""

from __future__ import annotations

import click

from kubeproxy.cli.endpoint import give_order
from kubeproxy.model.errors import ConfigError
from kubeproxy.runtime.output import echo


@click.command(short_help="Wait until no connection to a pod of this node is left.")
@click.argument("address", metavar="POD-IP")
@click.option("--timeout", metavar="TIME", default="25s", show_default=True, help="Like 25s, 5m; at most 1h.")
def drain_wait(address: str, timeout: str) -> int:
    """Wait until no connection to a pod of this node is left. Meanwhile this node sends the pod no new connections.

    It does by hand what the preStop hook /drain does for kubelet (docs/rollouts.md). Some seconds after the command has
    ended, the pod gets new connections again, unless it is terminating.

    Needs root (CAP_NET_ADMIN). Exit status: 0 no connection is left; 1 the time is over, or no daemon answers.
    """
    from kubeproxy.daemon.drain_hook import LONGEST_S, seconds_of
    from kubeproxy.model import parse_address

    try:
        parse_address(address)
    except ValueError:
        raise ConfigError(f"found {address!r}; allowed: a pod's address, such as 10.244.1.7 or fd00::7") from None
    timeout_s = seconds_of(timeout)
    if not timeout_s:
        raise ConfigError(f"--timeout: found {timeout!r}; allowed: a time like 25s, 5m, at most {LONGEST_S / 3600:g}h")
    give_order("drain", address, for_s=timeout_s, waits_s=timeout_s)
    echo(f"no connection to {address} is left")
    return 0
