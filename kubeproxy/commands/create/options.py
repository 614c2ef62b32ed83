"""The command line of ``kubeproxy create``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kubeproxy.kubernetes.client.kubeconfig import Overrides

FIELD_MANAGER = "kubeproxy-create"


class NothingToDo(Exception):
    """Raised if the user has decided to create nothing. It ends the command successfully."""


class DryRun(StrEnum):
    """The values of ``--dry-run``: objects are created, only printed, or only checked by the server."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


class Validation(StrEnum):
    """The values of ``--validate``: what happens to fields that the server does not know, and to keys that occur twice
    in a mapping."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions:
    """The options of one command line. Only values that need no file to be read have been checked."""

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
    """The command line to record in each object, or empty if none is to be recorded."""
    sort: bool = False
    skip_existing: bool = False
    parallel: int = 1
    warnings_as_errors: bool = False
    windows_line_endings: bool = False
    client: Overrides = field(default_factory=Overrides)
    request_timeout_s: float | None = None
    cache_directory: str = ""
