"""Finds and removes what kube-proxy's ipvs mode leaves on a node: an interface with service addresses, and virtual
servers of IPVS.

As long as the interface exists, the node treats its addresses as local, even without virtual servers. Virtual servers
are listed and removed through generic netlink (linux/ip_vs.h), one by one. (kube-proxy's own cleanup flushes all of
them, but other programs may use IPVS on this node, too.) A virtual server belongs to kube-proxy in two cases: it has an
address of that interface; or it has an address of the node with a port in the range of node ports, and all its
destinations are also destinations of virtual servers of the first kind. The range is the default of
--service-node-port-range. Other ports are excluded because there may be a virtual server for the API servers, which are
also endpoints of a Service.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kubeproxy.model import Address
from kubeproxy.model.errors import KernelError, KubeproxyError
from kubeproxy.netfilter.local_addresses import local_addresses
from kubeproxy.netfilter.netlink.links import remove_link
from kubeproxy.netfilter.netlink.messages import attributes, dump, encode, open_netlink, request

INTERFACE: Final = "kube-ipvs0"
"""The interface that kube-proxy creates (pkg/proxy/ipvs/proxier.go). Other users of IPVS do not have it."""

NODE_PORTS: Final = range(30000, 32768)

_PROC = Path("/proc")
_RUNS_KUBE_PROXY: Final = {"kube-proxy", "hyperkube", "k3s", "k3s-server", "k3s-agent", "kubelite", "rke2"}
"""The names of processes that are kube-proxy or may contain it, such as those of K3s, MicroK8s and RKE2."""
_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""PROC_PID_INIT_INO (linux/proc_ns.h), the inode of the initial PID namespace, in which all processes are visible."""
_NETLINK_GENERIC: Final = 16
"""linux/netlink.h"""
_CONTROLLER, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2  # linux/genetlink.h
_VERSION: Final = bytes([1, 0, 0])
"""The part of struct genlmsghdr after the command: the version, and two reserved bytes."""
_HEADER_BYTES: Final = 4
# linux/ip_vs.h: commands, the objects that they concern, and the attributes of a virtual server and of a destination
_DEL_SERVICE, _GET_SERVICE, _GET_DEST = 3, 4, 8
_SERVICE, _DEST = 1, 2
_AF, _PROTOCOL, _ADDR, _PORT = 1, 2, 3, 4
_DEST_ADDR, _DEST_PORT = 1, 2


class VirtualServer(NamedTuple):
    """A virtual server of IPVS with an address. Other virtual servers match packets by a mark; kube-proxy makes none of
    these."""

    address: Address
    port: int
    key: bytes
    """The attributes by which the kernel identifies the virtual server: family, protocol, address and port."""


class Leftovers(NamedTuple):
    """What kube-proxy's ipvs mode has left behind on this node."""

    addresses: frozenset[Address]
    """The addresses on the interface."""
    servers: tuple[VirtualServer, ...]

    def __str__(self) -> str:
        return (
            f"ipvs: interface {INTERFACE} with {len(self.addresses)} addresses, and {len(self.servers)} virtual servers"
        )


def look(*, node_ports: bool = False) -> Leftovers | None:
    """Return what is left, or None if the interface does not exist. Raise KernelError if the kernel cannot list it.

    With `node_ports`, include the virtual servers of node ports, which requires reading all destinations. If this
    process may not list virtual servers, or the kernel has no IPVS, the result has none. Nothing is created or loaded
    in the kernel.
    """
    if INTERFACE not in (name for _, name in socket.if_nameindex()):
        return None
    known = local_addresses()
    ours = frozenset(it.address for it in known if it.interface == INTERFACE)
    try:
        with open_netlink(_NETLINK_GENERIC) as netlink:
            family = _family(netlink)
            servers = [] if family is None else list(_servers(dump(netlink, family, _GET_SERVICE, rest=_VERSION)))
            found = [it for it in servers if it.address in ours]
            if node_ports and family is not None:
                local = {it.address for it in known} - ours
                candidates = [it for it in servers if it.address in local and it.port in NODE_PORTS]
                found += _node_ports(netlink, family, found, candidates)
    except PermissionError:
        found = []
    except OSError as error:
        raise KernelError(f"cannot list virtual servers of IPVS by netlink: {error.strerror}") from error
    return Leftovers(ours, tuple(found))


