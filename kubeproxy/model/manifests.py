"""The state of the manifest source: its files, and the problems of their objects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """A present problem with its position: a fault, a probable mistake, or an object of a kind that is skipped."""

    origin: str
    """The file, directory or URL."""
    document: int
    """The document's number, counted from 1, or 0 for the origin as a whole."""
    path: str
    message: str
    name: str = ""
    """The object, such as ``Service demo/web``, or empty if the object cannot be identified."""
    skipped: bool = False
    """Whether the object is skipped, because manifests may not define its kind. This is no fault."""
    warning: bool = False
    """Whether this is only a probable mistake. The object is served."""

    @property
    def is_fault(self) -> bool:
        """Return whether the problem keeps a part of the manifest from being in effect."""
        return not (self.skipped or self.warning)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return a key for comparing problems, which does not change if documents are added before the problem's
        document."""
        return self.origin, self.name, self.path, self.message

    @property
    def place(self) -> str:
        """Return a text with the origin, and the document if it is known."""
        return f"{self.origin} document {self.document}" if self.document else self.origin

    def __str__(self) -> str:
        path = f" {self.path}:" if self.path else ""
        return f"{self.place}:{path} {self.message}"


@dataclass(frozen=True, slots=True)
class PathState:
    """The state of one configured path: the numbers of its manifests and objects, and the fault of the path itself."""

    path: str
    manifests: int
    objects: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ManifestState:
    """The state of the manifest source. `last_change` is in Unix seconds, or 0 before the first change."""

    loaded: bool = False
    paths: tuple[PathState, ...] = ()
    services: int = 0
    slices: int = 0
    problems: tuple[ManifestProblem, ...] = ()
    last_change: float = 0.0

    @property
    def faults(self) -> tuple[ManifestProblem, ...]:
        """Return the problems that keep parts of manifests from being in effect."""
        return tuple(problem for problem in self.problems if problem.is_fault)

    @property
    def complaint(self) -> str | None:
        """Return a text with the position of the first fault and the number of further faults, or None if there is no
        fault."""
        if not self.faults:
            return None
        more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
        return f"fault in {self.faults[0].place}{more}"
