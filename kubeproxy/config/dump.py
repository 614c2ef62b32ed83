"""A configuration as a file that `load` reads back to an equal one."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kubeproxy.config.fields import members
from kubeproxy.config.schema import Configuration
from kubeproxy.config.values import Leaf


def dump(configuration: Configuration) -> str:
    """The whole of it as YAML, defaults included."""
    import yaml

    return yaml.safe_dump(plain_data(configuration), sort_keys=False)


def plain_data(value: Any) -> Any:
    """What JSON and YAML can hold, under the names of the file."""
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
    """The same under the names of Go's fields, as kube-proxy's /configz shows it."""

    def renamed(value: Any) -> Any:
        match value:
            case dict():
                return {name[:1].upper() + name[1:]: renamed(item) for name, item in value.items()}
            case list():
                return [renamed(item) for item in value]
            case _:
                return value

    gates = dict(configuration.feature_gates)
    return {**renamed(plain_data(configuration)), "FeatureGates": gates}
