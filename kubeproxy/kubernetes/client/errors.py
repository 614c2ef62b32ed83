"""Errors of requests to an API server.

``cause`` is one of a short, closed list, for counters and logs; the message is for people.
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
"""All causes. The list is closed, so that a server cannot create unlimited counters."""


class ApiError(ClusterError):
    """A request has failed, or its answer is unusable. All errors below derive from this one."""

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
        """The HTTP status, or the code of a Status object in a stream. It is None if there was no answer."""
        self.reason = reason
        """The Status object's reason (``Forbidden``, ``Expired``, ...). It is empty if the answer was no Status."""
        self.retry_after_s = retry_after_s
        """The server's Retry-After in seconds, or None if the server sent none."""
        self.causes = causes
        """The reasons among the details of the Status object (``NamespaceTerminating``, ...)."""
        self.server_text = ""
        """The message of the Status object alone, for Events and conditions."""


class Unreachable(ApiError):
    """There was no whole answer: the connection was refused, timed out or cut off, or TLS failed. The request may have
    had an effect."""

    @property
    def was_sent(self) -> bool:
        """Return whether the server may have seen the request."""
        return self.cause not in ("refused", "no route", "name", "tls")


class Garbage(ApiError):
    """Raised for an answer that no API server gives: HTML, a redirect, broken JSON, endless lines or bodies."""


class StatusError(ApiError):
    """Raised when the API server refuses a request. It is raised itself for a code without a class of its own (400,
    404, 500)."""

    answer: Status = Status()
    """The Status object that the server sent. It is empty if the server sent none."""
    repeated = False
    """Whether the request was sent more than once because the server failed before. It may then have been carried out
    by an earlier try."""

    @property
    def details(self) -> StatusDetails:
        """Return what the refusal is about. The details are empty if the server did not send any."""
        return self.answer.details or StatusDetails()


class Unauthorized(StatusError):
    """The answer was 401, although the credentials were read again."""


class Forbidden(StatusError):
    """The answer was 403. In its first seconds, before its RBAC rules are loaded, a server answers everything with
    it."""


class Expired(StatusError):
    """The answer was 410: the resourceVersion, or the list of a continue token, is no longer available."""

    token = ""
    """A continue token for the same key at the newest resourceVersion. It is empty if the server offered none."""


class Ahead(StatusError):
    """The answer was 504: the server has not reached this resourceVersion yet. It lags, or its storage was restored
    from a backup."""


class Overloaded(StatusError):
    """The answer was 429 or 503. A later try may succeed, after ``retry_after_s`` if the server sent that."""
