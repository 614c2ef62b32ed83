"""Finds the processes in this network namespace that use a port, through sock_diag(7) and /proc."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kubeproxy.model import NODE_PORTS, Address, Family, Protocol, family_of
from kubeproxy.netfilter.netlink.messages import NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, attributes, dump, open_netlink

_QUESTION = struct.Struct("=BxxI2s46x")
"""The fields of struct inet_diag_req_v2 after the family: protocol, no extensions, states, local port, any socket."""
_ANSWER = struct.Struct("=4x2s2x16s16x12x12xII")
"""The fields of struct inet_diag_msg: local port, local address, user, inode."""
_SKV6ONLY = 11
"""INET_DIAG_SKV6ONLY (linux/inet_diag.h)."""
_LISTENING = 1 << 10
"""The bit of TCP_LISTEN (net/tcp_states.h). A socket that is only bound, like those of `port_claims`, answers no
client."""
_ANY_STATE = 0xFFF
_KINDS = {
    Protocol.TCP: (socket.IPPROTO_TCP, _LISTENING),
    Protocol.UDP: (socket.IPPROTO_UDP, _ANY_STATE),
}
_ANYWHERE = bytes(16)
_MAPPED = bytes(10) + b"\xff\xff"
_SEARCH_S = 0.02
"""How many seconds one search of /proc may take. On a node with thousands of processes it must not delay everything
else."""
_REST = 10
"""The pause after a search, in multiples of its duration. So even many conflicts cost at most a tenth of a core."""
_KNOWN = 1024
"""The largest number of processes that are cached."""
_FIRST_UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


class Holder(NamedTuple):
    """A process that uses a port, as far as the kernel tells."""

    uid: int
    """The user, as a number in this process's user namespace. Root of a container with its own user namespace is not
    0."""
    privileged: bool
    """Whether the process belongs to root or to this daemon's own user, or uses a port that only a privileged process
    can bind."""
    pid: int | None = None
    """The process id, or None if unknown, as for a process in a hidden PID namespace."""
    command: str = ""
    listening: bool = True
    """Whether the process listens on the port. If not, the port is only bound, as by a UDP socket."""

    def __str__(self) -> str:
        """Return the process as text for messages."""
        if self.pid is None:
            return f"a process of user {self.uid}"
        return f"process {self.pid} ({self.command}) of user {self.uid}"

    @property
    def ours(self) -> bool:
        """Return whether the process may be another instance of this program, which binds such ports but never listens
        on them."""
        if self.uid != os.geteuid():
            return False
        # Without CAP_SYS_PTRACE the process of a socket remains unknown.
        return not self.listening if self.pid is None else "kubeproxy" in self.command


class Holders:
    """Finds the processes that use a port. Only one thread may use it at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_search_at = 0.0
        self._known: dict[int, tuple[int, str]] = {}
        """The processes found by earlier searches, by the inode of their socket."""

    def __call__(self, protocol: Protocol, address: Address, port: int) -> tuple[Holder, ...]:
        """Return every process that answers on a port of an address.

        A wildcard address stands for all addresses of its family. TCP sockets count only if they listen. Raise OSError
        if the kernel refuses."""
        found: dict[Holder, None] = {}
        for uid, inode in sorted(set(_sockets(protocol, address, port))):
            privileged = uid in (0, os.geteuid()) or port < _first_unprivileged()
            pid, command = self._process_of(inode)
            found[Holder(uid, privileged, pid, command, protocol is Protocol.TCP)] = None
        return tuple(found)

    def _process_of(self, inode: int) -> tuple[int | None, str]:
        if inode in self._known:
            return self._known[inode]
        began = self._clock()
        if began < self._next_search_at:
            return None, ""
        found = _search(f"socket:[{inode}]", lambda: self._clock() - began > _SEARCH_S)
        ended = self._clock()
        self._next_search_at = ended + _REST * (ended - began)
        if found is None:
            return None, ""
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[inode] = found
        return found


def kube_proxy_process() -> int | None:
    """Return the id of a process named kube-proxy, or None if there is none. The name of a process can be read even if
    its sockets cannot."""
    for process in filter(str.isdecimal, os.listdir("/proc")):
        if int(process) == os.getpid():  # `kubeproxy run` may itself be called kube-proxy.
            continue
        with suppress(OSError):
            if Path("/proc", process, "comm").read_text().startswith("kube-proxy"):
                return int(process)
    return None


def _sockets(protocol: Protocol, address: Address, port: int) -> Iterator[tuple[int, int]]:
    """Yield the user and the inode of each socket that uses the port in the address's family."""
    number, states = _KINDS[protocol]
    wanted = port.to_bytes(2, "big")
    families = (socket.AF_INET6,) if family_of(address) is Family.IPV6 else (socket.AF_INET, socket.AF_INET6)
    for family in families:
        with open_netlink(NETLINK_SOCK_DIAG) as netlink:
            question = _QUESTION.pack(number, states, wanted)
            for answer in dump(netlink, SOCK_DIAG_BY_FAMILY, family, rest=question):
                own_port, own, uid, inode = _ANSWER.unpack_from(answer)
                v6only = dict(attributes(answer[_ANSWER.size :])).get(_SKV6ONLY, b"\0") != b"\0"
                if own_port == wanted and _overlaps(address, family, own, v6only=v6only):
                    yield uid, inode


def _overlaps(address: Address, family: int, own: bytes, *, v6only: bool) -> bool:
    """Return whether a socket bound to `own`, of the given address family, answers at an address."""
    wildcard = address in NODE_PORTS.values()
    if family_of(address) is Family.IPV6:
        return wildcard or own in (_ANYWHERE, socket.inet_pton(socket.AF_INET6, address))
    if family == socket.AF_INET6:
        if own == _ANYWHERE:
            return not v6only
        if not own.startswith(_MAPPED):
            return False
        own = own[len(_MAPPED) :]
    return wildcard or own[:4] in (_ANYWHERE[:4], socket.inet_pton(socket.AF_INET, address))


def _search(link: str, expired: Callable[[], bool]) -> tuple[int, str] | None:
    """Return the process that has a file of this name open, and its command line, or None if none was found in time."""
    for process in filter(str.isdecimal, os.listdir("/proc")):
        # The process has ended, or is another user's.
        with suppress(OSError), os.scandir(f"/proc/{process}/fd") as descriptors:
            for descriptor in descriptors:
                if expired():
                    return None
                if os.readlink(descriptor.path) == link:
                    return int(process), _command(Path("/proc", process))
    return None


def _command(process: Path) -> str:
    words = (process / "cmdline").read_bytes()[:200].split(b"\0")
    text = b" ".join(words).decode(errors="replace").strip()
    return "".join(c if c.isprintable() else "?" for c in text)[:80]


def _first_unprivileged() -> int:
    try:
        return int(_FIRST_UNPRIVILEGED.read_text())
    except (OSError, ValueError):
        return 1024
