"""``kubeproxy check``: checks configuration and manifests."""

from __future__ import annotations

import click

from kubeproxy.cli.go_flags import FlagTexts, GoCommand
from kubeproxy.config.flags import ACTIONS, flags
from kubeproxy.config.load import load
from kubeproxy.model.errors import ConfigError


def _check(given: FlagTexts) -> int:
    loaded = load(given)
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    manifests = loaded.configuration.kubeproxy.manifests
    if not manifests.paths:
        click.echo("configuration is valid")
        return 0

    from kubeproxy.sources.manifests.check import check as check_manifests

    survey = check_manifests(
        manifests.paths,
        recursive=manifests.recursive,
        default_namespace=manifests.default_namespace,
        enforced_namespace=manifests.namespace or None,
    )
    if survey.faults:
        raise ConfigError(*survey.faults)
    counts = (survey.services, "Service"), (survey.slices, "EndpointSlice"), (survey.manifests, "manifest")
    services, slices, read = (f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts)
    click.echo(f"configuration and manifests are valid: {services} and {slices} in {read}")
    return 0


_SETTINGS = {name: flag for name, flag in flags().items() if flag not in ACTIONS or name == "config"}

check = GoCommand(
    "check",
    _SETTINGS,
    _check,
    short="Check configuration and manifests.",
    text=(
        "Changes nothing. Takes the same flags as `kubeproxy run`. Each fault is one line on standard error, and the"
        " exit status is then 64."
    ),
)