def remove(*, dry_run: bool = False, force: bool = False) -> list[str]:
    """Remove the virtual servers and the interface. Return what was removed, one line each. With `dry_run`, remove
    nothing.

    Raise KubeproxyError, and remove nothing, if a kube-proxy runs in this network namespace or if this process cannot
    tell. With `force`, skip this check. The interface is removed last, because its addresses show which virtual servers
    are kube-proxy's. Raise KernelError if the kernel refuses."""
    found = look(node_ports=True)
    if found is None:
        return []
    if not force and (reason := _in_use()) is not None:
        raise KubeproxyError(
            f"what looks like kube-proxy's stays ({found}): {reason}. Stop kube-proxy first. If none runs on this"
            " node, give --force"
        )
    if not dry_run:
        try:
            with open_netlink(_NETLINK_GENERIC) as netlink:
                family = _family(netlink) or 0
                for server in found.servers:
                    request(netlink, family, bytes([_DEL_SERVICE]) + _VERSION + encode([(_SERVICE, server.key)]))
            with open_netlink() as netlink:
                remove_link(netlink, INTERFACE)
        except OSError as error:
            raise KernelError(f"cannot remove what kube-proxy's ipvs mode left: {error.strerror}") from error
    return [str(found)]


def _family(netlink: socket.socket) -> int | None:
    """Return the number of IPVS's generic netlink family, or None if IPVS is not loaded.

    All families are listed, because asking for one by name would load its module. The list is read to its end, because
    the kernel refuses another request before that.
    """
    numbers = {}
    for payload in dump(netlink, _CONTROLLER, _GET_FAMILY, rest=_VERSION):
        found = dict(attributes(payload[_HEADER_BYTES:]))
        numbers[found.get(_FAMILY_NAME)] = int.from_bytes(found[_FAMILY_ID], sys.byteorder)
    return numbers.get(b"IPVS\0")


def _servers(payloads: Iterable[bytes]) -> Iterator[VirtualServer]:
    for found in _nested(payloads, _SERVICE):
        if {_AF, _PROTOCOL, _ADDR, _PORT} <= found.keys():
            key = encode((kind, found[kind]) for kind in (_AF, _PROTOCOL, _ADDR, _PORT))
            yield VirtualServer(_address(found[_AF], found[_ADDR]), int.from_bytes(found[_PORT], "big"), key)


def _node_ports(
    netlink: socket.socket, family: int, services: list[VirtualServer], candidates: list[VirtualServer]
) -> list[VirtualServer]:
    """Return the candidates whose destinations are all also destinations of virtual servers in `services`."""

    def destinations(server: VirtualServer) -> set[tuple[bytes, bytes]]:
        payloads = dump(netlink, family, _GET_DEST, rest=_VERSION + encode([(_SERVICE, server.key)]))
        return {(found[_DEST_ADDR], found[_DEST_PORT]) for found in _nested(payloads, _DEST)}

    known = set().union(*map(destinations, services)) if candidates else set()
    return [it for it in candidates if (led_to := destinations(it)) and led_to <= known]


def _nested(payloads: Iterable[bytes], kind: int) -> Iterator[Mapping[int, bytes]]:
    """Yield, for each payload, the attributes nested in its attribute of type `kind`."""
    for payload in payloads:
        yield dict(attributes(dict(attributes(payload[_HEADER_BYTES:])).get(kind, b"")))


def _address(family: bytes, packed: bytes) -> Address:
    # The kernel sends 16 bytes for both families.
    is_ipv4 = int.from_bytes(family, sys.byteorder) == socket.AF_INET
    return Address(str(ipaddress.ip_address(packed[:4] if is_ipv4 else packed)))


def _in_use() -> str | None:
    """Return why a kube-proxy may be using what is left, or None if none runs in this network namespace."""
    here = os.stat(_PROC / "self/ns/net").st_ino
    for path in _PROC.glob("[0-9]*/comm"):
        try:
            if (name := path.read_text().strip()) not in _RUNS_KUBE_PROXY:
                continue
            with contextlib.suppress(PermissionError):  # Without permission to tell, assume that it runs here.
                if os.stat(path.parent / "ns/net").st_ino != here:
                    continue
            return f"process {path.parent.name} ({name}) is or may contain a kube-proxy that uses it"
        except OSError:  # The process has ended meanwhile.
            continue
    if os.stat(_PROC / "self/ns/pid").st_ino != _FIRST_PID_NAMESPACE:
        return (
            "this container cannot see the host's processes, and one of them may be kube-proxy that uses it (in a pod,"
            " hostPID shows them; nothing does on a node that is itself a container, as those of kind are)"
        )
    return None
