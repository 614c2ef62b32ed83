"""Logs each loss of the API server once, and each return once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from kubeproxy.kubernetes.api_types import SOURCE
from kubeproxy.kubernetes.client.errors import AheadError, ApiError, ExpiredError, ForbiddenError, UnauthorizedError

log = structlog.get_logger(__name__)


class Connectivity:
    """Combines the failures of several reflectors into one outage. `clock` returns Unix seconds."""

    def __init__(self, *, server: str, clock: Callable[[], float], optional: str = "", rights: str = "") -> None:
        """`optional` is a resource that is not necessary, so its loss alone is no outage. `rights` names, for the log,
        the manifest that grants the rights."""
        self._server = server
        self._clock = clock
        self._optional = optional
        self._rights = rights
        self._behind: set[str] = set()
        self._missing: set[str] = set()
        self._outdated: set[str] = set()
        self._causes: set[str] = set()
        self._failures = 0
        self._since = 0.0
        self._listed: set[str] = set()
        """The resources that have been listed at least once, and so can be served even if the server is lost."""
        self._node_forbidden = False

    @property
    def lost(self) -> bool:
        """Return whether any resource is unreachable."""
        return bool(self._missing)

    def broke(self, resource: str) -> None:
        """Note that a working watch of a resource has ended. This is no outage yet, because the next watch usually
        works."""
        self._behind.add(resource)

    def failed(self, resource: str, error: ApiError, *, since: float, called: str = "") -> None:
        """Note a failed request for a resource, whose changes may have been missed since `since` (Unix seconds).

        `called` is the resource's name in the log, if it differs. The first failure of an outage is logged as a
        warning, and later failures only if they have a new cause. A forbidden `optional` resource is logged separately.
        An expired resourceVersion, as after a restart of the server, is an outage only if the next list fails, too.
        """
        if resource == self._optional and isinstance(error, ForbiddenError):
            self._reached(resource)
            # Only if the other resources work: a server that has just started forbids everything.
            if self._listed and not self._behind - {self._optional} and not self._node_forbidden:
                self._node_forbidden = True
                log.warning(
                    "reading this node is forbidden",
                    source=SOURCE,
                    unknown="zone, addresses, taints",
                    seen=str(error),
                    hint=_hint(error, server=self._server, rights=self._rights),
                )
            return
        self._behind.add(resource)
        called = called or resource
        if isinstance(error, ExpiredError) and resource not in self._outdated:
            self._outdated.add(resource)
            log.info("watch version expired, listing again", source=SOURCE, resource=called)
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
        if hint := _hint(error, server=self._server, rights=self._rights):
            fields["hint"] = hint
        if first:
            if resource in self._listed:
                log.warning("API server lost, serving last state", **fields)
            elif isinstance(error, ForbiddenError | UnauthorizedError):
                log.warning("API server refuses, nothing listed yet", **fields)
            else:
                log.warning("no API server yet", **fields)
        else:
            log.info("API server still lost, new cause", **fields)

    def listed(self, resource: str) -> None:
        """Note that a resource has been listed, so that it can be served from now on."""
        self._listed.add(resource)

    def found(self, resource: str) -> None:
        """Note that a resource is in step with the server again."""
        self._listed.add(resource)
        self._behind.discard(resource)
        self._outdated.discard(resource)
        if resource == self._optional and self._node_forbidden:
            self._node_forbidden = False
            log.info("reading this node is allowed again", source=SOURCE)
        self._reached(resource)

    def _reached(self, resource: str) -> None:
        if resource not in self._missing:
            return
        self._missing.remove(resource)
        if not self._missing:
            away_s = round(self._clock() - self._since, 1)
            log.info("API server back", source=SOURCE, server=self._server, away_s=away_s, failures=self._failures)


def _hint(error: ApiError, *, server: str, rights: str) -> str:
    match error:
        case ForbiddenError() if "system:anonymous" in str(error) and server.startswith("http://"):
            return "the request carried no credentials, because they are sent by https only: check the server's URL"
        case ForbiddenError() if "system:anonymous" in str(error):
            return "the request carried no credentials: check the kubeconfig's user and its token file"
        case AheadError():
            return "its storage is older than before, perhaps restored from a backup; everything is listed again"
        case ForbiddenError():
            return "a server that just started refuses until its RBAC rules are loaded" + (
                rights and f"; else {rights}"
            )
        case UnauthorizedError():
            return "the credentials were read again and are still refused: check the token or client certificate"
        case ApiError(cause="tls"):
            return "check the CA, and the name or address in the server's URL"
        case _:
            return ""
