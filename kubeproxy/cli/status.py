"""``kubeproxy status``: shows the status of a running daemon."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import click
import msgspec

from kubeproxy.cli.metrics_client import ADDRESS, CONFIG, Daemon, daemon_at
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.observability.status import text
from kubeproxy.observability.status.document import Status

REFRESH_S = 2.0
"""Seconds between two refreshes with --watch: the daemon's interval between two samples."""
SHOWN = 200
"""Services shown in a pipe; a terminal shows as many as fit."""
_CLEAR = "\x1b[H\x1b[2J"


@click.command(short_help="Show the status of a running daemon.")
@click.argument("service", required=False, default="")
@ADDRESS
@CONFIG
@click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text, or the whole status as JSON.",
)
@click.option("--watch", "-w", is_flag=True, help="Refresh every two seconds, until q or Ctrl-C.")
def status(service: str, address: str, config: str, output: str, watch: bool) -> int:
    """Show the status of a running daemon: Services (those with a problem first), packet filter, sources, workers.

    SERVICE is NAMESPACE/NAME or NAME, with :PORT for one port; it is shown with its endpoints and counters.

    Exit status: 0 the daemon is healthy; 1 it is not, or cannot be reached; 64 the command line is wrong.
    """
    if watch and output == "json":
        raise ConfigError("--watch: found --output json; allowed: text")
    daemon = daemon_at(address, config)
    if watch:
        return _watch(daemon, service)
    if output == "json":
        body = daemon.get(_path(service, limit=None))
        sys.stdout.buffer.write(body + b"\n")
        found = _decode(body)
    else:
        found = _ask(daemon, service, limit=SHOWN)
        _draw(found, service, height=None)
    _require_service(found, service)
    return _exit_status(found)


def _path(service: str, *, limit: int | None) -> str:
    query = {"format": "json", **({"service": service} if service else {})}
    if limit is not None and not service:
        query["limit"] = str(limit)
    return f"/statusz?{urlencode(query)}"


def _ask(daemon: Daemon, service: str, *, limit: int) -> Status:
    return _decode(daemon.get(_path(service, limit=limit)))


def _decode(body: bytes) -> Status:
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError as error:
        raise KubeproxyError(
            f"the answer is not of a kubeproxy of this version ({error}); use the command of the daemon's version"
        ) from error


def _require_service(found: Status, service: str) -> None:
    if service and not found.services:
        raise KubeproxyError(
            f"no Service {service} (of {found.totals.services}); `kubeproxy status` without a name lists all"
        )


def _exit_status(found: Status) -> int:
    if found.healthy:
        return 0
    click.echo(f"kubeproxy: {text.verdict(found)}", err=True)
    return 1


def _draw(found: Status, service: str, *, height: int | None) -> None:
    if sys.stdout.isatty():
        from kubeproxy.cli.status_screen import draw

        draw(found, detailed=bool(service), height=height)
        return
    if service:
        for shown in found.services:
            click.echo("\n".join(text.details(shown)))
    else:
        click.echo("\n".join(text.summary(found)))


def _watch(daemon: Daemon, service: str) -> int:
    """Refresh until a key is pressed. A daemon without an answer may be restarting, so the command tries again."""
    found: Status | None = None
    with _keys() as keys:
        while True:
            began = time.monotonic()
            fault = ""
            try:
                found = _ask(daemon, service, limit=SHOWN)
            except KubeproxyError as error:
                fault = str(error)
            if sys.stdout.isatty():
                click.echo(_CLEAR, nl=False)
            if fault:
                click.echo(f"{fault}; trying again")
            elif found is not None:
                _draw(found, service, height=_height())
                if service and not found.services:
                    click.echo(f"no Service {service}")
            sys.stdout.flush()
            if keys.pressed(max(0.1, REFRESH_S - (time.monotonic() - began))):
                return 0 if found is not None and found.healthy and not fault else 1


def _height() -> int | None:
    import shutil

    return shutil.get_terminal_size().lines if sys.stdout.isatty() else None


class _Keys:
    """The keyboard during --watch."""

    def __init__(self, present: bool) -> None:
        self._present = present

    def pressed(self, within_s: float) -> bool:
        """Wait up to `within_s` seconds for q or Ctrl-C; whether it was pressed."""
        end = time.monotonic() + within_s
        try:
            while (left := end - time.monotonic()) > 0:
                if not self._present:
                    time.sleep(left)
                elif select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in ("q", "Q", ""):
                    return True
        except KeyboardInterrupt:
            return True
        return False


@contextmanager
def _keys() -> Iterator[_Keys]:
    """The keyboard in unbuffered mode without echo, if there is one; restores the terminal at the end."""
    if not sys.stdin.isatty():
        yield _Keys(False)
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _Keys(True)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
