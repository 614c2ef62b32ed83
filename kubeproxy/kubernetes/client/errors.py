"""Errors of requests to an API server.

``cause`` is one of a short, closed list, for counters and logs; the message is for people.
"""

from __future__ import annotations

from typing import Final

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
    """A request failed, or its answer is unusable.

    The base of all below; raised itself for a status without a class of its own (400, 404, 500, ...).
    """

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
        """The HTTP status, or the code of a Status object in a stream; None: no answer."""
        self.reason = reason
        """The Status object's reason (``Forbidden``, ``Expired``, ...); empty if the answer was no Status."""
        self.retry_after_s = retry_after_s
        """The server's Retry-After in seconds; None: it sent none."""
        self.causes = causes
        """Reasons among the details of the Status object (``NamespaceTerminating``, ...)."""
        self.server_text = ""
        """The message of the Status object alone, for Events and conditions."""


class Unreachable(ApiError):
    """No answer, or a part of one: refused, timed out, cut off, TLS failure. The request may have had effect."""


class Unauthorized(ApiError):
    """401, after the credentials were read again."""


class Forbidden(ApiError):
    """403. In its first seconds, before its RBAC rules are loaded, a server answers everything with it."""


class Expired(ApiError):
    """410: the resourceVersion, or the list of a continue token, is no longer available."""

    def __init__(self, message: str, *, status: int | None = 410, reason: str = "Expired", token: str = "") -> None:
        super().__init__(message, cause="expired", status=status, reason=reason)
        self.token = token
        """A continue token for the same key at the newest resourceVersion; empty: the server offered none."""


class Ahead(ApiError):
    """504: the server has not reached this resourceVersion yet. It lags, or its storage was restored from a backup."""


class Overloaded(ApiError):
    """429 or 503: try again later, after ``retry_after_s`` if the server sent one."""


class Garbage(ApiError):
    """An answer that no API server gives: HTML, broken JSON, endless lines or bodies."""
