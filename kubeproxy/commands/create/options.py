"""The command line of ``kubeproxy create``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kubeproxy.kubernetes.client.kubeconfig import Overrides

FIELD_MANAGER = "kubeproxy-create"


class NothingToDo(Exception):
    """The user has taken everything back: no error."""


class DryRun(StrEnum):
    """How far an object gets."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


class Validation(StrEnum):
    """What becomes of fields that the server does not know, and of keys that are there twice."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions:
    """One command line, checked as far as that is possible without reading anything."""

    filenames: tuple[str, ...] = ()
    recursive: bool = False
    selector: str = ""
    dry_run: DryRun = DryRun.NONE
    validation: Validation = Validation.STRICT
    output: str = ""
    show_managed_fields: bool = False
    save_config: bool = False
    field_manager: str = FIELD_MANAGER
    raw: str = ""
    edit: bool = False
    record: str = ""
    """The command line to put down in each object; empty: none."""
    sort: bool = False
    skip_existing: bool = False
    parallel: int = 1
    warnings_as_errors: bool = False
    windows_line_endings: bool = False
    client: Overrides = field(default_factory=Overrides)
    request_timeout_s: float | None = None
    cache_directory: str = ""
