"""The options of ``kubeproxy rolling-update``, and the checks of their values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from kubeproxy.kubernetes.client.kubeconfig import Overrides
from kubeproxy.model.errors import ConfigError

FIELD_MANAGER = "kubeproxy-rolling-update"
HELP_HINT = "See 'kubeproxy rolling-update -h' for help and examples"
_PERCENT = re.compile(r"[0-9]{1,9}%")


class Cleanup(StrEnum):
    """The values of ``--cleanup-policy``: what happens to the old controller at the end."""

    DELETE = "delete"
    RENAME = "rename"
    """The old controller is deleted, and the new controller gets its name."""
    PRESERVE = "preserve"
    """The old controller stays, without pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """The options of one command line. Times are in seconds. Raise ConfigError with all problems if options are
    invalid."""

    names: tuple[str, ...] = ()
    """The name of the old controller, and of the new controller if it was given."""
    filenames: tuple[str, ...] = ()
    image: str = ""
    container: str = ""
    image_pull_policy: str = ""
    deployment_label_key: str = "deployment"
    rollback: bool = False
    dry_run: bool = False
    validate: bool = True
    output: str = ""
    update_period_s: float = 60.0
    poll_interval_s: float = 3.0
    timeout_s: float = 300.0
    drain_timeout_s: float = 30.0
    min_ready_s: float = 0.0
    max_surge: int | str = 1
    max_unavailable: int | str = 0
    cleanup: Cleanup | None = None
    """What happens to the old controller. None means `RENAME` if the command line has an image and no new name, and
    otherwise `DELETE`."""
    client: Overrides = field(default_factory=Overrides)
    request_timeout_s: float | None = None
    cache_directory: str = ""

    def __post_init__(self) -> None:
        faults = list(_faults(self))
        if faults:
            raise ConfigError(*(f"{fault}\n{HELP_HINT}" for fault in faults))

    @property
    def filename(self) -> str:
        """Return the path of the new controller's file, or an empty text if no file was given."""
        return self.filenames[0] if self.filenames else ""

    @property
    def cleanup_policy(self) -> Cleanup:
        """Return the cleanup policy that applies."""
        if self.rollback:
            return Cleanup.DELETE
        if self.cleanup is not None:
            return self.cleanup
        return Cleanup.RENAME if len(self.names) == 1 and self.image else Cleanup.DELETE


def _faults(options: UpdateOptions) -> list[str]:
    """Return all problems of the command line. The messages are kubectl's if kubectl makes the same check."""
    found = []
    if not options.deployment_label_key:
        found.append("--deployment-label-key can not be empty")
    if len(options.filenames) > 1:
        found.append("May only specify a single filename for new controller")
    if options.rollback:
        if options.filenames or options.image:
            found.append("Don't specify --filename or --image on rollback")
    elif not options.filenames and not options.image:
        found.append("Must specify --filename or --image for new controller")
    elif options.filenames and options.image:
        found.append("--filename and --image can not both be specified")
    if not options.names:
        found.append("Must specify the controller to update")
    elif len(options.names) > 2 or (options.filenames and len(options.names) > 1):
        found.append(f"found the arguments {' '.join(options.names)}; allowed: OLD [NEW] --image=IMAGE, or OLD -f FILE")
    for flag, given in (("--container", options.container), ("--image-pull-policy", options.image_pull_policy)):
        if given and not options.image:
            found.append(f"{flag} can only be used with --image")
    if options.image_pull_policy not in ("", "Always", "Never", "IfNotPresent"):
        found.append(
            f"--image-pull-policy: found {options.image_pull_policy!r}; allowed: Always, Never or IfNotPresent"
        )
    if options.poll_interval_s <= 0:
        found.append("--poll-interval must be greater than 0")
    if options.timeout_s <= 0:
        found.append("--timeout must be greater than 0")
    for flag, number in (("--max-surge", options.max_surge), ("--max-unavailable", options.max_unavailable)):
        if isinstance(number, str) and not _PERCENT.fullmatch(number):
            found.append(f"{flag}: found {number!r}; allowed: a number of pods like 2, or a percentage like 25%")
    if options.max_surge in (0, "0%") and options.max_unavailable in (0, "0%"):
        found.append("one of --max-surge and --max-unavailable must be greater than 0: with both 0 no step is allowed")
    if options.rollback and options.cleanup is not None:
        found.append("--cleanup-policy cannot be used with --rollback: the new controller is deleted")
    return found


def amount(text: str) -> int | str:
    """Parse the value of a flag: return a number of pods as an integer, and any other text, such as a percentage,
    unchanged."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text
