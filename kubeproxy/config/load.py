"""Loads a `Configuration` from a file and flags, or reports all faults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import Struct, inspect

from kubeproxy.config import flags
from kubeproxy.config.address_types import IP, HealthzAddress, MetricsAddress
from kubeproxy.config.describe import describe
from kubeproxy.config.fields import build, fields, members, plain
from kubeproxy.config.schema import API_VERSION, KIND, Configuration
from kubeproxy.config.typed_values import Diagnostics, convert, is_zero, join
from kubeproxy.config.validate import unused, validate
from kubeproxy.model import Family
from kubeproxy.model.errors import ConfigError

MAX_CHARACTERS = 1_000_000
"""The largest number of characters in a file. A whole configuration has a few thousand."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration, and the rest of the command line."""

    configuration: Configuration
    actions: Mapping[str, str]
    """The values of the flags that select an action, such as ``write-config-to``, by flag name."""
    warnings: tuple[str, ...]


def load(given: Mapping[str, Sequence[str]]) -> Loaded:
    """Load the configuration from a command line and from the file that ``--config`` names. `given` has the texts of
    each flag by name.

    Raise ConfigError with all faults of file and flags. Rules between fields are checked only if there are no other
    faults.
    """
    diagnostics = Diagnostics()
    command_line = flags.read(given, diagnostics)
    settings: dict[str, Any] = {}
    if path := command_line.actions.get("config"):
        settings = _read_file(Path(path), diagnostics)
    settings |= command_line.settings
    _complete(settings, command_line.ports)
    if not diagnostics.faults:
        configuration = build(settings)
        validate(configuration, diagnostics)
    if diagnostics.faults:
        raise ConfigError(*diagnostics.faults)
    if line := unused(configuration, command_line.ignored):
        diagnostics.warnings.append(line)
    return Loaded(configuration, command_line.actions, tuple(diagnostics.warnings))


def read_partly(path: Path) -> tuple[dict[str, Any], Sequence[str]]:
    """Read as much of a file as is valid. Return the valid values by path, and the faults."""
    diagnostics = Diagnostics()
    settings = _read_file(path, diagnostics)
    _complete(settings, {})
    return {name: value for name, value in settings.items() if value is not None}, diagnostics.faults


def read(text: str, diagnostics: Diagnostics, *, name: str) -> dict[str, Any]:
    """Parse the text of a file, and return the values by path. `name` is the file's name, for faults of the whole
    text."""
    from kubeproxy.config import read_text

    try:
        data, warnings = read_text.parse(text)
    except ValueError as error:
        diagnostics.fault(name, f"what is neither YAML nor JSON ({error})", f"a {KIND} in YAML or JSON")
        return {}
    diagnostics.warnings.extend(warnings)
    if not isinstance(data, Mapping):
        diagnostics.fault(name, describe(data), f"a map with apiVersion {API_VERSION} and kind {KIND}")
        return {}
    for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if data.get(name) != wanted:
            diagnostics.fault(name, describe(data.get(name)), wanted)
    if data.get("apiVersion") == API_VERSION and data.get("kind") == KIND:
        settings: dict[str, Any] = {}
        _read_group(Configuration, data, "", settings, diagnostics)
        return settings
    return {}


def _read_file(path: Path, diagnostics: Diagnostics) -> dict[str, Any]:
    try:
        text = _read_text(path)
    except OSError as error:
        diagnostics.fault("--config", f"{describe(str(path))} ({error.strerror})", "a file that can be read")
    except UnicodeDecodeError as error:
        diagnostics.fault("--config", f"{describe(str(path))}, which is not UTF-8 (byte {error.start})", "a text file")
    else:
        if len(text) <= MAX_CHARACTERS:
            return read(text, diagnostics, name=str(path))
        diagnostics.fault("--config", f"{describe(str(path))}, of more than {MAX_CHARACTERS} characters", f"a {KIND}")
    return {}


def _read_text(path: Path) -> str:
    """Return the text of a file, at most one character more than the limit."""
    # O_NONBLOCK: the file may be a pipe, and opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    with open(descriptor, encoding="utf-8-sig") as file:
        return file.read(MAX_CHARACTERS + 1)


def _read_group(
    group: type[Struct], data: Mapping[Any, Any], prefix: str, settings: dict[str, Any], diagnostics: Diagnostics
) -> None:
    known = members(group)
    for name, value in data.items():
        path = join(prefix, name)
        if name not in known:
            diagnostics.unknown(path, name, known)
            continue
        kind = plain(known[name].type)
        if value is None:
            continue
        if not isinstance(kind, inspect.StructType):
            if (field := fields().get(path)) and not (field.zero_is_default and is_zero(value)):
                settings[path] = convert(field.type, value, path, diagnostics)
        elif isinstance(value, Mapping):
            _read_group(kind.cls, value, path, settings, diagnostics)
        else:
            diagnostics.fault(path, describe(value), f"a map of {', '.join(members(kind.cls))}")


def _complete(settings: dict[str, Any], ports: Mapping[str, int]) -> None:
    """Add values that follow from other fields: ports from the deprecated flags, and, as in kube-proxy, IPv6 addresses
    of the servers if bindAddress is IPv6."""
    bind = settings.get("bindAddress")
    if isinstance(bind, IP) and bind.family is Family.IPV6:
        settings.setdefault("healthzBindAddress", HealthzAddress.parse("[::]"))
        settings.setdefault("metricsBindAddress", MetricsAddress.parse("[::1]"))
    for path, port in ports.items():
        if address := settings.get(path, fields()[path].default):
            settings[path] = replace(address, port=port)
