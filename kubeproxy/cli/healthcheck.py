"""Implements ``kubeproxy healthcheck``, a health check for containers without other programs."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import click

from kubeproxy.runtime.output import echo

_LISTENING = "0A"
"""The state TCP_LISTEN in /proc/net/tcp."""


@click.command(short_help="Check the health of a running kubeproxy.")
@click.option(
    "--address", default="127.0.0.1:10256", show_default=True, metavar="HOST:PORT", help="Address of its health server."
)
@click.option(
    "--path",
    type=click.Choice(["/readyz", "/livez", "/healthz"]),
    default="/readyz",
    show_default=True,
    help="Ready: a sync has succeeded, and it is not draining. Live: it needs no restart. Healthy: live, and the node"
    " is not being deleted.",
)
@click.option(
    "--here",
    is_flag=True,
    help="Accept only a server of a process that is visible here: in a container on the host's network, the container's"
    " own server and not that of the instance from which it takes over.",
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
    """Request the health of a running kubeproxy on this host, and print the answer.

    Exit status: 0 the HTTP status is 200; 1 it is not, or there is no answer.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise click.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--address")
    if here and not has_visible_listener(int(port)):
        echo(f"no process that is visible here listens on port {port}", err=True)
        return 1
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        echo(f"{address} does not answer: {error}", err=True)
        return 1
    finally:
        connection.close()
    echo(body)
    return 0 if answer.status == 200 else 1


def has_visible_listener(port: int, *, proc: Path = Path("/proc")) -> bool:
    """Return whether a process of this PID namespace listens on a TCP port of this network namespace. Only processes
    whose descriptors this user may read count."""
    sockets = {f"socket:[{inode}]" for inode in _listeners(port, proc)}
    return bool(sockets) and any(
        target in sockets for pid in proc.iterdir() if pid.name.isdecimal() for target in _descriptors(pid / "fd")
    )


def _listeners(port: int, proc: Path) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on the port."""
    for table in ("tcp", "tcp6"):
        try:
            _, *lines = (proc / "net" / table).read_text().splitlines()
        except FileNotFoundError:  # There is no IPv6.
            continue
        for line in lines:
            # The columns are: sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _descriptors(directory: Path) -> Iterator[str]:
    """Yield the link targets of a process's descriptors. Yield nothing if the process has ended or belongs to another
    user."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    yield os.readlink(entry)
                except OSError:
                    continue
    except OSError:
        return
