"""The command line: kube-proxy's flags by their names, and those of our own settings, in one table.

Most flags are declared at their field in the schema; those without a field of their own are listed here. With
``--config``, kube-proxy ignores all flags but a few (cmd/kube-proxy/app/options.go); the flags of our own settings win
over the file as those few do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from msgspec import inspect

from kubeproxy.config.convert import Findings, convert_flag, is_zero
from kubeproxy.config.describe import describe
from kubeproxy.config.fields import Field, fields, plain
from kubeproxy.config.value_types import Duration, ServerAddress
from kubeproxy.model import parse_address

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

_PORTS: Final = (
    Flag(
        "healthz-port", _PORT, "Deprecated: port for --healthz-bind-address; 0: none.", "healthzBindAddress", wins=False
    ),
    Flag(
        "metrics-port", _PORT, "Deprecated: port for --metrics-bind-address; 0: none.", "metricsBindAddress", wins=False
    ),
)
_INIT_ONLY: Final = Flag(
    "init-only", _SWITCH, "Of kube-proxy; the daemon needs no initialization by somebody else, so it must be false."
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
    return {flag.name: flag for flag in (*ACTIONS, *of_fields, *_PORTS, _INIT_ONLY, *_WITHOUT_FIELD)}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was given, in types."""

    settings: Mapping[str, Any]
    """Values by the path of their field, only of those flags that count."""
    ports: Mapping[str, int]
    """Ports for the servers whose fields these are, whatever their address; 0 turns one off."""
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
        if name not in given:
            continue
        texts = list(given[name])
        if flag in ACTIONS:
            value = convert_flag(flag.kind, texts, flag.dashed, findings)
            actions[name] = str(value).lower() if isinstance(value, bool) else texts[-1]
        elif flag in _PORTS:
            pass  # together, below
        elif flag.ignored:
            convert_flag(flag.kind, texts, flag.dashed, findings)
        elif flag is _INIT_ONLY:
            if convert_flag(flag.kind, texts, flag.dashed, findings):
                findings.fault(flag.dashed, "true", "false: the daemon needs no initialization by somebody else")
        else:
            value = _value(flag, fields()[flag.path], texts, findings)
            if value is not None and (flag.wins or not with_file):
                settings[flag.path] = value
        if with_file and not flag.wins:
            beaten.append(flag.dashed)
    ports = _read_ports(given, findings)
    if beaten:
        findings.warnings.append(f"ignored because of --config: {', '.join(beaten)}")
    ignored = [flag.dashed for flag in _WITHOUT_FIELD if flag.name in given]
    return CommandLine(settings, {} if with_file else ports, actions, ignored)


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
    if field.path == "hostnameOverride":
        name = last.strip().lower()
        if last and not name:
            findings.fault(flag.dashed, describe(last), "a host's name")
        return name or None
    return convert_flag(flag.kind, texts, flag.dashed, findings)


def _read_ports(given: Mapping[str, Sequence[str]], findings: Findings) -> dict[str, int]:
    """The deprecated port flags that count: 0 turns a server off; a port given with its address wins over any other."""
    ports = {}
    for flag in _PORTS:
        if flag.name in given:
            port = convert_flag(flag.kind, list(given[flag.name]), flag.dashed, findings)
            address = given.get(fields()[flag.path].flag)
            if port == 0 or (port is not None and (address is None or _is_bare(address[-1]))):
                ports[flag.path] = port
    return ports


def _is_bare(address: str) -> bool:
    """Whether a server's address comes without a port."""
    try:
        parse_address(address.strip("[]"))
    except ValueError:
        return False
    return True
