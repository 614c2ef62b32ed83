"""Implements ``kubeproxy endpoint``, which ejects, restores or dials an endpoint by hand."""

from __future__ import annotations

import os
from typing import Final

import click

from kubeproxy.model.errors import ConfigError
from kubeproxy.runtime.output import echo

_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
LONGEST_S: Final = 24 * 3600


@click.group(short_help="Take an endpoint out by hand, give it back, or try it.")
def endpoint() -> None:
    """Eject, restore or dial an endpoint of this node's Services by hand.

    An ejection concerns only this node, and lasts at most until the daemon's process ends. `kubeproxy status` shows it,
    and the log names the user. The commands need root (CAP_NET_ADMIN).
    """


@endpoint.command(short_help="Give an endpoint no new clients for a while.")
@click.argument("target", metavar="IP:PORT")
@click.option("--for", "time", metavar="TIME", default="10m", show_default=True, help="Like 30s, 10m, 2h; at most 24h.")
def eject(target: str, time: str) -> int:
    """Give an endpoint no new clients for a while, on both data paths. Its open connections continue.

    If the Service has no other endpoint, the endpoint still gets clients. The ejection applies to all ports of the
    EndpointSlice, and ends by itself after the given time.
    """
    _order("eject", target, for_s=_seconds(time))
    echo(f"{target} gets no new clients for {time}; `kubeproxy endpoint restore {target}` ends that")
    return 0


@endpoint.command(short_help="Give an endpoint clients again.")
@click.argument("target", metavar="IP:PORT")
def restore(target: str) -> int:
    """Give an endpoint clients again, whether it was ejected by hand or because it had failed."""
    _order("restore", target)
    echo(f"{target} gets clients again")
    return 0


@endpoint.command(short_help="Dial an endpoint from this node now.")
@click.argument("target", metavar="IP:PORT")
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(0.1, 60.0), default=3.0, show_default=True)
def probe(target: str, timeout: float) -> int:
    """Dial an endpoint from this node now, by a TCP connection that is closed at once. If the endpoint answers, and was
    ejected because it had failed, it gets clients again without waiting for its next probe.

    Exit status: 0 it answers; 2 it does not; 1 the daemon does not answer.
    """
    from kubeproxy.cli.connectivity_test import ANSWERED, connect
    from kubeproxy.model.errors import KubeproxyError

    _require_target(target)
    seen, seconds = connect(target, timeout)
    echo(f"{target}: {seen} after {seconds * 1000:.1f} ms")
    if seen != ANSWERED:
        return 2
    try:
        _order("probed", target)
    except KubeproxyError as error:
        echo(str(error), err=True)
        return 1
    return 0


def _order(action: str, target: str, *, for_s: float = 0.0) -> None:
    _require_target(target)
    give_order(action, target, for_s=for_s)


def give_order(action: str, about: str = "", *, for_s: float = 0.0, waits_s: float = 0.0) -> None:
    """Send an order about `about` to the daemon, and wait for its answer, which may take `waits_s` seconds. Raise
    KubeproxyError if the daemon refuses or does not answer."""
    import asyncio

    from kubeproxy.daemon.takeover.order import ANSWER_S, give
    from kubeproxy.daemon.takeover.protocol import Action, Order
    from kubeproxy.dataplane.workers.takeover_messages import PROTOCOL

    caller = f"{os.environ.get('SUDO_USER') or os.environ.get('USER') or f'user {os.getuid()}'} (pid {os.getpid()})"
    asyncio.run(give(Order(PROTOCOL, Action(action), about, for_s, caller), within_s=waits_s + ANSWER_S))


def _require_target(text: str) -> None:
    from kubeproxy.model import parse_address

    host, _, port = text.rpartition(":")
    try:
        parse_address(host.removeprefix("[").removesuffix("]"))
        good = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"found {text!r}; allowed: IP:PORT, such as 10.0.0.1:8080 or [fd00::1]:8080")


def _seconds(text: str) -> float:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdecimal() and 0 < len(number) < 6):
        raise ConfigError(f"--for: found {text!r}; allowed: a time like 30s, 10m, 2h")
    seconds = int(number) * _UNITS[unit]
    if not 0 < seconds <= LONGEST_S:
        raise ConfigError(f"--for: found {text!r}; allowed: 1s to 24h")
    return seconds
