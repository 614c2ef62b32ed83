"""What an API server can do to a client, each with what was seen.

``cause`` is a short, closed vocabulary for counters and logs; the message is for people.
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
"""Every cause there is: who counts by it holds a bounded number of counters, whatever a server says."""


class ApiError(ClusterError):
    """A request failed, or its answer is no good. Base of all below; raised itself for a status without a meaning of
    its own here (400, 404, 500, ...)."""

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
        """The HTTP status, or the code of a Status object in a stream; None: there was no answer."""
        self.reason = reason
        """The Status object's reason (``Forbidden``, ``Expired``, ...); empty where the answer was none."""
        self.retry_after_s = retry_after_s
        """What the server asked for (header Retry-After); None: nothing."""
        self.causes = causes
        """Reasons among the details of the Status object (``NamespaceTerminating``, ...)."""
        self.server_text = ""
        """The message of the Status object alone, for Events and conditions."""


class Unreachable(ApiError):
    """No answer, or only part of one: refused, timed out, cut off, TLS failure. Says nothing about the request."""


class Unauthorized(ApiError):
    """401, after the credentials were read again."""


class Forbidden(ApiError):
    """403. Also the answer for everything in a server's first seconds, before its RBAC rules are loaded."""


class Expired(ApiError):
    """410: the resourceVersion, or the list that a continue token belongs to, is no longer there."""

    def __init__(self, message: str, *, status: int | None = 410, reason: str = "Expired", token: str = "") -> None:
        super().__init__(message, cause="expired", status=status, reason=reason)
        self.token = token
        """A continue token that goes on from the same key at the newest resourceVersion; empty: none was offered."""


class Ahead(ApiError):
    """504: the server has not come to this resourceVersion yet. It lags, or its storage was restored from a backup."""


class Overloaded(ApiError):
    """429 or 503: come back later, after ``retry_after_s`` where the server said so."""


class Garbage(ApiError):
    """An answer that no API server gives: HTML, broken JSON, lines or bodies without an end."""
