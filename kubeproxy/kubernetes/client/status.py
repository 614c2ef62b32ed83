"""Reads an API server's Status objects and Warning headers, and makes errors from Status objects."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.client.errors import (
    CAUSES,
    AheadError,
    ExpiredError,
    ForbiddenError,
    OverloadedError,
    StatusError,
    UnauthorizedError,
)

MAX_RETRY_AFTER_S: Final = 86_400
"""The largest Retry-After in seconds. Larger values are reduced to it."""
TOO_LARGE: Final = "ResourceVersionTooLarge"
"""The reason of the cause, in the details of a Status, if the server has not reached the requested resourceVersion
(504)."""
_SHOWN: Final = 500

_decode_status = msgspec.json.Decoder(api_types.Status).decode


def parse_status(body: bytes | bytearray) -> api_types.Status:
    """Decode the body of an error answer to a Status. If the body is not a Status but plain text or HTML, use it as the
    message."""
    try:
        status = _decode_status(body)
    except api_types.UNDECODABLE:
        return api_types.Status(message=excerpt(body))
    return status if status.message or status.reason else api_types.Status(message=excerpt(body), code=status.code)


def status_error(
    status: api_types.Status, *, code: int, seen: str, message: str = "", retry_after_s: float | None = None
) -> StatusError:
    """Return the exception for an answer of HTTP status `code`. Its text is `message` if that is given, and otherwise
    begins with `seen`."""
    details = status.details or api_types.StatusDetails()
    reasons = frozenset(cause.reason for cause in details.causes or () if cause is not None and cause.reason)
    reason = _short(status.reason or "")
    if retry_after_s is None and details.retry_after_seconds is not None:
        retry_after_s = float(max(0, min(details.retry_after_seconds, MAX_RETRY_AFTER_S)))
    kind, cause = _classified(code, reasons)
    error = kind(
        message or ": ".join(part for part in (f"{seen} {code}", reason, _short(status.message or "")) if part),
        cause=cause,
        status=code,
        reason=reason,
        retry_after_s=retry_after_s,
        causes=reasons,
    )
    error.answer = status
    error.server_text = _short(status.message or "")
    if isinstance(error, ExpiredError):
        error.token = (status.metadata.continue_ if status.metadata else None) or ""
    return error


def _classified(code: int, reasons: frozenset[str]) -> tuple[type[StatusError], str]:
    match code:
        case 410:
            return ExpiredError, "expired"
        case 401:
            return UnauthorizedError, "unauthorized"
        case 403:
            return ForbiddenError, "forbidden"
        case 429:
            return OverloadedError, "too many requests"
        case 503:
            return OverloadedError, "unavailable"
        case 504 if TOO_LARGE in reasons:
            return AheadError, "ahead"
        case _:
            cause = f"status {code}"
            return StatusError, cause if cause in CAUSES else "status unknown"


_GENERIC: Final = {
    400: ("BadRequest", "the server rejected our request for an unknown reason"),
    401: ("Unauthorized", "the server has asked for the client to provide credentials"),
    403: ("Forbidden", "the server does not allow access to the requested resource"),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    406: ("NotAcceptable", "the server was unable to respond with a content type that the client supports"),
    409: ("AlreadyExists", "the server reported a conflict"),
    413: ("RequestEntityTooLarge", "the request is too large for the server"),
    415: ("UnsupportedMediaType", "the server was unable to understand the content type of the request"),
    422: ("Invalid", "the server rejected our request due to an error in our request"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        "the server was unable to return a response in the time allotted, but may still be processing the request",
    ),
}
"""The reason and the message by HTTP status, for answers that are not a Status (client-go,
NewGenericServerResponse)."""


def kubectl_error(body: bytes | bytearray, code: int, about: str, *, retry_after_s: float | None = None) -> StatusError:
    """Return the exception with kubectl's message. `about` describes the request, such as ``post configmaps``."""
    try:
        status = _decode_status(body)
    except api_types.UNDECODABLE:
        status = api_types.Status()
    if status.kind == "Status" and (status.message or status.reason):
        message = status.message or f"the server answered {code}"
    else:
        reason, message = _words_without_status(body, code, about)
        status = api_types.Status(reason=reason, message=message)
    return status_error(status, code=code, seen="the server answered", message=message, retry_after_s=retry_after_s)


def _words_without_status(body: bytes | bytearray, code: int, about: str) -> tuple[str, str]:
    said = excerpt(body)
    reason, message = _GENERIC.get(code, ("", ""))
    if not message and code >= 500:
        shown = json.dumps(said or "unknown", ensure_ascii=False)
        return "InternalError", f"an error on the server ({shown}) has prevented the request from succeeding ({about})"
    if not message:
        message = f"the server responded with the status code {code} but did not return more information"
    shown = f": {said}" if said and code not in (401, 429, 503) else ""
    return reason, f"{message} ({about}){shown}"


def retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds to wait according to a Retry-After header, which is a number or an HTTP date (RFC 9110,
    10.2.3). `now` is in Unix seconds. Return None if the header is missing or invalid."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), MAX_RETRY_AFTER_S)
    try:
        return max(0.0, min(parsedate_to_datetime(text).timestamp() - now, MAX_RETRY_AFTER_S))
    except (ValueError, OverflowError):
        return None


def warnings_of(header: str) -> list[str]:
    """Return the texts of the warnings with code 299 in a Warning header (RFC 7234, 5.5). Invalid parts are skipped."""
    texts = []
    rest = header.strip()
    while rest:
        code, _, rest = rest.partition(" ")
        _, _, rest = rest.partition(" ")  # Skip the agent, usually "-".
        if not code.isdecimal() or not rest.startswith('"'):
            break
        text, position, escaped = [], 1, False
        while position < len(rest) and (escaped or rest[position] != '"'):
            escaped = rest[position] == "\\" and not escaped
            if not escaped:
                text.append(rest[position])
            position += 1
        if int(code) == 299 and text:
            texts.append("".join(text))
        rest = rest[position + 1 :].lstrip()
        if rest.startswith('"'):  # Skip the date.
            rest = rest[1:].partition('"')[2].lstrip()
        rest = rest.removeprefix(",").lstrip()
    return texts


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def excerpt(data: bytes | bytearray, limit: int = 200) -> str:
    """Return the first `limit` bytes of an answer as text on one line, for logs."""
    text = " ".join(data[: limit + 1].decode("utf-8", "replace").split())
    return f"{text[:limit]}..." if len(data) > limit else text
