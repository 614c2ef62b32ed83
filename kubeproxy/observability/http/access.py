"""Decides which requests an HTTP server answers, by their page, client address and ``Host`` header.

There are two dangers. Pages about all namespaces must not be readable by the whole network just because Prometheus
needs the metrics from the same port. And a website must not read them through a browser on this host, by a name that
resolves to this host (DNS rebinding). Such a request has the website's name in its ``Host`` header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

OPEN_PAGES: Final = frozenset({"/metrics", "/metrics/slis", "/healthz", "/healthz/ping", "/proxyMode"})
"""The pages of the metrics server that other hosts may read: those that Prometheus scrapes, and those without names of
cluster objects."""

_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that is refused."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of one server.

    `names` has the host names of this node, in lower case. If `public` is true, other hosts may read every page
    (``kubeproxy.publicStatus``).
    """

    names: frozenset[str] = frozenset()
    public: bool = False
    open_pages: frozenset[str] = OPEN_PAGES
    """The pages that other hosts may read."""

    def refusal(self, page: str | None, hosts: Sequence[str], *, from_loopback: bool) -> Refusal | None:
        """Return the refusal of a request, or None if the request is allowed.

        `page` is the pattern of the route, or None if no route matches. `hosts` has all values of the ``Host`` header.
        A request without the header (HTTP/1.0) is allowed, because it is from no browser. From other hosts, open pages
        accept any name, because Prometheus may scrape by any DNS name. Requests from loopback need one of the known
        names on every page, so that no website can read a page through a local browser.
        """
        is_open = page in self.open_pages
        if not (is_open or from_loopback or self.public):
            return _FORBIDDEN
        if (from_loopback or not is_open) and not all(self._is_ours(host_name(value)) for value in hosts):
            return _MISDIRECTED
        return None

    def _is_ours(self, name: str | None) -> bool:
        return name is not None and (name == "localhost" or name in self.names or _is_address(name))


_FORBIDDEN: Final = Refusal(
    403,
    "This page is for this host only. Use its loopback address on the host, or set kubeproxy.publicStatus.\n",
)
_MISDIRECTED: Final = Refusal(
    421, "The Host header has another host. Use an IP address, localhost, or the name of this node.\n"
)


def host_name(value: str) -> str | None:
    """Return the host of a ``Host`` header, in lower case, without port, brackets and final dot, or None if the header
    is malformed."""
    match = _HOST.fullmatch(value.strip().lower())
    if match is None:
        return None
    if match["v6"] is not None:
        return match["v6"] if _is_address(match["v6"]) else None
    return match["name"].removesuffix(".") or None


def is_loopback(address: str) -> bool:
    """Return whether a client's address is a loopback address, or a loopback IPv4 address in IPv6 form
    (::ffff:127.0.0.1)."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_loopback


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
