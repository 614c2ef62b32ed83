"""The rescue process: reads copies and reports from NFLOG, and sends first packets again.

The process opens NFLOG and creates a device (CAP_NET_ADMIN), opens the sockets for sending (CAP_NET_RAW), and then
drops every capability for good. After that it can read what the rules send to its NFLOG group, and send any packet. It
can change no rule, open no other sockets or files, and execute no program. Its input comes from the network, so the
parser is fuzzed. No packet is ever logged.

When the control process has ended, this process continues until the rules have become inert, and sends refused SYNs
again as before.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

from kubeproxy.dataplane.loop.reactor import LEVEL, Reactor, Timer
from kubeproxy.netfilter import reentry
from kubeproxy.netfilter.netlink.messages import NETLINK_NETFILTER, answers, open_netlink
from kubeproxy.netfilter.nftables.rescue import BRIDGE_S, COPIES_PER_MESSAGE, PACKET_BYTES
from kubeproxy.rescue import nflog
from kubeproxy.rescue.packets import Refusal, Refused, Unreachable, parse
from kubeproxy.rescue.protocol import (
    BEAT_S,
    MESSAGE_BYTES,
    Beat,
    Failed,
    GarbledMessageError,
    Report,
    Started,
    decode_order,
)
from kubeproxy.rescue.protocol import encode as encode_message
from kubeproxy.rescue.raw_socket import RawSockets
from kubeproxy.rescue.resends import Packet, Resends
from kubeproxy.runtime import privileges, sandbox

EXIT_INTERNAL_ERROR: Final = 70
"""sysexits' EX_SOFTWARE."""
ROOM_BYTES: Final = 4 << 20
"""The kernel's buffer for NFLOG in bytes: some 30,000 copies."""
READS_PER_TURN: Final = 32
STOPPED_S: Final = 1.0
"""If the process did not run for this long, it was stopped, and the waiting packets are out of date."""
_SO_RCVBUFFORCE: Final = 33
"""asm-generic/socket.h"""


class Rescuer:
    """The process, from its start to its exit."""

    def __init__(
        self, channel: socket.socket, log: socket.socket, raw: RawSockets, entry: reentry.ReentrySocket | None
    ) -> None:
        """`entry` is None if clients' packets cannot enter this node again."""
        self._reactor = Reactor()
        self._channel: socket.socket | None = channel
        self._log = log
        self._room = memoryview(bytearray(nflog.READ_BYTES))
        self._raw = raw
        self._entry = entry
        self._resends = Resends()
        self._resent = self._unsent = self._overflows = 0
        self._timer: Timer | None = None
        self._turned_at = self._reactor.now
        channel.setblocking(False)
        log.setblocking(False)
        self._reactor.add(channel.fileno(), self._on_channel, LEVEL)
        self._reactor.add(log.fileno(), self._on_log, LEVEL)
        self._reactor.after(BEAT_S, self._beat)

    def live(self) -> None:
        """Work until the control process has gone."""
        self._reactor.run()

    def report(self, message: Report) -> None:
        """Send a message to the control process. If the socket is full, the message is dropped; the control process
        learns of the failure from a later one."""
        if self._channel is None:
            return
        try:
            with contextlib.suppress(BlockingIOError):
                self._channel.send(encode_message(message))
        except OSError:
            self._lose_channel()

    def _on_log(self, what: int) -> None:
        now = self._reactor.now
        stale = now - self._turned_at > STOPPED_S
        self._turned_at = now
        if stale:
            self._resends.clear()
        for _ in range(READS_PER_TURN):
            try:
                size = self._log.recv_into(self._room)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._overflows += 1
                continue
            if not stale:
                self._take(bytes(self._room[:size]), now)
        self._send_due()

    def _take(self, data: bytes, now: float) -> None:
        """Store the copies, then act on the reports. A report never arrives before its copy."""
        reports = [each.packet for each in nflog.packets(data) if each.reported] if nflog.may_report(data) else []
        if copies := nflog.count(data) - len(reports):
            self._resends.copied(data, copies, now)
        for packet in reports:
            found = parse(packet)
            failed: Failed | None = None
            if isinstance(found, Refusal):
                failed = self._resends.refused(found, now)
            elif isinstance(found, Refused):
                self._resends.refused_client(found, now)
            elif isinstance(found, Unreachable):
                failed = self._resends.unreachable(found, now)
            if failed is not None:
                self.report(failed)

    def _on_channel(self, what: int) -> None:
        while self._channel is not None:
            try:
                data = self._channel.recv(MESSAGE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._lose_channel()
                break
            try:
                order = decode_order(data)
            except GarbledMessageError as error:
                _log(str(error))
                self._lose_channel()
                break
            for packet in self._resends.freed(order, self._reactor.now):
                self._send(packet)
        self._send_due()

    def _send_due(self) -> None:
        """Send the packets that are due, and set the timer for the next ones."""
        now = self._reactor.now
        for packet in self._resends.due(now):
            self._send(packet)
        for failed in self._resends.late_reports(now):
            self.report(failed)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (at := self._resends.next_at) is not None:
            self._timer = self._reactor.after(max(0.0, at - now), self._send_due)

    def _send(self, packet: Packet) -> None:
        try:
            if not packet.link:
                self._raw.send(packet.data, packet.by_way_of)
            elif self._entry is not None:
                self._entry.send(packet.data, packet.link)
            # Sent by the raw socket, the packet would bypass this node's policies. The client retransmits instead.
            else:
                self._unsent += 1
                return
            self._resent += 1
        except OSError:
            self._unsent += 1

    def _beat(self) -> None:
        self._reactor.after(BEAT_S, self._beat)
        self._turned_at = self._reactor.now
        self._resends.forget(self._reactor.now)
        self.report(
            Beat(self._resends.counts(resent=self._resent, unsent=self._unsent, overflows=self._overflows)),
        )

    def _lose_channel(self) -> None:
        """Keep working without the control process until the rules are inert."""
        if self._channel is None:
            return
        self._reactor.remove(self._channel.fileno())
        self._channel.close()
        self._channel = None
        self._reactor.after(BRIDGE_S, self._reactor.stop)


def open_log(preferred: int) -> tuple[socket.socket, int]:
    """Return the NFLOG socket and the group that it reads. Raise OSError if no group is free, or if the kernel has no
    NFLOG."""
    sock = open_netlink(NETLINK_NETFILTER)
    with contextlib.suppress(PermissionError):  # In a user namespace the buffer keeps its default size.
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, ROOM_BYTES)
    for group in [preferred, *(each for each in nflog.GROUPS if each != preferred)]:
        try:
            if not _reads(sock, group):
                continue
        except OSError:
            sock.close()
            raise
        return sock, group
    sock.close()
    groups = f"{nflog.GROUPS[0]} to {nflog.GROUPS[-1]}"
    raise OSError(errno.EBUSY, f"all NFLOG groups from {groups} are taken, or CAP_NET_ADMIN is missing")


