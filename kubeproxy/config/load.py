"""File and flags to a `Configuration`, or to every fault that they have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import Struct, inspect

from kubeproxy.config import flags
from kubeproxy.config.convert import Findings, convert, is_zero, join
from kubeproxy.config.describe import describe
from kubeproxy.config.fields import build, fields, members, plain
from kubeproxy.config.schema import API_VERSION, KIND, Configuration
from kubeproxy.config.validate import unused, validate
from kubeproxy.config.value_types import IP, HealthzAddress, MetricsAddress
from kubeproxy.model import Family
from kubeproxy.model.errors import ConfigError

MOST_CHARACTERS = 1_000_000
"""How long a file may be. A whole configuration has a few thousand characters."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration without faults."""

    configuration: Configuration
    actions: Mapping[str, str]
    """The flags that say what to do, such as ``write-config-to``, with their texts."""
    warnings: tuple[str, ...]


def load(given: Mapping[str, Sequence[str]]) -> Loaded:
    """The configuration of a command line (texts by flag name) and of the file that it may name.

    ConfigError holds all faults of the file and of the flags; those between fields show once there are no others.
    """
    findings = Findings()
    command_line = flags.read(given, findings)
    settings: dict[str, Any] = {}
    if path := command_line.actions.get("config"):
        settings = _read_file(Path(path), findings)
    settings |= command_line.settings
    _complete(settings, command_line.ports)
    if not findings.faults:
        configuration = build(settings)
        validate(configuration, findings)
    if findings.faults:
        raise ConfigError(*findings.faults)
    if line := unused(configuration, command_line.ignored):
        findings.warnings.append(line)
    return Loaded(configuration, command_line.actions, tuple(findings.warnings))


def read(text: str, findings: Findings, *, name: str) -> dict[str, Any]:
    """The values that a file's text sets, by the path of their field; faults of the text as a whole bear its name."""
    from kubeproxy.config import parse

    try:
        data, warnings = parse.parse(text)
    except ValueError as error:
        findings.fault(name, f"what is neither YAML nor JSON ({error})", f"a {KIND} in YAML or JSON")
        return {}
    findings.warnings.extend(warnings)
    if not isinstance(data, Mapping):
        findings.fault(name, describe(data), f"a map with apiVersion {API_VERSION} and kind {KIND}")
        return {}
    for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if data.get(name) != wanted:
            findings.fault(name, describe(data.get(name)), wanted)
    if data.get("apiVersion") == API_VERSION and data.get("kind") == KIND:
        settings: dict[str, Any] = {}
        _read_group(Configuration, data, "", settings, findings)
        return settings
    return {}


def _read_file(path: Path, findings: Findings) -> dict[str, Any]:
    try:
        text = _read_text(path)
    except OSError as error:
        findings.fault("--config", f"{describe(str(path))} ({error.strerror})", "a file that can be read")
    except UnicodeDecodeError as error:
        findings.fault("--config", f"{describe(str(path))}, which is not UTF-8 (byte {error.start})", "a text file")
    else:
        if len(text) <= MOST_CHARACTERS:
            return read(text, findings, name=str(path))
        findings.fault("--config", f"{describe(str(path))}, of more than {MOST_CHARACTERS} characters", f"a {KIND}")
    return {}


def _read_text(path: Path) -> str:
    """No more than is needed to see that it is too much."""
    # O_NONBLOCK: a pipe may have taken the file's place, and opening one waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    with open(descriptor, encoding="utf-8-sig") as file:
        return file.read(MOST_CHARACTERS + 1)


def _read_group(
    group: type[Struct], data: Mapping[Any, Any], prefix: str, settings: dict[str, Any], findings: Findings
) -> None:
    known = members(group)
    for name, value in data.items():
        path = join(prefix, name)
        if name not in known:
            findings.unknown(path, name, known)
            continue
        kind = plain(known[name].type)
        if value is None:
            continue
        if not isinstance(kind, inspect.StructType):
            if (field := fields().get(path)) and not (field.zero_is_default and is_zero(value)):
                settings[path] = convert(field.type, value, path, findings)
        elif isinstance(value, Mapping):
            _read_group(kind.cls, value, path, settings, findings)
        else:
            findings.fault(path, describe(value), f"a map of {', '.join(members(kind.cls))}")


def _complete(settings: dict[str, Any], ports: Mapping[str, int]) -> None:
    """Values that depend on another field: as in kube-proxy, an IPv6 bind address takes the servers along."""
    bind = settings.get("bindAddress")
    if isinstance(bind, IP) and bind.family is Family.IPV6:
        settings.setdefault("healthzBindAddress", HealthzAddress.parse("[::]"))
        settings.setdefault("metricsBindAddress", MetricsAddress.parse("[::1]"))
    for path, port in ports.items():
        if address := settings.get(path, fields()[path].default):
            settings[path] = replace(address, port=port)
