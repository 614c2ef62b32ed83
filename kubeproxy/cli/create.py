"""Implements ``kubeproxy create``."""

from __future__ import annotations

from typing import Any, Final

import click

from kubeproxy.cli.client_flags import client_flags, overrides, seconds
from kubeproxy.cli.kubectl_flags import RECORDED, KubectlCommand, filename_option, refused
from kubeproxy.model.errors import ConfigError
from kubeproxy.runtime.output import echo

_BARE_DRY_RUN: Final = "unchanged"
_DRY_RUNS: Final = {"none": "none", "client": "client", "server": "server"}
_VALIDATIONS: Final = {
    **dict.fromkeys(("strict", "true"), "strict"),
    "warn": "warn",
    **dict.fromkeys(("ignore", "false"), "ignore"),
}
MOST_PARALLEL: Final = 256


@click.command(
    "create",
    cls=KubectlCommand,
    bare={"--dry-run": _BARE_DRY_RUN, "--validate": "strict"},
    short_help="Create objects on an API server, from files or standard input.",
    epilog="Exit status: 0 everything was created or skipped; 1 something was not, for the reasons on standard error.",
)
@click.argument("unexpected", nargs=-1, metavar="")
@filename_option("A file, directory, pattern, http(s) URL, or - for standard input. May be repeated; commas separate.")
@click.option("--recursive", "-R", is_flag=True, help="Read subdirectories, too.")
@click.option(
    "--selector", "-l", metavar="SELECTOR", default="", help="Create only objects whose labels match: a=b,c!=d."
)
@click.option(
    "--dry-run",
    metavar="none|client|server",
    default="none",
    help="client: print what would be sent; server: have the server check it, and store nothing.",
)
@click.option(
    "--validate",
    metavar="strict|warn|ignore",
    default="strict",
    help="Unknown fields and repeated keys: an error, a warning, or dropped.  [strict]",
)
@click.option(
    "--output",
    "-o",
    metavar="FORMAT",
    default="",
    help="name, json, yaml, jsonpath=TEMPLATE, jsonpath-as-json=TEMPLATE or jsonpath-file=FILE.",
)
@click.option("--show-managed-fields", is_flag=True, help="Print metadata.managedFields, too.")
@click.option("--save-config", is_flag=True, help="Store each object in an annotation, for kubectl apply.")
@click.option(
    "--field-manager",
    metavar="NAME",
    default="kubeproxy-create",
    show_default=True,
    help="The manager of the objects' fields.",
)
@click.option("--raw", metavar="PATH", default="", help="Post one file unchanged to this path of the server.")
@click.option("--edit", is_flag=True, help="Change the objects in an editor ($KUBE_EDITOR, $EDITOR, vi) first.")
@click.option("--windows-line-endings", is_flag=True, help="With --edit: use the line ends of Windows.")
@click.option("--record", is_flag=True, help="Store the command line in an annotation. Deprecated.")
@click.option(
    "--sort",
    is_flag=True,
    help="Create namespaces, definitions, service accounts, roles and configuration before other objects.",
)
@click.option(
    "--skip-existing", is_flag=True, help="Skip objects that already exist. They are not changed, and are no error."
)
@click.option(
    "--parallel",
    metavar="N",
    type=click.IntRange(1, MOST_PARALLEL),
    default=1,
    show_default=True,
    help="The largest number of objects to create at once. Objects that depend on each other wait.",
)
@click.option("--warnings-as-errors", is_flag=True, help="Exit status 1 if the server warns.")
@client_flags
@click.pass_context
def create(ctx: click.Context, /, unexpected: tuple[str, ...], **given: Any) -> int:
    """Create objects on an API server from YAML or JSON in files, directories, URLs or standard input.

    Does what kubectl create -f does: prints one line for each object on standard output, and errors at the end on
    standard error. If an object cannot be created, or a document is invalid, the others are still created. Objects are
    read and created one after the other, in the order of the files.

    \b
      kubeproxy create -f pod.yaml
      kubeproxy create -f manifests/ -R --sort --skip-existing
      helm template app | kubeproxy create -f - --dry-run=server
    """
    try:
        options = _options(ctx, unexpected, given)
    except ConfigError as error:
        return refused(error)
    # Imported only after the command line has been checked, because importing the client takes a quarter of a second.
    from kubeproxy.commands.create.command import run

    return run(options)


def _options(ctx: click.Context, unexpected: tuple[str, ...], given: dict[str, Any]) -> Any:
    from kubeproxy.commands.create.options import CreateOptions, DryRun, Validation

    if unexpected:
        raise ConfigError(f"Unexpected args: [{' '.join(unexpected)}]\nSee 'kubeproxy create -h' for help and examples")
    if not given["filename"]:
        raise ConfigError("must specify -f: a file, a directory, an http(s) URL, or - for standard input")
    if given["record"]:
        echo("Flag --record has been deprecated, --record will be removed in the future", err=True)
    if given["raw"]:
        _check_raw(given)
    return CreateOptions(
        filenames=given["filename"],
        recursive=given["recursive"],
        selector=given["selector"],
        dry_run=DryRun(_dry_run(given["dry_run"])),
        validation=Validation(_validation(given["validate"])),
        output=given["output"],
        show_managed_fields=given["show_managed_fields"],
        save_config=given["save_config"],
        field_manager=given["field_manager"],
        raw=given["raw"],
        edit=given["edit"],
        record=_command_line(ctx) if given["record"] else "",
        sort=given["sort"],
        skip_existing=given["skip_existing"],
        parallel=given["parallel"],
        warnings_as_errors=given["warnings_as_errors"],
        windows_line_endings=given["windows_line_endings"],
        client=overrides(given),
        request_timeout_s=seconds(given["request_timeout"], "--request-timeout") or None,
        cache_directory=given["cache_dir"],
    )


def _dry_run(text: str) -> str:
    if text == _BARE_DRY_RUN:
        echo("Warning: --dry-run is deprecated and can be replaced with --dry-run=client.", err=True)
        return "client"
    if text not in _DRY_RUNS:
        raise ConfigError(f'Invalid dry-run value ({text}). Must be "none", "server", or "client".')
    return _DRY_RUNS[text]


def _validation(text: str) -> str:
    if text not in _VALIDATIONS:
        raise ConfigError(
            f'invalid - validate option "{text}"; must be one of: strict (or true), warn, ignore (or false)'
        )
    return _VALIDATIONS[text]


def _check_raw(given: dict[str, Any]) -> None:
    for flag, name in (("edit", "edit"), ("output", "output"), ("selector", "selector"), ("recursive", "recursive")):
        if given[flag]:
            raise ConfigError(f"--raw and --{name} are mutually exclusive")
    files = given["filename"]
    if len(files) != 1:
        raise ConfigError("--raw can only use a single local file or stdin")
    if files[0].startswith(("http://", "https://")):
        raise ConfigError("--raw cannot read from a url")
    if not given["raw"].startswith("/"):
        raise ConfigError(f"--raw must be a valid URL path: found {given['raw']!r}; allowed: a path that begins with /")


def _command_line(ctx: click.Context) -> str:
    flags = [text.rstrip("\0") if "=" in text else f"{text}=true" for text in ctx.meta[RECORDED]]
    return " ".join([ctx.command_path, *flags])
