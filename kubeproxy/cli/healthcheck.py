"""``kubeproxy healthcheck``: for containers, which should need no other program to ask."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import click

_LISTENING = "0A"
"""TCP_LISTEN, as /proc/net/tcp writes it."""


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
@click.option(
    "--here",
    is_flag=True,
    help="Only a server among the processes that are visible here counts: in a container on the host's network, that is"
    " the container's own, and not the one that it is about to take over from.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait for an answer.",
)
def healthcheck(address: str, path: str, here: bool, timeout: float) -> int:
    """Ask a running kubeproxy of this host how it is, and print its answer. Exit status 0 if all is well, else 1."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise click.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--address")
    if here and not is_held_here(int(port)):
        click.echo(f"no process that is visible here listens on port {port}", err=True)
        return 1
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


def is_held_here(port: int, *, proc: Path = Path("/proc")) -> bool:
    """Whether a process of this PID namespace, which we may look at, listens on a TCP port of this network."""
    sockets = {f"socket:[{inode}]" for inode in _listeners(port, proc)}
    return bool(sockets) and any(
        target in sockets for pid in proc.iterdir() if pid.name.isdecimal() for target in _descriptors(pid / "fd")
    )


def _listeners(port: int, proc: Path) -> Iterator[str]:
    """Their sockets' inodes."""
    for table in ("tcp", "tcp6"):
        try:
            _, *lines = (proc / "net" / table).read_text().splitlines()
        except FileNotFoundError:  # no IPv6
            continue
        for line in lines:
            # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _descriptors(directory: Path) -> Iterator[str]:
    """What a process's descriptors are; nothing where it is gone, or another user's."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    yield os.readlink(entry)
                except OSError:
                    continue
    except OSError:
        return
