"""``kubeproxy healthcheck``: for containers, which should need no other program to ask."""

from __future__ import annotations

import http.client

import click


@click.command(short_help="Ask a running kubeproxy how it is.")
@click.option(
    "--address", default="127.0.0.1:10256", show_default=True, metavar="HOST:PORT", help="Where its health server is."
)
@click.option(
    "--path",
    type=click.Choice(["/readyz", "/livez", "/healthz"]),
    default="/readyz",
    show_default=True,
    help="Ready: has been in step with its sources, and is not ending. Live: worth keeping. Healthy: live, on a node"
    " that stays.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=2.0, show_default=True, metavar="S")
def healthcheck(address: str, path: str, timeout: float) -> int:
    """Ask a running kubeproxy of this host how it is, and print its answer. Exit status 0 if all is well, else 1."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise click.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--address")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        click.echo(f"{address} does not answer: {error}", err=True)
        return 1
    finally:
        connection.close()
    click.echo(body)
    return 0 if answer.status == 200 else 1
