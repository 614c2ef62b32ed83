"""``kubeproxy status``."""

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

from kubeproxy.cli.admin_client import ADDRESS, CONFIG, Daemon, daemon_at
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.observability.status import text
from kubeproxy.observability.status.document import Status

EVERY_S = 2.0
"""How often the picture is drawn anew: as often as the daemon takes a sample."""
SHOWN = 200
"""Services shown in a pipe; a terminal shows what fits."""
_CLEAR = "\x1b[H\x1b[2J"


@click.command(short_help="Show what a running daemon does.")
@click.argument("service", required=False, default="")
@ADDRESS
@CONFIG
@click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text, or everything as JSON.",
)
@click.option("--watch", "-w", is_flag=True, help="Draw it anew every two seconds, until q or Ctrl-C.")
def status(service: str, address: str, config: str, output: str, watch: bool) -> int:
    """Show what a running daemon does: Services (those with a problem first), endpoints, packet filter, sources.

    SERVICE is NAMESPACE/NAME or NAME, with :PORT for one port only; it is shown with its endpoints and counters.

    Exit status: 0 the daemon is healthy; 1 it is not, or cannot be reached; 64 the command line is wrong.
    """
    if watch and output == "json":
        raise ConfigError("--watch: found --output json beside it; allowed: text")
    daemon = daemon_at(address, config)
    if watch:
        return _watch(daemon, service)
    if output == "json":
        body = daemon.get(_path(service, limit=None))
        sys.stdout.buffer.write(body + b"\n")
        seen = _decode(body)
    else:
        seen = _ask(daemon, service, limit=SHOWN)
        _draw(seen, service, height=None)
    _demand(seen, service)
    return _exit_status(seen)


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
            f"what answers is no kubeproxy of this version ({error}); use the kubeproxy that the daemon is of"
        ) from error


def _demand(seen: Status, service: str) -> None:
    if service and not seen.services:
        raise KubeproxyError(
            f"no Service {service} (of {seen.totals.services}); `kubeproxy status` without a name lists those there are"
        )


def _exit_status(seen: Status) -> int:
    if seen.healthy:
        return 0
    click.echo(f"kubeproxy: {text.verdict(seen)}", err=True)
    return 1


def _draw(seen: Status, service: str, *, height: int | None) -> None:
    if sys.stdout.isatty():
        from kubeproxy.cli.status_screen import draw

        draw(seen, detailed=bool(service), height=height)
        return
    if service:
        for shown in seen.services:
            click.echo("\n".join(text.details(shown)))
    else:
        click.echo("\n".join(text.summary(seen)))


def _watch(daemon: Daemon, service: str) -> int:
    """Like top. A daemon that does not answer is waited for: it may be restarting."""
    seen: Status | None = None
    with _keys() as keys:
        while True:
            began = time.monotonic()
            fault = ""
            try:
                seen = _ask(daemon, service, limit=SHOWN)
            except KubeproxyError as error:
                fault = str(error)
            if sys.stdout.isatty():
                click.echo(_CLEAR, nl=False)
            if fault:
                click.echo(f"{fault}; tries again")
            elif seen is not None:
                _draw(seen, service, height=_height())
                if service and not seen.services:
                    click.echo(f"no Service {service}")
            sys.stdout.flush()
            if keys.pressed(max(0.1, EVERY_S - (time.monotonic() - began))):
                return 0 if seen is not None and seen.healthy and not fault else 1


def _height() -> int | None:
    import shutil

    return shutil.get_terminal_size().lines if sys.stdout.isatty() else None


class _Keys:
    """What is typed while we watch."""

    def __init__(self, typed: bool) -> None:
        self._typed = typed

    def pressed(self, within_s: float) -> bool:
        """Wait that long for q (or Ctrl-C); whether it came."""
        end = time.monotonic() + within_s
        try:
            while (left := end - time.monotonic()) > 0:
                if not self._typed:
                    time.sleep(left)
                elif select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in ("q", "Q", ""):
                    return True
        except KeyboardInterrupt:
            return True
        return False


@contextmanager
def _keys() -> Iterator[_Keys]:
    """Keys one by one and unseen, where somebody types; the terminal is as before in the end."""
    if not sys.stdin.isatty():
        yield _Keys(False)
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _Keys(True)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
