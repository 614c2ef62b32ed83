"""Implements ``kubeproxy trace``, which shows the path of a connection."""

from __future__ import annotations

import re
import sys
from urllib.parse import urlencode

import click

from kubeproxy.cli.daemon_client import ADDRESS, CONFIG, Daemon, daemon_at, decode
from kubeproxy.model import Family, family_of
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.observability.status.document import Status
from kubeproxy.observability.status.trace_report import Outcome, TraceReport, TraceRequest, client_in, lines
from kubeproxy.runtime.output import echo, write_data

OTHERWISE = 2
"""The exit status if the outcome differs from --expect."""


@click.command(short_help="Show the path of a connection, and why.")
@click.argument("to", metavar="IP:PORT|NAME:PORT")
@click.option("--from", "source", metavar="IP[:PORT]", default="", help="The client's address.  [this node itself]")
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
    """Ask a running daemon for the path of a connection to IP:PORT, or to a Service, given as NAME:PORT or
    NAMESPACE/NAME:PORT.

    Shows the matching rule, the Service, the proxy port, and the endpoints in the order in which they would be dialed.
    Nothing is sent or changed. A daemon must run, because only the daemon knows the rules in effect.

    Exit status: 0 the daemon has answered, whatever the outcome; 1 it cannot be reached; 2 with --expect, another
    outcome; 64 the command line is wrong.
    """
    daemon = daemon_at(address, config)
    try:
        if _names_a_service(to):
            to = _address_of(daemon, to, protocol, source)
        TraceRequest.of(to=to, source=source, protocol=protocol)
    except ValueError as error:
        raise ConfigError(f"trace: {error}") from None
    query = {"to": to, "from": source, "protocol": protocol}
    body = daemon.get(f"/trace?{urlencode(query)}")
    report = decode(body, TraceReport)
    if output == "json":
        write_data(sys.stdout, f"{body.decode()}\n")
    else:
        echo(*lines(report))
    return OTHERWISE if expect is not None and report.outcome != expect.replace("-", " ") else 0


def _names_a_service(to: str) -> bool:
    """Return whether a destination is a Service's name and port, and not an address and port."""
    return re.fullmatch(r"[a-z0-9-]+/\S+|[a-z][a-z0-9-]*(:\S+)?", to) is not None


def _address_of(daemon: Daemon, to: str, protocol: str, source: str) -> str:
    """Ask the daemon for an address and port of the Service that `to` names.

    Raise KubeproxyError if the daemon knows no such Service, several, or none with such a port. Raise ValueError if
    `source` is not an address.
    """
    found = daemon.ask(f"/statusz?{urlencode({'format': 'json', 'service': to})}", Status)
    if not found.services:
        raise KubeproxyError(found.hint or f"no Service {to}")
    if len(found.services) > 1:
        names = ", ".join(f"{service.namespace}/{service.name}" for service in found.services)
        raise KubeproxyError(f"{to} may be each of {names}; write NAMESPACE/NAME:PORT")
    client, _ = client_in(source)
    family = family_of(client) if client is not None else None
    addresses = [
        address
        for frontend in sorted(found.services[0].frontends, key=lambda one: one.family)
        if frontend.protocol == protocol.upper() and (family is None or Family(frontend.family) is family)
        for address in (*frontend.addresses, *frontend.own_addresses)
        if not address.startswith("node port")
    ]
    if not addresses:
        raise KubeproxyError(f"{to} has no {protocol.upper()} address{f' of {family}' if family else ''}")
    return addresses[0]
