"""Implements ``kubeproxy status``, which shows the status of a running daemon."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import click
import msgspec

from kubeproxy.cli.daemon_client import ADDRESS, CONFIG, Daemon, daemon_at, decode
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.observability.status import text
from kubeproxy.observability.status.document import State, Status
from kubeproxy.observability.status.service_index import Order
from kubeproxy.runtime.output import echo, write_data

REFRESH_S = 2.0
"""The seconds between two refreshes with --watch. It equals the daemon's interval between two samples."""
NOT_OK = 2
"""The exit status with --exit-code if a selected Service is not ok."""
SHOWN = 200
"""The largest number of Services that are shown if the output is not a terminal. A terminal shows as many as fit."""
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
@click.option("--namespace", "-n", default="", metavar="NAME", help="Only Services of this namespace.")
@click.option(
    "--state",
    default="",
    metavar="STATES",
    help=f"Only Services in one of these states, separated by commas: {', '.join(State)}.",
)
@click.option("--search", default="", metavar="TEXT", help="Only Services with this text in a name or an address.")
@click.option(
    "--sort",
    type=click.Choice([str(order) for order in Order]),
    default=str(Order.PROBLEMS),
    show_default=True,
    help="The order of the Services.",
)
@click.option(
    "--limit", type=click.IntRange(min=0), default=None, help=f"The most Services shown.  [{SHOWN}; JSON: all]"
)
@click.option(
    "--exit-code",
    is_flag=True,
    help=f"Exit status {NOT_OK} if one of the selected Services is in another state than ok.",
)
@click.option(
    "--all-nodes",
    is_flag=True,
    help="Ask the kubeproxy of every node, through the API server: which are not well, and about which Services nodes"
    " disagree. Needs kubeproxy.publicStatus and a metricsBindAddress that the API server reaches.",
)
@click.option("--kubeconfig", metavar="FILE", default="", help="With --all-nodes.  [$KUBECONFIG, ~/.kube/config]")
@click.option("--context", metavar="NAME", default="", help="With --all-nodes: the kubeconfig's context.")
@click.option(
    "--selector",
    metavar="LABELS",
    default="app.kubernetes.io/name=kubeproxy",
    show_default=True,
    help="With --all-nodes: the labels of kubeproxy's pods, in --namespace [kube-system].",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=10249, show_default=True, help="With --all-nodes: their port."
)
def status(
    service: str,
    address: str,
    config: str,
    output: str,
    watch: bool,
    namespace: str,
    state: str,
    search: str,
    sort: str,
    limit: int | None,
    exit_code: bool,
    all_nodes: bool,
    kubeconfig: str,
    context: str,
    selector: str,
    port: int,
) -> int:
    """Show the status of a running daemon: Services, those with a problem first, packet filter, sources and workers.

    SERVICE is NAMESPACE/NAME or NAME, with :PORT (name or number) for one port. It may also be IP or IP:PORT, an
    address of the Service or of one of its endpoints. The Service is shown with its endpoints and counters.

    Exit status: 0 the daemon is healthy; 1 it is not, or cannot be reached, or has no such Service; 2 with --exit-code,
    a selected Service is not ok; 64 the command line is wrong.
    """
    if all_nodes:
        if service or watch:
            raise ConfigError("--all-nodes: found a SERVICE or --watch; allowed: neither")
        from kubeproxy.cli.all_nodes import show

        return show(
            kubeconfig=kubeconfig,
            context=context,
            namespace=namespace or "kube-system",
            selector=selector,
            port=port,
            as_json=output == "json",
        )
    if watch and output == "json":
        raise ConfigError("--watch: found --output json; allowed: text")
    query = {"service": service, "namespace": namespace, "state": state, "search": search, "sort": sort}
    selection = Selection({name: text for name, text in query.items() if text}, limit)
    daemon = daemon_at(address, config)
    if watch:
        return _watch(daemon, selection)
    if output == "json":
        body = daemon.get(selection.path(most=None))
        found = decode(body, Status)
        write_data(sys.stdout, f"{msgspec.json.format(body, indent=2).decode()}\n")
    else:
        found = _ask(daemon, selection)
        _draw(found, service, height=None)
    _require_service(found, service)
    return _exit_status(found) or (_exit_of_services(daemon, selection) if exit_code else 0)


@dataclass(frozen=True, slots=True)
class Selection:
    """The Services that the command line selects."""

    query: Mapping[str, str]
    limit: int | None
    """The largest number of Services, or None if --limit was not given."""

    @property
    def service(self) -> str:
        """Return the Service that the command line names, or an empty text."""
        return self.query.get("service", "")

    def path(self, *, most: int | None) -> str:
        """Return the path of the status page with its query. `most` is the limit if the command line has no limit and
        names no Service."""
        limit = self.limit if self.limit is not None else None if self.service else most
        query = {"format": "json", **self.query, **({} if limit is None else {"limit": str(limit)})}
        return f"/statusz?{urlencode(query)}"


def _ask(daemon: Daemon, selection: Selection) -> Status:
    return daemon.ask(selection.path(most=SHOWN), Status)


def _exit_of_services(daemon: Daemon, selection: Selection) -> int:
    """Return `NOT_OK` if a selected Service is not ok, even if it is not shown. Return 0 otherwise."""
    wanted = [state for state in selection.query.get("state", "").split(",") if state] or list(State)
    others = ",".join(state for state in wanted if state != State.OK)
    if not others:
        return 0
    found = daemon.ask(replace(selection, query={**selection.query, "state": others}, limit=1).path(most=1), Status)
    return NOT_OK if found.matched else 0


def _require_service(found: Status, service: str) -> None:
    if service and not found.services:
        raise KubeproxyError(found.hint or f"no Service {service} that the other options select")


def _exit_status(found: Status) -> int:
    if found.healthy:
        return 0
    echo(f"kubeproxy: {text.verdict(found)}", err=True)
    return 1


def _draw(found: Status, service: str, *, height: int | None) -> None:
    if sys.stdout.isatty():
        from kubeproxy.cli.status_screen import draw

        draw(found, detailed=bool(service), height=height)
        return
    if service:
        for shown in found.services:
            echo(*text.details(shown))
    else:
        echo(*text.summary(found))


def _watch(daemon: Daemon, selection: Selection) -> int:
    """Refresh the screen until a key is pressed, and return the exit status. If the daemon does not answer, try again,
    because it may be restarting."""
    found: Status | None = None
    with _keys() as keys:
        while True:
            began = time.monotonic()
            fault = ""
            try:
                found = _ask(daemon, selection)
            except KubeproxyError as error:
                fault = str(error)
            if sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            if fault:
                echo(f"{fault}; trying again")
            elif found is not None:
                _draw(found, selection.service, height=_height())
                if selection.service and not found.services:
                    echo(found.hint)
            sys.stdout.flush()
            if keys.pressed(max(0.1, REFRESH_S - (time.monotonic() - began))):
                return 0 if found is not None and found.healthy and not fault else 1


def _height() -> int | None:
    import shutil

    return shutil.get_terminal_size().lines if sys.stdout.isatty() else None


class _Keys:
    """Reads the keyboard during --watch."""

    def __init__(self, present: bool) -> None:
        self._present = present

    def pressed(self, within_s: float) -> bool:
        """Wait up to `within_s` seconds for q or Ctrl-C. Return whether a key was pressed."""
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
    """Switch the terminal, if there is one, to unbuffered input without echo, yield the keyboard, and restore the
    terminal at the end."""
    if not sys.stdin.isatty():
        yield _Keys(False)
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _Keys(True)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
