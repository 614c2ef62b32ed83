"""Writes a configuration as a file. `load` reads the file to an equal configuration."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from kubeproxy.config.fields import members
from kubeproxy.config.schema import Configuration
from kubeproxy.config.value_types import Leaf


def dump(configuration: Configuration) -> str:
    """Return the whole configuration, with all defaults, as YAML."""
    import yaml

    return yaml.safe_dump(plain_data(configuration), sort_keys=False)


def plain_data(value: Any) -> Any:
    """Convert a value to plain data for JSON or YAML, with the field names of the file."""
    match value:
        case Struct():
            return {name: plain_data(getattr(value, member.name)) for name, member in members(type(value)).items()}
        case Leaf():
            return str(value)
        case tuple():
            return [plain_data(item) for item in value]
        case dict():
            return {key: plain_data(item) for key, item in value.items()}
        case _:
            return value


def go_data(configuration: Configuration) -> dict[str, Any]:
    """Return the configuration with Go's field names, as in kube-proxy's /configz, without credentials of manifest
    URLs."""
    shown = plain_data(configuration)
    for key in ("apiVersion", "kind"):  # kube-proxy does not show these.
        del shown[key]
    manifests = shown["kubeproxy"]["manifests"]
    manifests["paths"] = [_LOGIN.sub("xxxxx@", path) for path in manifests["paths"]]
    return {go_name(name): value if name in _AS_IN_THE_FILE else _renamed(value) for name, value in shown.items()}


def go_name(name: str) -> str:
    """Return Go's name for a field of the file, which is capitalized, with abbreviations in capitals."""
    if name in _GO_NAMES:
        return _GO_NAMES[name]
    first, rest = re.fullmatch(r"([a-z0-9]+)(.*)", name).groups()  # type: ignore[union-attr]
    return (first.upper() if first in _ABBREVIATIONS else first.capitalize()) + rest


_GO_NAMES: Final = {"iptables": "IPTables", "nftables": "NFTables"}
_ABBREVIATIONS: Final = frozenset(("ipvs", "oom", "qps", "snat", "tcp", "udp"))
_AS_IN_THE_FILE: Final = frozenset(("featureGates", "logging"))
"""The top-level fields whose contents keep the names of the file, as in kube-proxy's /configz."""
_LOGIN: Final = re.compile(r"(?<=://)[^/@]*@")


def _renamed(value: Any) -> Any:
    match value:
        case dict():
            return {go_name(name): _renamed(item) for name, item in value.items()}
        case list():
            return [_renamed(item) for item in value]
        case _:
            return value
