"""Implements ``kubeproxy rolling-update``."""

from __future__ import annotations

from typing import Any, Final

import click

from kubeproxy.cli.client_flags import client_flags, overrides, seconds
from kubeproxy.cli.kubectl_flags import KubectlCommand, filename_option, refused
from kubeproxy.model.errors import ConfigError

_DRY_RUNS: Final = {"none": False, "client": True, "unchanged": True, "true": True, "false": False}


@click.command(
    "rolling-update",
    cls=KubectlCommand,
    bare={"--dry-run": "client", "--validate": "true"},
    short_help="Replace a ReplicationController by another one, pod by pod.",
    epilog="Exit status: 0 the update is complete; 1 it is not, for the reasons on standard error, which also names the"
    " commands to go on and back; 130 interrupted.",
)
@click.argument("names", nargs=-1, metavar="OLD [NEW]")
@filename_option("The new controller: a file, an http(s) URL, or - for standard input.")
@click.option(
    "--image", metavar="IMAGE", default="", help="The new image. Otherwise the new controller equals the old one."
)
@click.option(
    "--container", metavar="NAME", default="", help="The container that gets the image, if there are several."
)
@click.option(
    "--image-pull-policy",
    metavar="Always|Never|IfNotPresent",
    default="",
    help="The policy of that container. Needed if the image is the same as before.",
)
@click.option(
    "--deployment-label-key",
    metavar="KEY",
    default="deployment",
    show_default=True,
    help="With --image: the label that distinguishes the pods of both controllers.",
)
@click.option("--rollback", is_flag=True, help="Undo an incomplete update: scale the old controller up again.")
@click.option(
    "--max-surge",
    metavar="N|PERCENT",
    default="1",
    show_default=True,
    help="How many pods may exist above the wanted number.",
)
@click.option(
    "--max-unavailable",
    metavar="N|PERCENT",
    default="0",
    show_default=True,
    help="How many of the wanted pods may be missing or not ready.",
)
@click.option(
    "--min-ready-seconds",
    metavar="DURATION",
    default="0",
    help="How long a new pod has to be ready before it counts.  [minReadySeconds of the new controller]",
)
@click.option(
    "--update-period",
    metavar="DURATION",
    default="1m0s",
    show_default=True,
    help="The time between the creation of new pods and the deletion of old pods.",
)
@click.option(
    "--poll-interval",
    metavar="DURATION",
    default="3s",
    show_default=True,
    help="The time between two checks of the pods.",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    default="5m0s",
    show_default=True,
    help="Stop after this time without progress. Running pods continue to serve.",
)
@click.option(
    "--drain-timeout",
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="If the proxies report open connections: how long a pod's connections may last before it is deleted.",
)
@click.option(
    "--cleanup-policy",
    metavar="delete|rename|preserve",
    default="",
    help="At the end: delete the old controller; give its name to the new one, too; or keep it without pods."
    "  [rename with OLD --image, else delete]",
)
@click.option(
    "--dry-run", metavar="none|client", default="none", help="client: print what would be done. Nothing is written."
)
@click.option("--validate", metavar="true|false", default="true", help="Unknown fields in the file are an error.")
@click.option(
    "--output",
    "-o",
    metavar="FORMAT",
    default="",
    help="The new controller as name, yaml, jsonpath=TEMPLATE, …; json: every event as a JSON object, one a line.",
)
@client_flags
def rolling_update(names: tuple[str, ...], **given: Any) -> int:
    """Replace a ReplicationController by another one, pod by pod, as kubectl did up to version 1.17.

    Pods of the old controller are replaced step by step by pods of the new one. No step leaves fewer ready pods than
    --max-unavailable allows, or makes more pods than --max-surge allows. The update stops if a new pod does not become
    ready. The same command continues an interrupted update, even one that kubectl has begun; --rollback undoes it.

    \b
      kubeproxy rolling-update web --image=web:2
      kubeproxy rolling-update web web-v2 --image=web:2
      kubeproxy rolling-update web -f web-v2.yaml
      kubeproxy rolling-update web --rollback
    """
    try:
        options = _options(names, given)
    except ConfigError as error:
        return refused(error)
    # Imported only after the command line has been checked, because importing the client takes a quarter of a second.
    from kubeproxy.commands.rolling_update.command import run
    from kubeproxy.observability.logs import setup as logging

    logging.configure_command()
    return run(options)


def _options(names: tuple[str, ...], given: dict[str, Any]) -> Any:
    from kubeproxy.commands.rolling_update.options import Cleanup, UpdateOptions, amount

    for kind in (name.partition("/")[0] for name in names if "/" in name):
        remedy = "a Deployment rolls by itself: kubeproxy rollout restart" if kind.startswith("deploy") else "a name"
        raise ConfigError(f"found {names[0]!r}; allowed: the name of a ReplicationController ({remedy})")
    policy = given["cleanup_policy"]
    if policy not in ("", *Cleanup):
        raise ConfigError(f"--cleanup-policy: found {policy!r}; allowed: {', '.join(Cleanup)}")
    return UpdateOptions(
        names=names,
        filenames=tuple(name for text in given["filename"] for name in text.split(",") if name),
        image=given["image"],
        container=given["container"],
        image_pull_policy=given["image_pull_policy"],
        deployment_label_key=given["deployment_label_key"],
        rollback=given["rollback"],
        dry_run=_dry_run(given["dry_run"]),
        validate=_validate(given["validate"]),
        output=given["output"],
        update_period_s=seconds(given["update_period"], "--update-period"),
        poll_interval_s=seconds(given["poll_interval"], "--poll-interval"),
        timeout_s=seconds(given["timeout"], "--timeout"),
        drain_timeout_s=seconds(given["drain_timeout"], "--drain-timeout"),
        min_ready_s=seconds(given["min_ready_seconds"], "--min-ready-seconds"),
        max_surge=amount(given["max_surge"]),
        max_unavailable=amount(given["max_unavailable"]),
        cleanup=Cleanup(policy) if policy else None,
        client=overrides(given),
        request_timeout_s=seconds(given["request_timeout"], "--request-timeout") or None,
        cache_directory=given["cache_dir"],
    )


def _dry_run(text: str) -> bool:
    if text == "server":
        raise ConfigError("--dry-run=server for rolling-update is not supported: allowed: none or client")
    if text not in _DRY_RUNS:
        raise ConfigError(f'Invalid dry-run value ({text}). Must be "none" or "client".')
    return _DRY_RUNS[text]


def _validate(text: str) -> bool:
    if text not in ("true", "strict", "false", "ignore"):
        raise ConfigError(f"--validate: found {text!r}; allowed: true or false")
    return text in ("true", "strict")
