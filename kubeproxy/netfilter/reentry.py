"""A device by which a client's packet enters this node once more, at the interface by which it came.

What is sent again has to meet all that the client's own packet met: the filter of source addresses, the forward hook,
and rules that name the client's interface. A packet of a raw socket would pass the output hook instead.

The device is one end of a veth pair; the other end is never up. Its egress has one filter for each interface of this
network namespace (cls_bpf, of classic BPF). The filter compares the number in the frame's destination address with that
of the interface, and hands the packet over as received there (act_mirred). The other interfaces are left as they are.
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
"""Of an Ethernet frame: two bytes and the interface's number as its destination, a source, the protocol."""
_UNICAST, _SOURCE = 0x0200, bytes.fromhex("020000000001")  # locally administered addresses
_PROTOCOL: Final[Mapping[int, int]] = {4: 0x0800, 6: 0x86DD}
_NUMBER_AT: Final = 2
_BYTES_MAX: Final = 65_535
"""The device's MTU, which is the largest that veth takes."""
_NAME = re.compile(r"kubeproxy([0-9]{5})p?")
_ROOM_BYTES: Final = 1 << 20


def device_of(group: int) -> str:
    """Return the name of the device that belongs to an NFLOG group. The other end of the pair has the same name with a
    "p" after it."""
    return f"kubeproxy{group:05}"


class ReentrySocket:
    """Makes the device anew, and sends packets by it. CAP_NET_ADMIN and CAP_NET_RAW are needed only to make it."""

    def __init__(self, group: int) -> None:
        """Raise OSError when the kernel has no veth, clsact or packet sockets, or this process may not make them.
        `group` is the NFLOG group, which is this process's own. So an existing device with its name is left over."""
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
        """Have a packet enter at the interface with this number. Raise OSError when the kernel does not take it."""
        self._socket.send(_FRAME.pack(_UNICAST, link, _SOURCE, _PROTOCOL[packet[0] >> 4]) + packet)

    def close(self) -> None:
        """Close the socket. The device stays."""
        self._socket.close()


class Reentry:
    """The filters of a device that `ReentrySocket` has made. There is one for each interface, and interfaces come and
    go."""

    def __init__(self, group: int) -> None:
        """Raise OSError when the device is not there, or the kernel has no cls_bpf or act_mirred."""
        self._device = socket.if_nametoindex(device_of(group))
        self._known: set[int] = set()
        self._changes = subscribe(socket.NETLINK_ROUTE, _RTNLGRP_LINK)
        try:
            self._update()
        except BaseException:
            self._changes.close()
            raise

    def look(self) -> None:
        """Follow the interfaces that have come and gone since the last look. Raise OSError if the kernel refuses."""
        if list(received(self._changes)):
            self._update()

    def close(self) -> None:
        """End the subscription. The device stays, with its filters."""
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
            if error.errno != errno.ENODEV:  # otherwise it has gone meanwhile
                raise


def remove(group: int) -> None:
    """Remove the device of a group, if it is there. Raise OSError when the kernel refuses."""
    with open_netlink() as netlink:
        remove_link(netlink, device_of(group))


def groups() -> set[int]:
    """Return the groups of which there are devices. Raise OSError when the kernel refuses."""
    with open_netlink() as netlink:
        return {int(found[1]) for _, name, _ in _links(netlink) if (found := _NAME.fullmatch(name))}


def _links(netlink: socket.socket) -> list[tuple[int, str, int]]:
    """Return the interfaces with number, name and flags."""
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
    """Return the options of a filter: which frames it matches, and to which interface they go."""
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
    """Return a packet socket that sends by a device and receives nothing, even if it were bound anew."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0)
    try:
        attach(sock, SO_ATTACH_FILTER, assemble([(RET, 0, 0, 0)]))
        sock.setsockopt(socket.SOL_SOCKET, SO_LOCK_FILTER, 1)  # for good, whoever has the socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        sock.bind((name, 0))
    except BaseException:
        sock.close()
        raise
    return sock
