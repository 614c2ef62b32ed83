"""The command line: kube-proxy's flags by their names, and those of our own settings, in one table.

Most flags are declared at their field in the schema; those without a field of their own are listed here. With
``--config``, kube-proxy ignores all flags but a few (cmd/kube-proxy/app/options.go); the flags of our own settings win
over the file as those few do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from msgspec import inspect

from kubeproxy.config.convert import Findings, convert_flag, is_zero
from kubeproxy.config.fields import Field, fields, plain
from kubeproxy.config.values import Duration, HealthzAddress, MetricsAddress, ServerAddress
from kubeproxy.config.words import describe

_TEXT: Final = inspect.StrType()
_SWITCH: Final = inspect.BoolType()
_PORT: Final = inspect.IntType(ge=0, le=65535)

_WINS: Final = ("hostnameOverride", "logging.", "kubeproxy.")
"""Fields whose flags win over the file: kube-proxy's own exceptions, and our settings."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag."""

    name: str
    """Without dashes."""
    kind: inspect.Type
    text: str
    path: str = ""
    """The field that it sets; empty: none."""
    wins: bool = True
    """Whether it counts beside ``--config``."""
    ignored: bool = False
    """Accepted for kube-proxy's sake only."""

    @property
    def switch(self) -> bool:
        """Whether ``--name`` alone means ``--name=true``."""
        kind = plain(self.kind)
        return isinstance(kind, inspect.BoolType) or (isinstance(kind, inspect.LiteralType) and "true" in kind.values)

    @property
    def dashed(self) -> str:
        """As it is typed."""
        return f"--{self.name}" if len(self.name) > 1 else f"-{self.name}"


def _ignored(name: str, kind: inspect.Type, text: str) -> Flag:
    return Flag(name, kind, text, ignored=True)


ACTIONS: Final = (
    Flag("config", _TEXT, "Configuration file, YAML or JSON: a KubeProxyConfiguration."),
    Flag("write-config-to", _TEXT, "Write the whole configuration, defaults and all, to this file and exit."),
    Flag("cleanup", _SWITCH, "Remove all packet filter rules of ours and of kube-proxy's userspace mode, and exit."),
    Flag("version", inspect.LiteralType(("true", "false", "raw")), "Print the version and exit."),
)  # fmt: skip
"""What to do, rather than how to be."""

_SPECIAL: Final = (
    Flag(
        "healthz-port", _PORT, "Deprecated: port for --healthz-bind-address; 0: none.", "healthzBindAddress", wins=False
    ),
    Flag(
        "metrics-port", _PORT, "Deprecated: port for --metrics-bind-address; 0: none.", "metricsBindAddress", wins=False
    ),
    Flag("init-only", _SWITCH, "Of kube-proxy; there is no separate initialization here, so it must be false."),
)
_WITHOUT_FIELD: Final = (
    _ignored("cleanup-ipvs", _SWITCH, "Of kube-proxy; removed rules include none of IPVS."),
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
    """Every flag by its name."""
    of_fields = [
        Flag(field.flag, field.type, field.text, field.path, wins=field.path.startswith(_WINS))
        for field in fields().values()
        if field.flag
    ]
    return {flag.name: flag for flag in (*ACTIONS, *of_fields, *_SPECIAL, *_WITHOUT_FIELD)}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was given, in types."""

    settings: Mapping[str, Any]
    """Values by the path of their field, only of those flags that count."""
    actions: Mapping[str, str]
    """What to do, by the flag's name."""
    ignored: Sequence[str]
    """Flags, as typed, that were accepted only."""


def read(given: Mapping[str, Sequence[str]], findings: Findings) -> CommandLine:
    """The settings of a command line: texts by flag name, in the order in which they were given.

    Wrong values are faults also where the file wins; that flags do not count beside the file is one warning.
    """
    settings: dict[str, Any] = {}
    actions: dict[str, str] = {}
    with_file = bool(given.get("config", [""])[-1])
    beaten = []
    for name, flag in flags().items():
        if name not in given or flag in _SPECIAL:
            continue
        texts = list(given[name])
        if flag in ACTIONS:
            value = convert_flag(flag.kind, texts, flag.dashed, findings)
            actions[name] = str(value).lower() if isinstance(value, bool) else texts[-1]
        elif flag.ignored:
            convert_flag(flag.kind, texts, flag.dashed, findings)
        else:
            value = _value(flag, fields()[flag.path], texts, findings)
            if value is not None and (flag.wins or not with_file):
                settings[flag.path] = value
        if with_file and not flag.wins:
            beaten.append(flag.dashed)
    beaten += _read_special(given, settings, findings, with_file=with_file)
    if beaten:
        findings.warnings.append(f"ignored because of --config: {', '.join(beaten)}")
    return CommandLine(settings, actions, [flag.dashed for flag in _WITHOUT_FIELD if flag.name in given])


def _value(flag: Flag, field: Field, texts: list[str], findings: Findings) -> Any:
    """A field's value from its flag; None where the default is to stand, or there is a fault."""
    kind, last = plain(flag.kind), texts[-1]
    if isinstance(kind, inspect.DataclassType) and issubclass(kind.cls, ServerAddress) and not last:
        return replace(field.default, port=0)
    if isinstance(kind, inspect.DataclassType) and issubclass(kind.cls, Duration):
        value = convert_flag(flag.kind, texts, flag.dashed, findings)
        # In the file 0 stands for the default, on the command line for itself: the shortest wait that can be written.
        return replace(value, nanoseconds=1) if field.zero_is_default and value and not value.nanoseconds else value
    if field.zero_is_default and is_zero(last):
        return None
    if field.path == "hostnameOverride" and last:
        last = last.strip().lower()
        if not last:
            findings.fault(flag.dashed, describe(texts[-1]), "a host's name")
        return last
    return convert_flag(flag.kind, texts, flag.dashed, findings)


def _read_special(
    given: Mapping[str, Sequence[str]], settings: dict[str, Any], findings: Findings, *, with_file: bool
) -> Iterable[str]:
    """Flags that bear on a field together with another flag. Returns those that do not count beside the file."""
    beaten = []
    servers: dict[str, tuple[type[ServerAddress], str]] = {
        "healthz-port": (HealthzAddress, "healthz-bind-address"),
        "metrics-port": (MetricsAddress, "metrics-bind-address"),
    }
    for flag in _SPECIAL:
        if flag.name not in given:
            continue
        value = convert_flag(flag.kind, list(given[flag.name]), flag.dashed, findings)
        if flag.name not in servers:
            if value:
                findings.fault(
                    flag.dashed, "true", "false: there is no separate initialization; the daemon does its own"
                )
        elif with_file:
            beaten.append(flag.dashed)
        elif value is not None:
            server, other = servers[flag.name]
            _set_port(settings, flag.path, server, value, address=(given.get(other) or [""])[-1])
    return beaten


def _set_port(settings: dict[str, Any], path: str, server: type[ServerAddress], port: int, *, address: str) -> None:
    """The deprecated port flags: 0 turns the server off; a port given with the address wins."""
    default: ServerAddress = fields()[path].default
    current: ServerAddress = settings.get(path, default)
    has_port = address and address not in (str(current.address), f"[{current.address}]")
    if port == 0 or not has_port:
        settings[path] = server(current.address, port)
