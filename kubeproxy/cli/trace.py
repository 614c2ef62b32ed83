"""``kubeproxy trace``: shows the path of a connection."""

from __future__ import annotations

import sys
from urllib.parse import urlencode

import click
import msgspec

from kubeproxy.cli.metrics_client import ADDRESS, CONFIG, daemon_at
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.observability.status.trace_report import Outcome, TraceReport, TraceRequest, lines

OTHERWISE = 2
"""The exit status for another outcome than that of --expect."""


@click.command(short_help="Show the path of a connection, and why.")
@click.argument("to", metavar="IP:PORT")
@click.option("--from", "source", metavar="IP", default="", help="The client's address.  [this node itself]")
@click.option(
    "--protocol",
    "-p",
    type=click.Choice(["tcp", "udp"], case_sensitive=False),
    default="tcp",
    show_default=True,
    help="The transport protocol.",
)
@ADDRESS
@CONFIG
@click.option(
    "--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Text, or JSON."
)
@click.option(
    "--expect",
    type=click.Choice([outcome.replace(" ", "-") for outcome in Outcome]),
    default=None,
    help=f"Exit status {OTHERWISE} if the outcome is another one.",
)
def trace(to: str, source: str, protocol: str, address: str, config: str, output: str, expect: str | None) -> int:
    """Ask a running daemon for the path of a connection to IP:PORT.

    Shows the matching rule, the Service, the proxy port, and the endpoints in the order of the dials. Nothing is sent
    or changed. A daemon must run, because only it knows the rules in effect.

    Exit status: 0 the daemon has answered, whatever the outcome; 1 it cannot be reached; 2 with --expect, another
    outcome; 64 the command line is wrong.
    """
    try:
        TraceRequest.of(to=to, source=source, protocol=protocol)
    except ValueError as error:
        raise ConfigError(f"trace: {error}") from None
    query = {"to": to, "from": source, "protocol": protocol}
    body = daemon_at(address, config).get(f"/trace?{urlencode(query)}")
    try:
        report = msgspec.json.decode(body, type=TraceReport)
    except msgspec.DecodeError as error:
        raise KubeproxyError(
            f"the answer is not of a kubeproxy of this version ({error}); use the command of the daemon's version"
        ) from error
    if output == "json":
        sys.stdout.buffer.write(body + b"\n")
    else:
        click.echo("\n".join(lines(report)))
    return OTHERWISE if expect is not None and report.outcome != expect.replace("-", " ") else 0
