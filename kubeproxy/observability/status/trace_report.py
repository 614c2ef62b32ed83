"""The trace of a connection as values: the request, the report, and the report as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from kubeproxy.model import Address, Destination, Protocol, Target, family_of, parse_address
from kubeproxy.observability.status import wording as words
from kubeproxy.observability.status.document import FrontendStatus


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """The first packet of a client, whose path is traced."""

    to: Destination
    source: Address | None = None
    """The client's address, or None if the client is this node."""
    source_port: int = 0
    """The client's port, or 0 if it is not known."""

    @classmethod
    def of(cls, *, to: str, source: str = "", protocol: str = "") -> Self:
        """Parse ``IP:PORT`` or ``[IP]:PORT``, then the client's address (with a port, without one, or empty), then
        ``tcp`` or ``udp``.

        Raise ValueError for anything else, with what was found and what is allowed.
        """
        host, port = _address_and_port(to)
        transport = protocol.upper() or Protocol.TCP
        if transport not in (Protocol.TCP, Protocol.UDP):
            raise ValueError(f'found protocol "{protocol}"; allowed: tcp or udp')
        destination = Destination(_address(host), Protocol(transport), port)
        client, source_port = client_in(source)
        if client is not None and family_of(client) is not family_of(destination.address):
            raise ValueError(
                f"found client {client} and destination {destination.address}; allowed: one IP family for both"
            )
        return cls(destination, client, source_port)


def client_in(text: str) -> tuple[Address | None, int]:
    """Parse a client's address, with or without a port, and return the address and the port (0 if there is none). For
    an empty text, return None and 0. Raise ValueError for anything else."""
    if text.startswith("[") or text.count(":") == 1:
        host, port = _address_and_port(text)
        return _address(host), port
    return _address(text) if text else None, 0


def _address_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f'found "{text}"; write an IPv6 address in brackets, as in [fd00::1]:80')
    if not colon or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f'found "{text}"; allowed: IP:PORT, such as 10.96.0.10:53 or [fd00::1]:80')
    return host, int(port)


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError:
        raise ValueError(f'found "{text}"; allowed: an IP address') from None


class Outcome(StrEnum):
    """What happens to the connection."""

    PROXIED = "proxied"
    FORWARDED = "forwarded"
    """The kernel sends the connection straight to an endpoint."""
    REFUSED = "refused"
    DROPPED = "dropped"
    PASSED = "not ours"
    """No rule matches. The kernel routes the connection without the proxy."""


@dataclass(frozen=True, slots=True)
class WorkerPreview:
    """The endpoints that one worker would dial for the client."""

    worker: int
    order: tuple[str, ...]
    """The endpoints in the order in which they would be dialed."""
    bound: str | None
    """The endpoint to which session affinity binds the client, or None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """The path of the connection, step by step."""

    to: str
    protocol: str
    source: str
    client: str
    """What the client is: ``this node``, ``a pod`` or ``another host``."""
    hook: str
    """The netfilter hook that the client's first packet enters: ``output`` or ``prerouting``."""
    outcome: Outcome
    reason: str
    """The reason for the outcome."""
    steps: tuple[str, ...]
    """The decisions on the path, in order. An entry that begins with a space is a detail of the one before it."""
    service: str | None
    """The service port (``namespace/name:port``), or None if the destination belongs to none."""
    frontend: FrontendStatus | None
    """The frontend that gets the connection, or None if there is none."""
    previews: tuple[WorkerPreview, ...]


def lines(report: TraceReport) -> Iterator[str]:
    """Yield the report as text."""
    yield f"{report.protocol} from {report.source} ({report.client}) to {report.to}: {report.outcome}"
    yield f"  {report.reason}"
    yield ""
    number = 0
    for step in report.steps:
        if step.startswith(" "):
            yield f"     {step.strip()}"
        else:
            number += 1
            yield f"  {number}. {step}"
    frontend = report.frontend
    if frontend is None or report.outcome is not Outcome.PROXIED:
        return
    yield ""
    states = {endpoint.address: endpoint for endpoint in frontend.endpoints}
    alike: dict[tuple[tuple[str, ...], str | None], list[int]] = {}
    for preview in report.previews:
        alike.setdefault((preview.order, preview.bound), []).append(preview.worker)
    for (order, bound), workers in alike.items():
        yield f"  worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))} would dial"
        for place, address in enumerate(order, 1):
            endpoint = states.get(address)
            remarks = [] if endpoint is None else [words.endpoint(endpoint)]
            if address == bound:
                remarks.insert(0, "the client is bound to it")
            if endpoint is not None and endpoint.preserved:
                remarks.append("dialed from the client's address")
            text = "; ".join(filter(None, remarks))
            yield f"    {place}. {address}{f': {text}' if text else ''}"
        if not order:
            yield "    no endpoint"
    unused = [endpoint for endpoint in frontend.endpoints if not endpoint.used]
    if unused:
        yield "  not used"
        for endpoint in unused:
            yield f"    {endpoint.address}: {words.endpoint(endpoint)}"


def describe(destination: Destination) -> str:
    """Return a destination as text: ``10.96.0.1:80/TCP``."""
    return f"{Target(destination.address, destination.port)}/{destination.protocol}"
