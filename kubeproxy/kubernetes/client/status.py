"""What an API server refuses, as a Status object, and how kubectl words it. Pure."""

from __future__ import annotations

import json
from typing import Final

import msgspec

from kubeproxy.kubernetes.client.decode import excerpt
from kubeproxy.model.errors import ClusterError


class Cause(msgspec.Struct, rename="camel"):
    """One of several reasons."""

    reason: str | None = None
    message: str | None = None
    field: str | None = None


class Details(msgspec.Struct, rename="camel"):
    """What the refusal is about."""

    name: str | None = None
    group: str | None = None
    kind: str | None = None
    causes: list[Cause] | None = None
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, rename="camel"):
    """metav1.Status, as far as it is used."""

    kind: str | None = None
    status: str | None = None
    message: str | None = None
    reason: str | None = None
    details: Details | None = None
    code: int | None = None


class StatusError(ClusterError):
    """The API server refused a request."""

    def __init__(self, status: Status, code: int) -> None:
        super().__init__(status.message or f"the server answered {code}")
        self.status = status
        self.code = code
        self.repeated = False
        """The request was sent more than once, as the server failed before: it may have been carried out then."""

    @property
    def reason(self) -> str:
        """``AlreadyExists``, ``Forbidden``, ...; empty where the server gave none."""
        return self.status.reason or ""

    @property
    def details(self) -> Details:
        """Empty where the server gave none."""
        return self.status.details or Details()


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
    429: (
        "TooManyRequests",
        "the server has received too many requests and has asked us to try again later",
    ),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        "the server was unable to return a response in the time allotted, but may still be processing the request",
    ),
}
"""By code, reason and message where the answer is no Status (client-go, NewGenericServerResponse)."""


def parse_status(body: bytes, code: int, about: str) -> StatusError:
    """The error that a refusal stands for. `about`: the request, like ``post configmaps``."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        status = Status()
    if status.kind == "Status" and (status.message or status.reason):
        return StatusError(status, code)
    said = excerpt(bytes(body))
    reason, message = _GENERIC.get(code, ("", ""))
    if not message and code >= 500:
        reason = "InternalError"
        shown = json.dumps(said or "unknown", ensure_ascii=False)
        message = f"an error on the server ({shown}) has prevented the request from succeeding"
        said = ""
    elif not message:
        message = f"the server responded with the status code {code} but did not return more information"
    words = f"{message} ({about})"
    if said and code not in (401, 429, 503):
        words += f": {said}"
    return StatusError(Status(reason=reason, message=words), code)
