"""Finds the HTTP proxy for a server in the variables http_proxy, https_proxy and no_proxy, by client-go's rules."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_PORTS = {"http": 80, "https": 443}


def environment_proxy(url: str) -> str | None:
    """Return the URL of the proxy for a server's URL, or None if the server is contacted directly.

    aiohttp's ``trust_env`` is not used, because it would also send credentials from ~/.netrc, and uses two threads for
    every request.
    """
    parts = urlsplit(url)
    if not parts.hostname or _is_direct(parts.hostname, parts.port or _PORTS.get(parts.scheme, 0)):
        return None
    return getproxies().get(parts.scheme)


def _is_direct(host: str, port: int) -> bool:
    """Return whether no_proxy names the server, or the server is this host, for which client-go uses no proxy.

    For names, urllib decides. For addresses, an entry may also be a network, or have a port, which urllib does not
    support.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or bool(proxy_bypass(f"{host}:{port}"))
    return address.is_loopback or any(
        _names(entry.strip(), address, port) for entry in getproxies().get("no", "").split(",")
    )


def _names(entry: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> bool:
    """Return whether an entry of no_proxy (``*``, a network, an address, or ``ADDRESS:PORT``) matches a server."""
    if entry == "*":
        return True
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        pass  # The entry has a port, or is a name.
    try:
        parts = urlsplit(f"//{entry}")
        return parts.port == port and ipaddress.ip_address(parts.hostname or "") == address
    except ValueError:
        return False
