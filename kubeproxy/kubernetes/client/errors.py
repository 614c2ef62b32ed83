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
    """A request failed, or its answer is unusable. It is the base of all below."""

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
        """The Status object's reason (``Forbidden``, ``Expired``, ...); empty if the answer was no Status."""
        self.retry_after_s = retry_after_s
        """The server's Retry-After in seconds, or None if the server sent none."""
        self.causes = causes
        """Reasons among the details of the Status object (``NamespaceTerminating``, ...)."""
        self.server_text = ""
        """The message of the Status object alone, for Events and conditions."""


class Unreachable(ApiError):
    """No answer, or a part of one: refused, timed out, cut off, TLS failure. The request may have had effect."""

    @property
    def was_sent(self) -> bool:
        """Whether the server may have seen the request."""
        return self.cause not in ("refused", "no route", "name", "tls")


class Garbage(ApiError):
    """An answer that no API server gives: HTML, a redirect, broken JSON, endless lines or bodies."""


class StatusError(ApiError):
    """The API server refused a request. It is raised itself for a code without a class of its own (400, 404, 500)."""

    answer: Status = Status()
    """The Status object that the server sent; empty if it sent none."""
    repeated = False
    """The request was sent more than once because the server failed before, so it may have been carried out then."""

    @property
    def details(self) -> StatusDetails:
        """What the refusal is about; empty if the server did not say."""
        return self.answer.details or StatusDetails()


class Unauthorized(StatusError):
    """401, after the credentials were read again."""


class Forbidden(StatusError):
    """403. In its first seconds, before its RBAC rules are loaded, a server answers everything with it."""


class Expired(StatusError):
    """410: the resourceVersion, or the list of a continue token, is no longer available."""

    token = ""
    """A continue token for the same key at the newest resourceVersion; empty if the server offered none."""


class Ahead(StatusError):
    """504: the server has not reached this resourceVersion yet. It lags, or its storage was restored from a backup."""


class Overloaded(StatusError):
    """429 or 503: try again later, after ``retry_after_s`` if the server sent one."""
