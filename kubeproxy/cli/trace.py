"""``kubeproxy trace``."""

from __future__ import annotations

import sys
from urllib.parse import urlencode

import click
import msgspec

from kubeproxy.cli.admin_client import ADDRESS, CONFIG, daemon_at
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.observability.status.trace import Asked, TraceReport, lines


@click.command(short_help="Say what would become of a connection, and why.")
@click.argument("to", metavar="IP:PORT")
@click.option("--from", "source", metavar="IP", default="", help="The client's address.  [this node itself]")
@click.option(
    "--protocol",
    "-p",
    type=click.Choice(["tcp", "udp"], case_sensitive=False),
    default="tcp",
    show_default=True,
    help="The transport.",
)
@ADDRESS
@CONFIG
@click.option(
    "--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Text, or JSON."
)
def trace(to: str, source: str, protocol: str, address: str, config: str, output: str) -> int:
    """Ask a running daemon what would become of a connection to IP:PORT, and why.

    Tells which rule takes it, for which Service, to which proxy port, and which endpoints would be tried in which
    order. Nothing is sent and nothing changed. A daemon has to run: the rules in force are what it knows.
    """
    try:
        Asked.of(to=to, source=source, protocol=protocol)
    except ValueError as error:
        raise ConfigError(f"trace: {error}") from None
    query = {"to": to, "from": source, "protocol": protocol}
    body = daemon_at(address, config).get(f"/trace?{urlencode(query)}")
    if output == "json":
        sys.stdout.buffer.write(body + b"\n")
        return 0
    try:
        report = msgspec.json.decode(body, type=TraceReport)
    except msgspec.DecodeError as error:
        raise KubeproxyError(f"what answers is no kubeproxy of this version ({error})") from error
    click.echo("\n".join(lines(report)))
    return 0
