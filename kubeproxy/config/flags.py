"""The table of all command line flags: kube-proxy's flags, and the flags of the project's own settings.

The schema declares most flags together with their fields. This module lists the flags without a field. With
``--config``, kube-proxy ignores nearly all flags (cmd/kube-proxy/app/options.go). The exceptions, and the flags of the
project's own settings, override the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from msgspec import inspect

from kubeproxy.config.address_types import ServerAddress
from kubeproxy.config.describe import describe
from kubeproxy.config.fields import Field, fields, plain
from kubeproxy.config.typed_values import Diagnostics, convert_flag, is_zero
from kubeproxy.config.value_types import Duration
from kubeproxy.model import parse_address

_TEXT: Final = inspect.StrType()
_SWITCH: Final = inspect.BoolType()
_PORT: Final = inspect.IntType(ge=0, le=65535)

_OVERRIDES_FILE: Final = ("hostnameOverride", "logging.", "kubeproxy.")
"""The fields whose flags override the file. A name with a dot at its end is a group."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag."""

    name: str
    """The flag's name without dashes."""
    kind: inspect.Type
    text: str
    path: str = ""
    """The path of the field that the flag sets, or empty if it sets none."""
    overrides_file: bool = True
    """Whether the flag overrides the file of ``--config``. Otherwise it is ignored if there is a file."""
    ignored: bool = False
    """Whether the flag has no effect, and is accepted only for compatibility with kube-proxy."""

    @property
    def switch(self) -> bool:
        """Return whether the flag needs no value, because ``--name`` means ``--name=true``."""
        kind = plain(self.kind)
        return isinstance(kind, inspect.BoolType) or (isinstance(kind, inspect.LiteralType) and "true" in kind.values)

    @property
    def dashed(self) -> str:
        """Return the flag's name with dashes."""
        return f"--{self.name}" if len(self.name) > 1 else f"-{self.name}"


def _ignored(name: str, kind: inspect.Type, text: str) -> Flag:
    return Flag(name, kind, text, ignored=True)


ACTIONS: Final = (
    Flag("config", _TEXT, "Configuration file, YAML or JSON: a KubeProxyConfiguration."),
    Flag("write-config-to", _TEXT, "Write the whole configuration, including defaults, to this file and exit."),
    Flag("cleanup", _SWITCH, "Remove packet filter rules of kubeproxy and of kube-proxy's userspace mode, and exit."),
    Flag("init-only", _SWITCH, "Size connection tracking, which takes more privileges than the daemon, and exit."),
    Flag("version", inspect.LiteralType(("true", "false", "raw")), "Print the version and exit."),
)  # fmt: skip
"""The flags that select an action and are not settings."""

_PORTS: Final = (
    Flag(
        "healthz-port",
        _PORT,
        "Deprecated: port for --healthz-bind-address; 0: none.",
        "healthzBindAddress",
        overrides_file=False,
    ),
    Flag(
        "metrics-port",
        _PORT,
        "Deprecated: port for --metrics-bind-address; 0: none.",
        "metricsBindAddress",
        overrides_file=False,
    ),
)
_WITHOUT_FIELD: Final = (
    _ignored("cleanup-ipvs", _SWITCH, "Of kube-proxy; here `kubeproxy cleanup --ipvs`."),
    _ignored("logtostderr", _SWITCH, "Of klog; the log goes to stderr."),
    _ignored("alsologtostderr", _SWITCH, "Of klog; the log goes to stderr."),
    _ignored("log-dir", _TEXT, "Of klog; the log goes to stderr."),
    _ignored("log-file", _TEXT, "Of klog; the log goes to stderr."),
    _ignored("log-file-max-size", inspect.IntType(ge=0), "Of klog; the log goes to stderr."),
    _ignored("stderrthreshold", _TEXT, "Of klog; the log goes to stderr."),
    _ignored("skip-headers", _SWITCH, "Of klog."),
    _ignored("skip-log-headers", _SWITCH, "Of klog."),
    _ignored("add-dir-header", _SWITCH, "Of klog."),
    _ignored("one-output", _SWITCH, "Of klog."),
    _ignored("log-backtrace-at", _TEXT, "Of klog."),
    _ignored("log-text-split-stream", _SWITCH, "Of klog; the log goes to stderr."),
    _ignored("log-text-info-buffer-size", _TEXT, "Of klog; nothing is buffered."),
    _ignored("log-json-split-stream", _SWITCH, "Of klog; the log goes to stderr."),
    _ignored("log-json-info-buffer-size", _TEXT, "Of klog; nothing is buffered."),
)


