"""Whether the API server is there for us: said once when it is lost, once when it is back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from kubeproxy.kubernetes.client.errors import Ahead, ApiError, Expired, Forbidden, Unauthorized
from kubeproxy.kubernetes.objects import SOURCE

log = structlog.get_logger(__name__)


class Connectivity:
    """What the reflectors of one source have to say about their server, made one story. `clock` gives Unix seconds."""

    def __init__(self, *, server: str, clock: Callable[[], float], optional: str = "") -> None:
        """`optional` names the resource without which all others can be served, if there is one."""
        self._server = server
        self._clock = clock
        self._optional = optional
        self._behind: set[str] = set()
        self._missing: set[str] = set()
        self._outdated: set[str] = set()
        self._causes: set[str] = set()
        self._failures = 0
        self._since = 0.0
        self._ever = False
        self._node_forbidden = False

    @property
    def lost(self) -> bool:
        """Whether some resource is out of reach."""
        return bool(self._missing)

    def broke(self, resource: str) -> None:
        """A watch ended that worked. Mostly the next one works."""
        self._behind.add(resource)

    def failed(self, resource: str, error: ApiError, *, since: float, called: str = "") -> None:
        """A request failed for a resource that has been behind since then (Unix seconds); `called` is its name in the
        log, if that is another. The first of an outage is a warning; after it only another cause is worth a line. That
        this node may not be read is a story of its own: all else can be served without. A server that was restarted no
        longer knows what it said before: that is no outage, unless a list does not help."""
        if resource == self._optional and isinstance(error, Forbidden):
            self._reached(resource)
            # While others have no answer either, a server may forbid all because it has just started.
            if self._ever and not self._behind - {self._optional} and not self._node_forbidden:
                self._node_forbidden = True
                log.warning(
                    "this node's object may not be read; its zone, addresses and taints stay unknown",
                    source=SOURCE,
                    seen=str(error),
                    hint=_hint(error),
                )
            return
        self._behind.add(resource)
        called = called or resource
        if isinstance(error, Expired) and resource not in self._outdated:
            self._outdated.add(resource)
            log.info("the server no longer knows what came last; all is listed anew", source=SOURCE, resource=called)
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
        fields = {"source": SOURCE, "server": self._server, "resource": called, "seen": str(error), "since": begun}
        if hint := _hint(error):
            fields["hint"] = hint
        if first:
            log.warning(
                "API server lost; serving on with what is known" if self._ever else "no API server yet", **fields
            )
        else:
            log.info("still not in step with the API server, for another reason", **fields)

    def listed(self) -> None:
        """Something is known from now on: whatever fails later, there is something to serve on with."""
        self._ever = True

    def found(self, resource: str) -> None:
        """A resource is in step with the server."""
        self._ever = True
        self._behind.discard(resource)
        self._outdated.discard(resource)
        if resource == self._optional and self._node_forbidden:
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
        case Forbidden() if "system:anonymous" in str(error):
            return "the request carried no credentials: look at the kubeconfig's user, or at its token file"
        case Ahead():
            return "its storage is behind what it said before, perhaps restored from a backup; all is listed anew"
        case Forbidden():
            return "a server that just started says so until its RBAC rules are loaded; else bind system:node-proxier"
        case Unauthorized():
            return "the credentials were read again and are still refused: look at the token or client certificate"
        case ApiError(cause="tls"):
            return "look at the CA, and at the name or address in the server's URL"
        case _:
            return ""
