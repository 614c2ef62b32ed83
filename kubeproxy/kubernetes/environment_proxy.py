"""The proxy that the environment names for a server: http_proxy, https_proxy, no_proxy, as client-go reads them."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_PORTS = {"http": 80, "https": 443}


def environment_proxy(url: str) -> str | None:
    """Return the environment's proxy for a URL, or None if the server is asked directly.

    aiohttp's own search (``trust_env``) would send what ~/.netrc holds, too, and takes two threads for every request.
    """
    parts = urlsplit(url)
    if not parts.hostname or _is_direct(parts.hostname, parts.port or _PORTS.get(parts.scheme, 0)):
        return None
    return getproxies().get(parts.scheme)


def _is_direct(host: str, port: int) -> bool:
    """Return whether no_proxy names a server, or the server is this host itself, for which client-go uses no proxy.

    urllib compares names alone. For an address, an entry may also be a network, or have a port.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or bool(proxy_bypass(f"{host}:{port}"))
    return address.is_loopback or any(
        _names(entry.strip(), address, port) for entry in getproxies().get("no", "").split(",")
    )


def _names(entry: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> bool:
    """Return whether an entry of no_proxy (``*``, a network, an address, ``ADDRESS:PORT``) is one for a server."""
    if entry == "*":
        return True
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        pass  # It has a port, or is a name.
    try:
        parts = urlsplit(f"//{entry}")
        return parts.port == port and ipaddress.ip_address(parts.hostname or "") == address
    except ValueError:
        return False
