"""The answers of an API server, with its headers and messages."""

from __future__ import annotations

import gzip
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from aiohttp import web

from tests.support.apiserver.version import Version

GZIP_OVER = 131072
"""Bodies above this size are compressed if the client accepts that."""
CHUNKED_OVER = 2048
"""The approximate size above which answers are chunked, without Content-Length."""

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "AlreadyExists",
    410: "Expired",
    415: "UnsupportedMediaType",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Refusal(Exception):
    """An answer with a Status object."""

    def __init__(self, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.code = code
        self.body = status(code, message, **more)
        self.headers = {"X-Content-Type-Options": "nosniff"} if code == 403 else {}
        if (seconds := self.body.get("details", {}).get("retryAfterSeconds")) is not None:
            self.headers["Retry-After"] = str(seconds)


class PlainRefusal(Exception):
    """An answer in plain text."""

    def __init__(self, code: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.headers = headers


def status(
    code: int,
    message: str,
    *,
    reason: str | None = None,
    details: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A Status object; the default `reason` follows from the code ("": none)."""
    found: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": dict(metadata or {}),
        "status": "Failure",
        "message": message,
    }
    if reason := _REASONS.get(code, "") if reason is None else reason:
        found["reason"] = reason
    if details is not None:
        found["details"] = dict(details)
    found["code"] = code
    return found


def not_found() -> Refusal:
    """The answer for a group, version or resource that is not served."""
    return Refusal(404, "the server could not find the requested resource", details={})


def common_headers(version: Version) -> dict[str, str]:
    """The headers of every JSON answer."""
    headers = {
        "Cache-Control": "no-cache, private",
        "X-Kubernetes-Pf-Flowschema-Uid": "00000000-0000-4000-8000-000000000001",
        "X-Kubernetes-Pf-Prioritylevel-Uid": "00000000-0000-4000-8000-000000000002",
    }
    if version.audits:
        headers["Audit-Id"] = str(uuid4())
    return headers


def json_answer(
    request: web.Request, version: Version, body: Any, *, code: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An answer with a JSON body, compressed or chunked according to its size."""
    text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode() + b"\n"
    all_headers = {**common_headers(version), **(headers or {}), "Content-Type": "application/json"}
    if len(text) > GZIP_OVER and "gzip" in request.headers.get("Accept-Encoding", ""):
        all_headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        text = gzip.compress(text, 1)
    response = web.Response(status=code, body=text, headers=all_headers)
    if len(text) > CHUNKED_OVER:
        response.enable_chunked_encoding()
    return response


def hang_up(request: web.Request, *, reset: bool = False) -> None:
    """Close the connection without sending more."""
    transport = request.transport
    if transport is None:
        return
    if reset:
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