@cache
def flags() -> Mapping[str, Flag]:
    """Return all flags by name."""
    of_fields = [
        Flag(field.flag, field.type, field.text, field.path, overrides_file=field.path.startswith(_OVERRIDES_FILE))
        for field in fields().values()
        if field.flag
    ]
    return {flag.name: flag for flag in (*ACTIONS, *of_fields, *_PORTS, *_WITHOUT_FIELD)}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Holds what a command line sets, and the flags in it that have no effect."""

    settings: Mapping[str, Any]
    """The values by the path of their field. Values of ignored flags are left out."""
    ports: Mapping[str, int]
    """The values of the deprecated port flags, by the field of the server. Port 0 turns a server off."""
    actions: Mapping[str, str]
    """The values of action flags, by flag name."""
    ignored: Sequence[str]
    """The given flags that have no effect, with dashes."""


def read(given: Mapping[str, Sequence[str]], diagnostics: Diagnostics) -> CommandLine:
    """Convert the flags of a command line to settings. `given` has the texts of each flag by name, in their order.

    An invalid value is a fault even if the flag is ignored because of ``--config``. One warning lists the flags that
    are ignored for that reason.
    """
    settings: dict[str, Any] = {}
    actions: dict[str, str] = {}
    with_file = bool(given.get("config", [""])[-1])
    overridden = []
    for name, flag in flags().items():
        if name not in given:
            continue
        texts = list(given[name])
        if flag in ACTIONS:
            value = convert_flag(flag.kind, texts, flag.dashed, diagnostics)
            actions[name] = str(value).lower() if isinstance(value, bool) else texts[-1]
        elif flag in _PORTS:
            pass  # Read by `_read_ports`.
        elif flag.ignored:
            convert_flag(flag.kind, texts, flag.dashed, diagnostics)
        else:
            value = _value(flag, fields()[flag.path], texts, diagnostics)
            if value is not None and (flag.overrides_file or not with_file):
                settings[flag.path] = value
        if with_file and not flag.overrides_file:
            overridden.append(flag.dashed)
    ports = _read_ports(given, diagnostics)
    if overridden:
        diagnostics.warnings.append(f"ignored because of --config: {', '.join(overridden)}")
    ignored = [flag.dashed for flag in _WITHOUT_FIELD if flag.name in given]
    return CommandLine(settings, {} if with_file else ports, actions, ignored)


def _value(flag: Flag, field: Field, texts: list[str], diagnostics: Diagnostics) -> Any:
    """Convert the texts of a flag to the value of its field. Return None if that is the default, or after adding a
    fault."""
    kind, last = plain(flag.kind), texts[-1]
    if isinstance(kind, inspect.DataclassType) and issubclass(kind.cls, ServerAddress) and not last:
        return replace(field.default, port=0)
    if isinstance(kind, inspect.DataclassType) and issubclass(kind.cls, Duration):
        value = convert_flag(flag.kind, texts, flag.dashed, diagnostics)
        # On the command line 0 means 0. In a field where 0 means the default, it is stored as the shortest duration.
        return replace(value, nanoseconds=1) if field.zero_is_default and value and not value.nanoseconds else value
    if field.zero_is_default and is_zero(last):
        return None
    if field.path == "hostnameOverride":
        name = last.strip().lower()
        if last and not name:
            diagnostics.fault(flag.dashed, describe(last), "a host's name")
        return name or None
    return convert_flag(flag.kind, texts, flag.dashed, diagnostics)


def _read_ports(given: Mapping[str, Sequence[str]], diagnostics: Diagnostics) -> dict[str, int]:
    """Return the ports of the deprecated port flags, by the field of the server. If the address flag has a port, too, a
    port flag counts only if it is 0."""
    ports = {}
    for flag in _PORTS:
        if flag.name in given:
            port = convert_flag(flag.kind, list(given[flag.name]), flag.dashed, diagnostics)
            address = given.get(fields()[flag.path].flag)
            if port == 0 or (port is not None and (address is None or _is_bare(address[-1]))):
                ports[flag.path] = port
    return ports


def _is_bare(address: str) -> bool:
    """Return whether a server's address is given without a port."""
    try:
        parse_address(address.strip("[]"))
    except ValueError:
        return False
    return True
