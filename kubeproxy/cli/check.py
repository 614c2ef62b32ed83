"""Implements ``kubeproxy check``, which checks configuration and manifests."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import inspect

from kubeproxy.cli.go_flags import FlagTexts, GoCommand
from kubeproxy.config.flags import ACTIONS, Flag, flags
from kubeproxy.config.load import load
from kubeproxy.config.typed_values import Diagnostics, convert_flag
from kubeproxy.config.validate import require_source
from kubeproxy.model.errors import ConfigError
from kubeproxy.runtime.output import echo

if TYPE_CHECKING:
    from kubeproxy.sources.manifests.check import Survey

_STRICT: Final = Flag("strict", inspect.BoolType(), "Treat warnings as faults: exit status 64.")


def _check(given: FlagTexts) -> int:
    from kubeproxy.daemon import check_files

    file = next(iter(given.get("config", ())), "")
    try:
        loaded = load(given)
    except ConfigError as error:
        raise ConfigError(*(_placed(fault, file, "error") for fault in error.faults)) from error
    warnings = [_placed(warning, file, "warning") for warning in loaded.warnings]
    faults = [_placed(fault, file, "error") for fault in check_files.faults(loaded.configuration, os.environ)]
    try:
        require_source(loaded.configuration, os.environ)
    except ConfigError as error:
        warnings += [f"warning: {fault}" for fault in error.faults]
    manifests = loaded.configuration.kubeproxy.manifests
    survey = None
    if manifests.paths and not faults:
        from kubeproxy.daemon.settings import manifest_terms
        from kubeproxy.sources.manifests.check import check as check_manifests

        survey = check_manifests(
            manifests.paths,
            recursive=manifests.recursive,
            terms=manifest_terms(loaded.configuration),
        )
        faults += survey.faults
        warnings += survey.warnings
    for warning in warnings:
        echo(warning, err=True)
    if faults:
        raise ConfigError(*faults)
    if warnings and _is_strict(given):
        raise ConfigError(f"{len(warnings)} {'warning' if len(warnings) == 1 else 'warnings'}, and --strict is given")
    echo("configuration is valid" if survey is None else _summary(survey))
    return 0


def _placed(message: str, file: str, kind: str) -> str:
    """Return ``FILE:LINE: KIND: MESSAGE`` for a message about a field or a line of the configuration file. `kind` is
    ``error`` or ``warning``.

    Return other messages, such as about a flag, without file and line.
    """
    from kubeproxy.kubernetes.manifests.lines import line_of

    try:
        text = Path(file).read_bytes() if file else b""
    except OSError:
        text = b""
    if given_twice := re.match(r"line (\d+): ", message):
        return f"{file}:{given_twice[1]}: {kind}: {message[given_twice.end() :]}"
    path = message.partition(": ")[0]
    top = re.match(r"[A-Za-z]+", path)
    if not text or top is None or not re.search(rf"(?m)^\W*{top[0]}\W*:", text.decode(errors="replace")):
        return message if kind == "error" else f"{kind}: {message}"
    return f"{file}:{line_of(text, path, first=1)}: {kind}: {message}"


def _is_strict(given: FlagTexts) -> bool:
    diagnostics = Diagnostics()
    strict = _STRICT.name in given and convert_flag(
        _STRICT.kind, list(given[_STRICT.name]), _STRICT.dashed, diagnostics
    )
    if diagnostics.faults:
        raise ConfigError(*diagnostics.faults)
    return bool(strict)


def _summary(survey: Survey) -> str:
    counts = (survey.services, "Service"), (survey.slices, "EndpointSlice"), (survey.manifests, "manifest")
    services, slices, read = (f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts)
    ignored = ", ".join(f"{number} {what}" for what, number in survey.ignored.items())
    return (
        f"configuration and manifests are valid: {services} and {slices} in {read}"
        f"{f'; ignored: {ignored}' if ignored else ''}"
    )


_SETTINGS = {name: flag for name, flag in flags().items() if flag not in ACTIONS or name == "config"}

check = GoCommand(
    "check",
    {_STRICT.name: _STRICT, **_SETTINGS},
    _check,
    short="Check configuration and manifests.",
    text=(
        "Changes nothing. Takes the same flags as `kubeproxy run`, opens every file that the configuration names, and"
        " reads all manifests. Each fault is one line on standard error, FILE:LINE: error: FIELD: MESSAGE, and the exit"
        " status is then 64. Likely mistakes (unknown fields, slices without a Service, ports that match nothing, an"
        " address that two Services have) are warnings."
    ),
)
