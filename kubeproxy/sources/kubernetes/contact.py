"""Whether the API server is there for us: said once when it is lost, once when it is back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from kubeproxy.sources.kubernetes.errors import ApiError, Forbidden, Unauthorized
from kubeproxy.sources.kubernetes.resource import SOURCE, OwnNode

log = structlog.get_logger(__name__)


class Contact:
    """What the reflectors of one source have to say about their server, made one story. `clock` gives Unix seconds."""

    def __init__(self, *, server: str, clock: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._missing: set[str] = set()
        self._causes: set[str] = set()
        self._failures = 0
        self._since = 0.0
        self._ever = False
        self._node_forbidden = False

    @property
    def lost(self) -> bool:
        """Whether some resource is out of reach."""
        return bool(self._missing)

    def failed(self, resource: str, error: ApiError, *, since: float) -> None:
        """A request failed for a resource that has been behind since then (Unix seconds). The first of an outage is a
        warning; after it only another cause is worth a line. That this node may not be read is a story of its own: all
        else can be served without."""
        if resource == OwnNode.name and isinstance(error, Forbidden):
            self._reached(resource)
            if self._ever and not self._missing and not self._node_forbidden:
                self._node_forbidden = True
                log.warning(
                    "this node's object may not be read; its zone, addresses and taints stay unknown",
                    source=SOURCE,
                    seen=str(error),
                    hint="bind system:node-proxier, which may get, list and watch nodes",
                )
            return
        first = not self._missing
        if first:
            self._since = since
            self._causes.clear()
            self._failures = 0
        self._missing.add(resource)
        self._failures += 1
        if error.cause in self._causes:
            return
        self._causes.add(error.cause)
        begun = datetime.fromtimestamp(self._since, UTC).isoformat(timespec="seconds")
        fields = {"source": SOURCE, "server": self._server, "resource": resource, "seen": str(error), "since": begun}
        if hint := _hint(error):
            fields["hint"] = hint
        if first:
            log.warning(
                "API server lost; serving on with what is known" if self._ever else "no API server yet", **fields
            )
        else:
            log.info("API server still away, for another reason", **fields)

    def listed(self) -> None:
        """Something is known from now on: whatever fails later, there is something to serve on with."""
        self._ever = True

    def found(self, resource: str) -> None:
        """A resource is in step with the server."""
        self._ever = True
        if resource == OwnNode.name and self._node_forbidden:
            self._node_forbidden = False
            log.info("this node's object may be read now", source=SOURCE)
        self._reached(resource)

    def _reached(self, resource: str) -> None:
        if resource not in self._missing:
            return
        self._missing.remove(resource)
        if not self._missing:
            away_s = round(self._clock() - self._since, 1)
            log.info("API server back", source=SOURCE, server=self._server, away_s=away_s, failures=self._failures)


def _hint(error: ApiError) -> str:
    match error:
        case Forbidden():
            return "a server that just started says so until its RBAC rules are loaded; else bind system:node-proxier"
        case Unauthorized():
            return "the credentials were read again and are still refused: look at the token or client certificate"
        case ApiError(cause="tls"):
            return "look at the CA, and at the name or address in the server's URL"
        case _:
            return ""
