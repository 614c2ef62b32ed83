"""Makes a network namespace on the bridge of this node's pods, from which a test connects to Services like a pod."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kubeproxy.model.errors import KubeproxyError

USUAL: Final = ("cni0", "cbr0", "kube-bridge", "mynet0")
"""The names that network plugins give to the pods' bridge."""
CANDIDATES: Final = 16
"""The number of addresses that are tried, from the end of the bridge's range, because plugins assign addresses from its
beginning."""
ARP_S: Final = 0.4
"""The time in seconds to wait for an ARP reply. On one bridge, a reply takes less than a millisecond."""
_CLONE_NEWNET: Final = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


class NoPodError(KubeproxyError):
    """Raised if no namespace can be made on a pods' bridge. The message says why."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A network namespace with an address on the bridge."""

    name: str
    address: str
    bridge: str

    def enter(self) -> None:
        """Move the calling thread permanently into the namespace."""
        descriptor = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            if _LIBC.setns(descriptor, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def pod_on_bridge(bridge: str = "") -> Iterator[Pod]:
    """Make a namespace on the bridge with this name, or else on the bridge that is probably the pods', and remove it at
    the end.

    Raise NoPodError if there is no such bridge or no free address, or if this user may not make namespaces.
    """
    name, mtu, interface = _bridge(bridge)
    pod = f"kubeproxy-test-{os.getpid()}"
    outside = f"kptest{os.getpid()}"[:15]
    with contextlib.ExitStack() as made:
        _ip("netns", "add", pod)
        made.callback(_ip, "netns", "del", pod)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", pod)
        # Delete the link, because the kernel removes the links of a deleted namespace only later.
        made.callback(_ip, "link", "del", outside)
        _ip("link", "set", outside, "mtu", mtu, "master", name, "up")
        _ip("-n", pod, "link", "set", "lo", "up")
        _ip("-n", pod, "link", "set", "eth0", "mtu", mtu, "up")
        found = Pod(pod, _free_address(pod, interface), name)
        _ip("-n", pod, "addr", "add", f"{found.address}/{interface.network.prefixlen}", "dev", "eth0")
        _ip("-n", pod, "route", "add", "default", "via", str(interface.ip))
        yield found


def _bridge(wanted: str) -> tuple[str, str, ipaddress.IPv4Interface]:
    """Return the name of the bridge, its MTU and its IPv4 address. Raise NoPodError if there is no bridge, or several
    may be the pods'."""
    found: dict[str, tuple[str, str, ipaddress.IPv4Interface]] = {}
    for link in json.loads(_ip("-j", "address", "show", "type", "bridge") or "[]"):
        addresses = [it for it in link.get("addr_info", ()) if it.get("family") == "inet"]
        if addresses:
            address = ipaddress.IPv4Interface(f"{addresses[0]['local']}/{addresses[0]['prefixlen']}")
            found[link["ifname"]] = link["ifname"], str(link["mtu"]), address
    if wanted:
        if wanted not in found:
            raise NoPodError(f"there is no bridge {wanted} with an IPv4 address; bridges: {', '.join(found) or 'none'}")
        return found[wanted]
    named: list[str] = [name for name in USUAL if name in found] or list(found)
    if len(named) != 1:
        raise NoPodError(
            f"which bridge has the pods? {', '.join(found)}; name it by --bridge"
            if found
            else "no bridge has pods here"
        )
    return found[named[0]]


def _free_address(pod: str, interface: ipaddress.IPv4Interface) -> str:
    """Return an unused address of the bridge's range."""
    last = int(interface.network.broadcast_address) - 1
    for number in range(last, max(last - CANDIDATES, int(interface.network.network_address)), -1):
        address = ipaddress.IPv4Address(number)
        if address != interface.ip and not _has_owner(pod, address):
            return str(address)
    raise NoPodError(f"none of the last {CANDIDATES} addresses of {interface.network} is free")


def _has_owner(pod: str, address: ipaddress.IPv4Address) -> bool:
    """Return whether a host on the bridge answers an ARP request for an address. The sender's address in the request is
    0.0.0.0, as in RFC 5227."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        Pod(pod, "", "").enter()
        try:
            asking = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
        finally:
            _LIBC.setns(here, _CLONE_NEWNET)
    finally:
        os.close(here)
    with asking:
        asking.bind(("eth0", 0x0806))
        mac = asking.getsockname()[4]
        header = struct.pack("!6s6sH", b"\xff" * 6, mac, 0x0806)
        question = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, mac, bytes(4), bytes(6), address.packed)
        asking.send(header + question)
        until = time.monotonic() + ARP_S
        while (left := until - time.monotonic()) > 0:
            asking.settimeout(left)
            with contextlib.suppress(TimeoutError):
                if asking.recv(64)[28:32] == address.packed:
                    return True
    return False


def _ip(*words: str) -> str:
    try:
        done: Any = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoPodError(f"cannot run ip: {error.strerror}; install iproute2") from error
    if done.returncode:
        raise NoPodError(f"`ip {' '.join(words)}`: {done.stderr.strip()}")
    text: str = done.stdout
    return text
