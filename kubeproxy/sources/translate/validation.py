"""The checks that several translations share, with their fault messages."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import Fault, show
from kubeproxy.model import Address, Protocol, parse_address

T = TypeVar("T")

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_SUBDOMAIN = 253
LABEL_RULE = "allowed: up to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit"
SUBDOMAIN_RULE = (
    "allowed: up to 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit"
)
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL_IPV4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}")


def foreign(labels: api_types.Labels) -> bool:
    """Return whether the labels of an EndpointSlice or Endpoints say that its Service is headless or another
    proxy's."""
    return labels.headless is not None or labels.service_proxy_name is not None


def indexed(items: list[T | None] | None) -> Iterator[tuple[int, T]]:
    """Yield the items of a list that are not null, with their indices."""
    return ((index, item) for index, item in enumerate(items or ()) if item is not None)


def allowed(values: Iterable[str]) -> str:
    """Return a text with the allowed values, for a fault's message."""
    return f"allowed: {', '.join(values)}"


def object_name(
    meta: api_types.ObjectMeta, faults: list[Fault], pattern: re.Pattern[str], longest: int
) -> tuple[str, str] | None:
    """Return an object's namespace and name. Return None and add a fault if they are invalid."""
    namespace, name = meta.namespace or "", meta.name or ""
    good = True
    if not LABEL.fullmatch(namespace):
        faults.append(Fault("metadata.namespace", f"{show(meta.namespace)}; {LABEL_RULE}"))
        good = False
    if len(name) > longest or not pattern.fullmatch(name):
        rule = LABEL_RULE if pattern is LABEL else SUBDOMAIN_RULE
        faults.append(Fault("metadata.name", f"{show(meta.name)}; {rule}"))
        good = False
    return (namespace, name) if good else None


def address_in(text: str | None) -> Address | None:
    """Return the canonical form of an address, or None if `text` is not an address."""
    if text is None:
        return None
    # The pattern matches nearly all addresses, and is twenty times as fast as ipaddress.
    if _CANONICAL_IPV4.fullmatch(text):
        return Address(text)
    try:
        return parse_address(text)
    except ValueError:
        return None


def reserved(address: Address, *, loopback: bool) -> str:
    """Return why no Service can have this address, such as because it is multicast, or an empty text if it can."""
    if address.startswith(_ORDINARY_BEGINNINGS):
        return ""
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified:
        return "the unspecified address"
    if parsed.is_multicast or address == "255.255.255.255":
        return "a multicast or broadcast address"
    if parsed.is_link_local:
        return "a link-local address"
    return "a loopback address" if loopback and parsed.is_loopback else ""


_ORDINARY_BEGINNINGS = ("10.", "172.", "192.168.", "fd", "2001:")
"""The prefixes of most addresses in use, which are checked first, for speed."""


def port_number(path: str, number: int | None, faults: list[Fault]) -> bool:
    """Return whether a port number is valid. Add a fault if it is not."""
    if number is not None and 1 <= number <= 65535:
        return True
    faults.append(Fault(path, f"{show(number)}; allowed: 1 to 65535"))
    return False


def protocol_in(path: str, text: str | None, faults: list[Fault]) -> Protocol | None:
    """Return the protocol, which is TCP by default. Return None and add a fault if it is unknown."""
    try:
        return Protocol(text or "TCP")
    except ValueError:
        faults.append(Fault(path, f"{show(text)}; {allowed(Protocol)}"))
        return None


def port_name(path: str, name: str, faults: list[Fault]) -> bool:
    """Return whether a port name is valid or empty. Add a fault if it is not."""
    if not name or LABEL.fullmatch(name):
        return True
    faults.append(Fault(path, f"{show(name)}; {LABEL_RULE}"))
    return False
