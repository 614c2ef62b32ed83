"""Provides a device through which a client's packet enters this node again, at the interface on which it arrived.

A packet that is sent again has to pass everything that the client's own packet passed: the source address filter, the
forward hook, and rules that name the client's interface. A packet from a raw socket would pass the output hook instead.

The device is one end of a veth pair; the other end is never up. On its egress there is one filter for each interface of
this network namespace (cls_bpf with classic BPF). The filter compares the number in the frame's destination address
with the number of its interface. If they are equal, it passes the packet on as if received there (act_mirred). The
other interfaces are not changed.
"""

from __future__ import annotations

import errno
import re
import socket
import struct
from collections.abc import Mapping
from typing import Final

from kubeproxy.netfilter.netlink.links import IFLA_IFNAME, remove_link
from kubeproxy.netfilter.netlink.messages import (
    IFF_UP,
    LINK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    attributes,
    dump,
    encode,
    open_netlink,
    request,
)
from kubeproxy.netfilter.netlink.multicast import received, subscribe
from kubeproxy.runtime.classic_bpf import JEQ, LD_ABS, RET, SO_ATTACH_FILTER, SO_LOCK_FILTER, assemble, attach

# linux/rtnetlink.h
_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_RTM_NEWQDISC, _RTM_NEWTFILTER, _RTM_DELTFILTER = 36, 44, 45
_RTNLGRP_LINK = 1
# linux/if_link.h, linux/veth.h
_IFLA_MTU, _IFLA_LINKINFO, _IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 4, 18, 1, 2, 1
_IFF_LOOPBACK = 0x8
# linux/pkt_sched.h, linux/pkt_cls.h, linux/tc_act/tc_mirred.h
_TC = struct.Struct("=BxxxiIII")  # struct tcmsg: family, interface, handle, parent, info
_CLSACT, _EGRESS = 0xFFFF_0000, 0xFFFF_FFF3
_FIRST_OF_ALL_PROTOCOLS = 1 << 16 | socket.htons(0x0003)  # priority; ETH_P_ALL
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_ACT, _TCA_BPF_OPS_LEN, _TCA_BPF_OPS = 1, 4, 5
_TCA_ACT_KIND, _TCA_ACT_OPTIONS, _TCA_MIRRED_PARMS = 1, 2, 2
_MIRRED = struct.Struct("=IIiiiiI")  # struct tc_mirred: five of tc_gen, what to do, interface
_STOLEN, _INGRESS_REDIRECT = 4, 3
_FRAME: Final = struct.Struct("!HI6sH")
"""The header of an Ethernet frame: a destination (two bytes and the interface's number), a source, and the protocol."""
_UNICAST, _SOURCE = 0x0200, bytes.fromhex("020000000001")  # locally administered addresses
_PROTOCOL: Final[Mapping[int, int]] = {4: 0x0800, 6: 0x86DD}
_NUMBER_AT: Final = 2
_BYTES_MAX: Final = 65_535
"""The device's MTU, the largest that veth supports."""
_NAME = re.compile(r"kubeproxy([0-9]{5})p?")
_ROOM_BYTES: Final = 1 << 20


def device_of(group: int) -> str:
    """Return the name of the device for an NFLOG group. The other end of the pair has the same name with "p"
    appended."""
    return f"kubeproxy{group:05}"


class ReentrySocket:
    """Creates the device and sends packets through it. CAP_NET_ADMIN and CAP_NET_RAW are needed only to create it."""

    def __init__(self, group: int) -> None:
        """Create the device. Raise OSError if the kernel has no veth, clsact or packet sockets, or if this process may
        not create them. An existing device for `group` is replaced: this process owns that NFLOG group, so the device
        was left behind."""
        name = device_of(group)
        remove(group)
        with open_netlink() as netlink:
            _create(netlink, name)
        try:
            self._socket = _open(name)
        except BaseException:
            remove(group)
            raise

    def send(self, packet: bytes, link: int) -> None:
        """Let a packet enter this node at the interface with the number `link`. Raise OSError if the kernel does not
        accept it."""
        self._socket.send(_FRAME.pack(_UNICAST, link, _SOURCE, _PROTOCOL[packet[0] >> 4]) + packet)

    def close(self) -> None:
        """Close the socket. The device stays."""
        self._socket.close()


