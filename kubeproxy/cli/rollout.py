"""Implements ``kubeproxy rollout``, with the subcommands status, history, undo, pause, resume, restart, explain and
advise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import click

from kubeproxy.cli.client_flags import client_flags, overrides, seconds
from kubeproxy.cli.kubectl_flags import FAILED, KubectlCommand, filename_option, refused
from kubeproxy.model.errors import ConfigError
from kubeproxy.runtime.output import echo

if TYPE_CHECKING:
    from kubeproxy.commands.rollout.advise import Wanted
    from kubeproxy.commands.rollout.command import Rollout

_TYPES: Final = frozenset({"deployment", "deployments", "deploy", "deployment.apps", "deployments.apps"})
QPS: Final = 50.0
BURST: Final = 300
"""The largest number of requests at once. QPS is the number of requests per second. Both are kubectl's limits."""


def _flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments that all subcommands have."""
    return click.argument("target", nargs=-1, metavar="deployment/NAME")(client_flags(command))


def _name(target: tuple[str, ...]) -> str:
    """Return the name of the Deployment, given as TYPE/NAME or TYPE NAME."""
    words = tuple(target[0].split("/")) if len(target) == 1 else target
    if len(words) != 2 or not words[1] or words[0].lower() not in _TYPES:
        found = f"found {' '.join(target)!r}" if target else "found nothing"
        raise ConfigError(f"{found}; allowed: deployment/NAME")
    return words[1]


def _play(given: dict[str, Any], action: Callable[[Rollout], Awaitable[None]]) -> int:
    """Connect, run a subcommand, print its errors as kubectl does, and return the exit status."""
    import asyncio
    from dataclasses import replace
    from urllib.parse import urlsplit

    from kubeproxy.commands.rollout.command import Rollout, RolloutError
    from kubeproxy.kubernetes.client.client import Client
    from kubeproxy.kubernetes.client.credentials import Access
    from kubeproxy.kubernetes.client.errors import ApiError
    from kubeproxy.kubernetes.client.kubeconfig import load
    from kubeproxy.kubernetes.client.policy import Policy
    from kubeproxy.kubernetes.printing.error_text import lines
    from kubeproxy.observability.logs import setup as logging

    logging.configure_command()
    host = ""

    async def run() -> None:
        nonlocal host
        name = _name(given["target"])
        access = Access(lambda: load(overrides(given)))
        host = urlsplit(access.config.host).netloc
        answer_s = seconds(given["request_timeout"], "--request-timeout")
        policy = replace(Policy.for_command(answer_s=answer_s), qps=QPS, burst=BURST)
        async with Client(access, policy) as client:
            await action(Rollout(client, access.config.namespace, name, echo))

    try:
        asyncio.run(run())
    except (RolloutError, ApiError, ConfigError) as error:
        echo(*lines([error], host), err=True)
        return FAILED
    return 0


@click.group(short_help="See and steer the rollouts of Deployments.")
def rollout() -> None:
    """See and steer the rollouts of Deployments, as kubectl rollout does."""


@rollout.command(cls=KubectlCommand, short_help="Follow a rollout until it is done.")
@_flags
@click.option("--watch/--no-watch", "-w", default=True, show_default=True, help="Follow the rollout until it is done.")
@click.option("--timeout", metavar="DURATION", default="0s", show_default=True, help="Give up then; 0: never.")
def status(watch: bool, timeout: str, **given: Any) -> int:
    """Follow a rollout until it is done. Exit status 1 if it exceeds its deadline, or --timeout."""
    return _play(given, lambda rollout: rollout.status(watch=watch, timeout_s=seconds(timeout, "--timeout") or None))


@rollout.command(cls=KubectlCommand, short_help="List the revisions.")
@_flags
@click.option("--revision", type=click.IntRange(min=1), default=None, help="Show the pod template of this revision.")
def history(revision: int | None, **given: Any) -> int:
    """List the revisions of a Deployment with their change causes."""
    return _play(given, lambda rollout: rollout.history(revision=revision))


@rollout.command(cls=KubectlCommand, bare={"--dry-run": "client"}, short_help="Go back to an earlier revision.")
@_flags
@click.option("--to-revision", type=click.IntRange(min=0), default=0, help="The revision; 0: the one before.")
@click.option("--dry-run", metavar="none|client", default="none", help="client: only print the pod template.")
def undo(to_revision: int, dry_run: str, **given: Any) -> int:
    """Go back to an earlier revision."""
    if dry_run not in ("none", "client"):
        echo(f"error: --dry-run: found {dry_run!r}; allowed: none or client", err=True)
        return FAILED
    return _play(given, lambda rollout: rollout.undo(to_revision=to_revision, dry_run=dry_run == "client"))


@rollout.command(cls=KubectlCommand, short_help="Roll out no changes for now.")
@_flags
def pause(**given: Any) -> int:
    """Pause a Deployment, so that changes of its template are not rolled out until it is resumed."""
    return _play(given, lambda rollout: rollout.pause())


@rollout.command(cls=KubectlCommand, short_help="Go on after a pause.")
@_flags
def resume(**given: Any) -> int:
    """Continue a paused rollout, together with the changes that were made meanwhile."""
    return _play(given, lambda rollout: rollout.resume())


@rollout.command(cls=KubectlCommand, short_help="Replace all pods.")
@_flags
def restart(**given: Any) -> int:
    """Replace all pods by new pods with the same template, step by step."""
    return _play(given, lambda rollout: rollout.restart())


@rollout.command(cls=KubectlCommand, short_help="Say what a rollout waits for.")
@_flags
def explain(**given: Any) -> int:
    """Explain in one paragraph what a rollout waits for: which pod, on which node, why, since when, and what to do."""
    return _play(given, lambda rollout: rollout.explain())


@rollout.command(cls=KubectlCommand, short_help="Print the patch for rollouts that lose nothing.")
@_flags
@filename_option("The Deployment's manifest: a file, an http(s) URL, or - for standard input, in the server's place.")
@click.option(
    "--timeout", metavar="DURATION", default="25s", show_default=True, help="The longest connection that is to end."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=10258,
    show_default=True,
    help="kubeproxy.drainHookPort of the nodes.",
)
@click.option(
    "--gate",
    is_flag=True,
    help="Let new pods wait at the readiness gate, whose controller (controller-manager --controllers=readiness) runs.",
)
def advise(filename: tuple[str, ...], timeout: str, port: int, gate: bool, **given: Any) -> int:
    """Print the patch that a Deployment needs for rollouts that lose no connection, and why. Nothing is written.

    \b
      kubeproxy rollout advise deployment/web > patch.yaml
      kubectl patch deployment web --patch-file patch.yaml
    """
    import asyncio
    import math

    from kubeproxy.commands.rollout.advise import Wanted

    try:
        wanted = Wanted(max(1, math.ceil(seconds(timeout, "--timeout"))), port, gate)
        if not filename:
            return _play(given, lambda rollout: rollout.advise(wanted))
        if given["target"]:
            raise ConfigError("give either -f FILE or deployment/NAME, not both")
        asyncio.run(_advise_files(filename, wanted))
    except ConfigError as error:
        return refused(error)
    return 0


async def _advise_files(filenames: tuple[str, ...], wanted: Wanted) -> None:
    from kubeproxy.commands.rollout.advise import advise
    from kubeproxy.commands.rollout.manifests import deployments_in

    for index, deployment in enumerate(await deployments_in(filenames)):
        try:
            advice = advise(deployment, wanted)
        except ValueError as error:
            raise ConfigError(f"{', '.join(filenames)}: {error}") from None
        metadata = deployment.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        echo(*(["---"] if index else []), *advice.lines(str(name or "?")))
