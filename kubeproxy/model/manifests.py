"""The objects that were read from manifests, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """A present fault, or a skipped kind, with its place."""

    origin: str
    """The file, directory or URL."""
    document: int
    """The document's number, from 1. 0 stands for the origin as a whole."""
    path: str
    message: str
    name: str = ""
    """The object, like ``Service demo/web``. It is empty if the object cannot be identified."""
    skipped: bool = False
    """Whether this is no fault, because the object is of a kind that manifests may not define."""
    warning: bool = False
    """Whether this is no fault, but probably a mistake. The object is served."""

    @property
    def is_fault(self) -> bool:
        """Return whether a part of the manifest that should be in effect is not."""
        return not (self.skipped or self.warning)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return a key that stays the same even if documents are added before the problem's own."""
        return self.origin, self.name, self.path, self.message

    @property
    def place(self) -> str:
        """Return the file, and the document if it is known."""
        return f"{self.origin} document {self.document}" if self.document else self.origin

    def __str__(self) -> str:
        path = f" {self.path}:" if self.path else ""
        return f"{self.place}:{path} {self.message}"


@dataclass(frozen=True, slots=True)
class PathState:
    """One named path, with the numbers of its manifests and objects, and the fault of the path itself."""

    path: str
    manifests: int
    objects: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ManifestState:
    """The source's contents. `last_change` is Unix time, 0 before the first change."""

    loaded: bool = False
    paths: tuple[PathState, ...] = ()
    services: int = 0
    slices: int = 0
    problems: tuple[ManifestProblem, ...] = ()
    last_change: float = 0.0

    @property
    def faults(self) -> tuple[ManifestProblem, ...]:
        """Return the problems that keep something from being in effect."""
        return tuple(problem for problem in self.problems if problem.is_fault)

    @property
    def complaint(self) -> str | None:
        """Return where the first fault is and how many more there are, or None if there is none."""
        if not self.faults:
            return None
        more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
        return f"fault in {self.faults[0].place}{more}"