class Reentry:
    """Maintains the filters of a device that `ReentrySocket` has created, one for each interface. Interfaces may come
    and go."""

    def __init__(self, group: int) -> None:
        """Add the filters. Raise OSError if the device does not exist, or the kernel has no cls_bpf or act_mirred."""
        self._device = socket.if_nametoindex(device_of(group))
        self._known: set[int] = set()
        self._changes = subscribe(socket.NETLINK_ROUTE, _RTNLGRP_LINK)
        try:
            self._update()
        except BaseException:
            self._changes.close()
            raise

    def look(self) -> None:
        """Update the filters for interfaces that have come or gone since the last call. Raise OSError if the kernel
        refuses."""
        if list(received(self._changes)):
            self._update()

    def close(self) -> None:
        """End the subscription to interfaces. The device and its filters stay."""
        self._changes.close()

    def _update(self) -> None:
        with open_netlink() as netlink:
            wanted = {
                number
                for number, name, flags in _links(netlink)
                if not (flags & _IFF_LOOPBACK or _NAME.fullmatch(name))
            }
            for link in self._known - wanted:
                self._filter(netlink, _RTM_DELTFILTER, link)
            for link in wanted - self._known:
                self._filter(netlink, _RTM_NEWTFILTER, link, flags=NLM_F_CREATE | NLM_F_EXCL)

    def _filter(self, netlink: socket.socket, kind: int, link: int, *, flags: int = 0) -> None:
        values = [(_TCA_KIND, b"bpf\0")]
        if kind == _RTM_NEWTFILTER:
            values.append((_TCA_OPTIONS, _redirection(link)))
            self._known.add(link)
        else:
            self._known.discard(link)
        header = _TC.pack(socket.AF_UNSPEC, self._device, link, _EGRESS, _FIRST_OF_ALL_PROTOCOLS)
        try:
            request(netlink, kind, header + encode(values), flags=flags)
        except OSError as error:
            if error.errno == errno.ENOENT and kind == _RTM_DELTFILTER:
                return
            self._known.discard(link)
            if error.errno != errno.ENODEV:  # ENODEV: the interface has gone meanwhile.
                raise


def remove(group: int) -> None:
    """Remove the device of a group, if it exists. Raise OSError if the kernel refuses."""
    with open_netlink() as netlink:
        remove_link(netlink, device_of(group))


def groups() -> set[int]:
    """Return the groups that have a device. Raise OSError if the kernel refuses."""
    with open_netlink() as netlink:
        return {int(found[1]) for _, name, _ in _links(netlink) if (found := _NAME.fullmatch(name))}


def _links(netlink: socket.socket) -> list[tuple[int, str, int]]:
    """Return the number, name and flags of each interface."""
    found: list[tuple[int, str, int]] = []
    for payload in dump(netlink, _RTM_GETLINK):
        _, _, number, flags, _ = LINK.unpack_from(payload)
        name = next((value for kind, value in attributes(payload[LINK.size :]) if kind == IFLA_IFNAME), b"")
        found.append((number, name.rstrip(b"\0").decode(errors="replace"), flags))
    return found


def _create(netlink: socket.socket, name: str) -> None:
    down = LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    peer = down + encode([(IFLA_IFNAME, f"{name}p".encode() + b"\0")])
    info = [(_IFLA_INFO_KIND, b"veth\0"), (_IFLA_INFO_DATA, encode([(_VETH_INFO_PEER, peer)]))]
    values = [
        (IFLA_IFNAME, name.encode() + b"\0"),
        (_IFLA_MTU, struct.pack("=I", _BYTES_MAX)),
        (_IFLA_LINKINFO, encode(info)),
    ]
    up = LINK.pack(socket.AF_UNSPEC, 0, 0, IFF_UP, IFF_UP)
    request(netlink, _RTM_NEWLINK, up + encode(values), flags=NLM_F_CREATE | NLM_F_EXCL)
    queue = _TC.pack(socket.AF_UNSPEC, socket.if_nametoindex(name), _CLSACT, 0xFFFF_FFF1, 0)
    try:
        request(netlink, _RTM_NEWQDISC, queue + encode([(_TCA_KIND, b"clsact\0")]), flags=NLM_F_CREATE | NLM_F_EXCL)
    except BaseException:
        remove_link(netlink, name)
        raise


def _redirection(link: int) -> bytes:
    """Return the options of a filter, which matches frames for an interface and sends them there."""
    steps = [(LD_ABS, 0, 0, _NUMBER_AT), (JEQ, 0, 1, link), (RET, 0, 0, 0xFFFF_FFFF), (RET, 0, 0, 0)]
    parameters = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _INGRESS_REDIRECT, link)
    action = [(_TCA_ACT_KIND, b"mirred\0"), (_TCA_ACT_OPTIONS, encode([(_TCA_MIRRED_PARMS, parameters)]))]
    return encode(
        [
            (_TCA_BPF_ACT, encode([(1, encode(action))])),
            (_TCA_BPF_OPS_LEN, struct.pack("=H", len(steps))),
            (_TCA_BPF_OPS, assemble(steps)),
        ]
    )


def _open(name: str) -> socket.socket:
    """Return a packet socket that sends through a device and can never receive, even if it is bound again."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0)
    try:
        attach(sock, SO_ATTACH_FILTER, assemble([(RET, 0, 0, 0)]))
        # The filter can no longer be removed, whoever has the socket.
        sock.setsockopt(socket.SOL_SOCKET, SO_LOCK_FILTER, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        sock.bind((name, 0))
    except BaseException:
        sock.close()
        raise
    return sock
