"""The command line of ``kubeproxy create``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kubeproxy.kubernetes.client.kubeconfig import Overrides

FIELD_MANAGER = "kubeproxy-create"


class NothingToDo(Exception):
    """Raised if the user has decided to create nothing. It ends the command and is not an error."""


class DryRun(StrEnum):
    """Whether objects are only printed, only checked by the server, or created."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


class Validation(StrEnum):
    """What happens to fields that the server does not know, and to keys that a mapping has twice."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions:
    """One command line, checked as far as that is possible without reading any file."""

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
