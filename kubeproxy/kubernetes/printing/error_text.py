"""Formats errors in the way in which kubectl prints them on standard error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubeproxy.kubernetes.client.errors import StatusError, UnreachableError
from kubeproxy.kubernetes.resource_builder.errors import Errors, quoted


def lines(errors: Sequence[Exception], host: str) -> list[str]:
    """Return the lines to print for the errors of a command. `host` is the server's host and port."""
    found = list(_flat(errors))
    if len(found) == 1:
        return _alone(found[0], host)
    return [line for error in found for line in _among(error, host)]


def _flat(errors: Sequence[Exception]) -> Iterator[Exception]:
    for error in errors:
        if isinstance(error, Errors):
            yield from _flat(error.errors)
        else:
            yield error


def _alone(error: Exception, host: str) -> list[str]:
    if isinstance(error, StatusError) and error.reason == "Invalid":
        return _invalid(error)
    known = _known(error, host)
    return [known] if known else f"error: {error}".split("\n")


def _among(error: Exception, host: str) -> list[str]:
    """Return the lines for one of several errors. A server's message is put on one line, because it may contain any
    characters; our own messages may have several lines."""
    known = _known(error, host)
    return [known] if known else str(error).split("\n")


def _known(error: Exception, host: str) -> str:
    if isinstance(error, StatusError):
        return _refused(error.status or 0, error.reason, str(error))
    if isinstance(error, UnreachableError):
        if error.cause == "refused":
            return f"The connection to the server {host} was refused - did you specify the right host or port?"
        hint = "; check the CA, and the name or address in the server's URL" if error.cause == "tls" else ""
        return f"Unable to connect to the server: {error}{hint}"
    return ""


def _refused(code: int, reason: str, message: str) -> str:
    if code == 401:
        return f"error: You must be logged in to the server ({message})"
    return f"Error from server ({reason}): {message}" if reason else f"Error from server: {message}"


def _invalid(error: StatusError) -> list[str]:
    details = error.details
    head = "The request is invalid"
    causes = [f"{cause.field}: {cause.message}" for cause in details.causes or () if cause is not None]
    if details.kind or details.name:
        head = f"The {details.kind or ''} {quoted(details.name or '')} is invalid"
    elif not causes:
        head += f": {error}"
    causes = list(dict.fromkeys(causes))
    if len(causes) < 2:
        return [f"{head}: {causes[0]}" if causes else head]
    return [f"{head}: ", *(f"* {cause}" for cause in causes)]
