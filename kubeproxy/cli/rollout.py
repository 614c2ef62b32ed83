"""``kubeproxy rollout``: status, history, undo, pause, resume, restart, explain."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kubeproxy.config.value_types import Duration
from kubeproxy.model.errors import ConfigError

if TYPE_CHECKING:
    from kubeproxy.workloads.rollout_command import Rollout

_TYPES: Final = frozenset({"deployment", "deployments", "deploy", "deployment.apps", "deployments.apps"})
FAILED: Final = 1


def _flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments that every one of the commands takes."""
    options = (
        click.argument("target", nargs=-1, required=True, metavar="deployment/NAME"),
        click.option("--namespace", "-n", metavar="NAME", default="default", show_default=True, help="Where it is."),
        click.option("--kubeconfig", metavar="FILE", default="", help="The kubeconfig.  [$KUBECONFIG, ~/.kube/config]"),
        click.option("--master", "-s", metavar="URL", default="", help="The API server; wins over the kubeconfig's."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _name(target: tuple[str, ...]) -> str:
    """The name of the Deployment: TYPE/NAME or TYPE NAME."""
    words = tuple(target[0].split("/")) if len(target) == 1 else target
    if len(words) != 2 or not words[1] or words[0].lower() not in _TYPES:
        raise ConfigError(f"found {' '.join(target)!r}; allowed: deployment/NAME")
    return words[1]


def _kubeconfig(given: str) -> str:
    """The file to use: the flag's, the first that exists of KUBECONFIG, or the one at home; empty: in-cluster."""
    if given:
        return given
    named = [path for path in os.environ.get("KUBECONFIG", "").split(":") if path]
    home = Path.home() / ".kube" / "config"
    for path in named or [str(home)]:
        if Path(path).is_file():
            return path
    return ""


def _play(given: dict[str, Any], action: Callable[[Rollout], Awaitable[None]]) -> int:
    """Connect, act, and end as kubectl does."""
    import asyncio

    from kubeproxy.kubernetes.client.client import Client
    from kubeproxy.kubernetes.client.credentials import ClientSettings
    from kubeproxy.kubernetes.client.errors import ApiError
    from kubeproxy.workloads.rollout_command import Rollout, RolloutError

    name = _name(given["target"])
    settings = ClientSettings(kubeconfig=_kubeconfig(given["kubeconfig"]), master=given["master"], qps=50, burst=100)

    async def run() -> None:
        client = await Client.connect(settings)
        try:
            await action(Rollout(client, given["namespace"], name, click.echo))
        finally:
            await client.close()

    try:
        asyncio.run(run())
    except (RolloutError, ApiError) as error:
        said = str(error)
        click.echo(said if said.startswith("Error from server") else f"error: {said}", err=True)
        return FAILED
    return 0


@click.group(short_help="See and steer the rollouts of Deployments.")
def rollout() -> None:
    """See and steer the rollouts of Deployments, as kubectl rollout does."""


@rollout.command(short_help="Follow a rollout until it is done.")
@_flags
@click.option("--watch/--no-watch", "-w", default=True, show_default=True, help="Stay until the rollout is done.")
@click.option("--timeout", metavar=Duration.NOTATION, default="0s", show_default=True, help="Give up then; 0: never.")
def status(watch: bool, timeout: str, **given: Any) -> int:
    """Follow a rollout until it is done. Exit status 1 if it exceeds its deadline, or --timeout."""
    try:
        limit_s = Duration.parse(timeout).seconds
    except ValueError:
        raise ConfigError(f"--timeout: found {timeout!r}; allowed: {Duration.ALLOWED}") from None
    return _play(given, lambda it: it.status(watch=watch, timeout_s=limit_s or None))


@rollout.command(short_help="List the revisions.")
@_flags
@click.option("--revision", type=click.IntRange(min=1), default=None, help="Show the pod template of this one.")
def history(revision: int | None, **given: Any) -> int:
    """List the revisions of a Deployment with their causes."""
    return _play(given, lambda it: it.history(revision=revision))


@rollout.command(short_help="Go back to an earlier revision.")
@_flags
@click.option("--to-revision", type=click.IntRange(min=0), default=0, help="The revision; 0: the one before.")
@click.option("--dry-run", is_flag=True, help="Only print the pod template.")
def undo(to_revision: int, dry_run: bool, **given: Any) -> int:
    """Go back to an earlier revision."""
    return _play(given, lambda it: it.undo(to_revision=to_revision, dry_run=dry_run))


@rollout.command(short_help="Roll out no changes for now.")
@_flags
def pause(**given: Any) -> int:
    """Roll out no changes of the template until it is resumed."""
    return _play(given, lambda it: it.pause())


@rollout.command(short_help="Go on after a pause.")
@_flags
def resume(**given: Any) -> int:
    """Go on after a pause, with whatever changed meanwhile."""
    return _play(given, lambda it: it.resume())


@rollout.command(short_help="Replace all pods.")
@_flags
def restart(**given: Any) -> int:
    """Replace all pods by new ones of the same template, step by step."""
    return _play(given, lambda it: it.restart())


@rollout.command(short_help="Say what a rollout waits for.")
@_flags
def explain(**given: Any) -> int:
    """Say in one paragraph what a rollout waits for: which pod, where, why, since when, and what would help."""
    return _play(given, lambda it: it.explain())
