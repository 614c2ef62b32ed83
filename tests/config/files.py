"""Configuration files for tests, and their faults."""

from __future__ import annotations

from pathlib import Path

from kubeproxy.config.load import Loaded, load
from kubeproxy.model.errors import ConfigError

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def write(directory: Path, body: str, *, head: str = HEAD) -> str:
    """Write a file with this body and return its path."""
    path = directory / "config.yaml"
    path.write_text(head + body, encoding="utf-8")
    return str(path)


def loaded(directory: Path, body: str = "", **flags: str) -> Loaded:
    """Load a file with this body and these flags (`_` for `-`)."""
    given = {name.replace("_", "-"): [text] for name, text in flags.items()}
    return load({"config": [write(directory, body)], **given})


def of_flags(**flags: str) -> Loaded:
    """Load flags without a file."""
    return load({name.replace("_", "-"): [text] for name, text in flags.items()})


def faults(directory: Path, body: str = "", **flags: str) -> list[str]:
    """The faults of a file with this body, without the allowed values."""
    try:
        loaded(directory, body, **flags)
    except ConfigError as error:
        return [fault.partition("; allowed: ")[0] for fault in error.faults]
    return []