def _reads(sock: socket.socket, group: int) -> bool:
    """Bind a socket to an NFLOG group. Return False if the group is taken; raise OSError for other errors. Without
    CAP_NET_ADMIN all groups seem to be taken."""
    sock.send(nflog.bind_request(group, packet_bytes=PACKET_BYTES, threshold=COPIES_PER_MESSAGE, sequence=group))
    try:
        for _ in answers(sock, group):
            pass
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EBUSY):
            return False
        raise
    return True


def _open_reentry(group: int) -> tuple[reentry.ReentrySocket | None, str | None]:
    """Return the socket through which clients' packets enter this node again, or None and the reason why there is
    none."""
    try:
        for other in reentry.groups() - {group}:
            with open_netlink(NETLINK_NETFILTER) as sock:
                if _reads(sock, other):  # The process that created the device was killed.
                    reentry.remove(other)
        return reentry.ReentrySocket(group), None
    except OSError as error:
        return None, error.strerror or str(error)


def main(arguments: Sequence[str]) -> int:
    """Run the process, and return its exit status. The arguments are those of `process.command`."""
    fd, preferred = map(int, arguments)
    try:
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # The name is only for ps and top.
            comm.write("kubeproxy-resc")
        # A signal to the process group (Ctrl-C, for example) is meant for the control process.
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(ignored, signal.SIG_IGN)
        channel = socket.socket(fileno=fd)
        log, group = open_log(preferred)
        entry, shut_out = _open_reentry(group)
        process = Rescuer(channel, log, RawSockets(), entry)
        sandbox.leave_file_system()
        privileges.drop()
        unfiltered = sandbox.confine(sockets=False)
        gc.collect()
        gc.freeze()
        process.report(Started(group, unfiltered, shut_out))
        process.live()
    except OSError as error:
        _log(f"cannot work: {error.strerror or error}")
        return 1
    except BaseException as error:
        _log(f"internal error: {type(error).__name__}")  # The text of the error might hold a client's bytes.
        return EXIT_INTERNAL_ERROR
    return 0


def _log(text: str) -> None:
    print(f"kubeproxy rescue (pid {os.getpid()}): {text}", file=sys.stderr, flush=True)  # noqa: T201 - its log


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
