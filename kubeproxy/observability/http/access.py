"""Which requests an HTTP server answers: by the page, the client's address, and the ``Host`` header. Pure.

Two attacks are kept out. A page that shows what every namespace runs must not be readable by the whole network only
because Prometheus has to reach the metrics. And a browser on this host must not read it for a website whose name
resolves to this host (DNS rebinding): such a request carries the website's name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

OPEN_PAGES: Final = frozenset({"/metrics", "/metrics/slis", "/healthz", "/healthz/ping", "/proxyMode"})
"""What other hosts may read of a metrics server that listens on more than loopback: what Prometheus scrapes, and what
names nothing of the cluster."""

_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that is not served."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server.

    `names`: the host names that stand for this node, in lower case. `public`: other hosts may read every page
    (``kubeproxy.publicStatus``).
    """

    names: frozenset[str] = frozenset()
    public: bool = False

    def refusal(self, page: str | None, hosts: Sequence[str], *, from_loopback: bool) -> Refusal | None:
        """Why a request is not answered; None if it is.

        `page` is the pattern of the route, None where none matches; `hosts` are all values of the ``Host`` header.
        A client without the header (HTTP/1.0) is no browser. The open pages take any name from other hosts, because
        Prometheus may scrape by any DNS name; from loopback they do not, so that a loopback server answers no website.
        """
        is_open = page in OPEN_PAGES
        if not (is_open or from_loopback or self.public):
            return _FORBIDDEN
        if (from_loopback or not is_open) and not all(self._is_ours(host_name(value)) for value in hosts):
            return _MISDIRECTED
        return None

    def _is_ours(self, name: str | None) -> bool:
        return name is not None and (name == "localhost" or name in self.names or _is_address(name))


_FORBIDDEN: Final = Refusal(
    403,
    "This page is shown to this host only. Ask on the host, at its loopback address; or set kubeproxy.publicStatus.\n",
)
_MISDIRECTED: Final = Refusal(
    421, "The Host header names another host. Ask by an IP address, by localhost, or by the name of this node.\n"
)


def host_name(value: str) -> str | None:
    """The host of a ``Host`` header, in lower case, without port, brackets and final dot; None for a malformed one."""
    match = _HOST.fullmatch(value.strip().lower())
    if match is None:
        return None
    if match["v6"] is not None:
        return match["v6"] if _is_address(match["v6"]) else None
    return match["name"].removesuffix(".") or None


def is_loopback(address: str) -> bool:
    """Whether a client's address is a loopback address, or one that an IPv6 socket maps to IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_loopback


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
