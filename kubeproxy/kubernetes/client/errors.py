"""Errors of requests to an API server.

The attribute ``cause``, for counters and logs, is one of `CAUSES`. The message is for people.
"""

from __future__ import annotations

from typing import Final

from kubeproxy.kubernetes.api_types import Status, StatusDetails
from kubeproxy.model.errors import ClusterError

CAUSES: Final = frozenset(
    {
        *("refused", "no route", "name", "timeout", "tls", "reset", "cut", "no response", "not HTTP", "half line"),
        *("unauthorized", "forbidden", "expired", "ahead", "too many requests", "unavailable"),
        *("not JSON", "garbage", "wrong kind", "back in time", "endless line", "endless answer", "endless list"),
        *("short watch", "internal", "status unknown"),
        *(f"status {code}" for code in range(100, 600)),
    }
)
"""All causes. Because their number is limited, a server cannot create unlimited counters."""


class ApiError(ClusterError):
    """Raised if a request fails or its answer is invalid. It is the base class of all errors in this module."""

    def __init__(
        self,
        message: str,
        *,
        cause: str,
        status: int | None = None,
        reason: str = "",
        retry_after_s: float | None = None,
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.status = status
        """The HTTP status, or the code of a Status object in a watch. It is None if there was no answer."""
        self.reason = reason
        """The reason of the Status object, such as ``Forbidden``. It is empty if the answer was not a Status."""
        self.retry_after_s = retry_after_s
        """The server's Retry-After in seconds, or None if the server sent none."""
        self.causes = causes
        """The reasons of the causes in the details of the Status object, such as ``NamespaceTerminating``."""
        self.server_text = ""
        """The message of the Status object, without URL and HTTP status, for Events and conditions."""


class UnreachableError(ApiError):
    """Raised if there was no complete answer: the connection was refused, timed out or broke off, or TLS failed. The
    server may still have carried out the request."""

    @property
    def was_sent(self) -> bool:
        """Return whether the server may have seen the request."""
        return self.cause not in ("refused", "no route", "name", "tls")


class GarbageError(ApiError):
    """Raised for an answer that does not come from an API server, such as HTML, a redirect, invalid JSON, or a body
    without end."""


class StatusError(ApiError):
    """Raised if the API server refuses a request. Some HTTP statuses have subclasses below; this class is raised for
    the others, such as 400, 404 and 500."""

    answer: Status = Status()
    """The Status object that the server sent, or an empty one."""
    repeated = False
    """Whether the request had been sent before, and the server had failed. An earlier request may then have been
    carried out."""

    @property
    def details(self) -> StatusDetails:
        """Return the details of the Status object, or empty details."""
        return self.answer.details or StatusDetails()


class UnauthorizedError(StatusError):
    """Raised for status 401, after the credentials were read again and the request was repeated."""


class ForbiddenError(StatusError):
    """Raised for status 403. A server also sends it for every request in its first seconds, before its RBAC rules are
    loaded."""


class ExpiredError(StatusError):
    """Raised for status 410: the resourceVersion or the continue token has expired."""

    token = ""
    """A new continue token, at the newest resourceVersion, with which the list can go on. It is empty if the server
    sent none."""


class AheadError(StatusError):
    """Raised for status 504 if the server has not reached the requested resourceVersion. Its cache is behind, or its
    storage was restored from a backup."""


class OverloadedError(StatusError):
    """Raised for status 429 or 503. A later attempt may succeed, after ``retry_after_s`` seconds if the server sent
    that."""
