"""The SYNs of the last seconds, so that they can be sent again. Pure.

Almost no SYN is ever needed. So what the kernel sends is kept as it came, in segments of a tenth of a second, and a
segment is read when a lookup comes to it: the latest first, and no further than to what is looked for. What has been
read stays indexed. A lookup reads few segments; of older ones it only searches the bytes. So one that finds nothing
does not stop the process for long, and many of them read everything, once.

They are bounded in number, bytes and age, and never logged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from kubeproxy.rescue import nflog
from kubeproxy.rescue.packets import Side, Syn, parse

KEEP_S: Final = 2.0
"""How long a copy is kept: a silent endpoint is found within 0.4 s, and after 1 s the client sends another SYN."""
COPIES_MAX: Final = 16_384
"""Copies kept; beyond it the oldest segment is dropped. As they come they take some 150 bytes each, once they have been
read 600."""
BYTES_MAX: Final = 8 << 20
"""Bytes of all messages kept: SYNs with data are longer."""
SEGMENT_S: Final = 0.1
SEGMENT_COPIES: Final = 256
"""What a segment takes, and so what a lookup reads beyond what it looks for: about two milliseconds of work."""
SEGMENTS_AT_ONCE: Final = 4
"""What a lookup reads without a sign that it has what is looked for. Beyond it, bytes are searched: a SYN is found by
them unless it has data, or IPv4 options."""
RETRANSMITTED_S: Final = 0.5
"""A SYN that comes again so long after the last attempt is the client's own retransmission: its attempts count anew.
Clients repeat it after a second."""


class Connection(NamedTuple):
    """A client's connection, as the client began it."""

    client: Side
    service: Side


@dataclass(slots=True)
class Copy:
    """A SYN, and what has been done with it."""

    syn: Syn
    link: int
    """The number of the interface by which it came; 0: it is this host's own."""
    at: float
    """When it came."""
    attempts: int = 0
    tried_at: float = float("-inf")

    @property
    def key(self) -> tuple[Side, Side, int]:
        """What distinguishes the SYN from all others."""
        return (self.syn.client, self.syn.service, self.syn.sequence)


class _Segment:
    """Copies that came one after the other."""

    def __init__(self, now: float) -> None:
        self.began = self.ended = now
        self.count = self.size = 0
        self._unread: list[tuple[bytes, float]] = []
        self._by_connection: dict[Connection, Copy] = {}

    @property
    def read(self) -> bool:
        """Whether all that has come is indexed."""
        return not self._unread

    def add(self, data: bytes, count: int, now: float) -> None:
        """Keep one read from the packet log."""
        self._unread.append((data, now))
        self.count += count
        self.size += len(data)
        self.ended = now

    def may_have(self, sign: bytes) -> bool:
        """Return whether these bytes are somewhere in what has not been read."""
        return any(sign in data for data, _ in self._unread)

    def latest_of(self, key: Connection) -> Copy | None:
        """Return the latest copy of a connection."""
        self._read()
        return self._by_connection.get(key)

    def _read(self) -> None:
        if not self._unread:
            return
        for data, at in self._unread:
            for link, packet in nflog.copies(data):
                syn = parse(packet)
                if isinstance(syn, Syn):
                    self._by_connection[Connection(syn.client, syn.service)] = Copy(syn, link, at)
        self._unread.clear()


class Copies:
    """The copies, in the order in which they came."""

    def __init__(self) -> None:
        self._segments: deque[_Segment] = deque()
        self._count = self._bytes = 0
        # Those looked up, in this order, for the number of their attempts.
        self._tried: dict[tuple[Side, Side, int], Copy] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def unread(self) -> int:
        """Segments that no lookup has come to."""
        return sum(not segment.read for segment in self._segments)

    def add(self, data: bytes, count: int, now: float) -> None:
        """Keep one read from the packet log, with so many copies."""
        latest = self._segments[-1] if self._segments else None
        if latest is None or latest.count >= SEGMENT_COPIES or now - latest.began >= SEGMENT_S:
            latest = _Segment(now)
            self._segments.append(latest)
        latest.add(data, count, now)
        self._count += count
        self._bytes += len(data)
        self.forget(now)

    def of(self, client: Side, service: Side) -> Copy | None:
        """Return the copy of a connection's SYN, to send it again."""
        found = self._find(Connection(client, service))
        return self._resolved(found) if found is not None else None

    def forget(self, now: float) -> None:
        """Drop what is too old, or too much."""
        segments = self._segments
        while segments:
            oldest = segments[0]
            if oldest.ended > now - KEEP_S and self._count <= COPIES_MAX and self._bytes <= BYTES_MAX:
                break
            segments.popleft()
            self._count -= oldest.count
            self._bytes -= oldest.size
        tried = self._tried
        while tried and (next(iter(tried.values())).at <= now - KEEP_S or len(tried) > COPIES_MAX):
            del tried[next(iter(tried))]

    def clear(self) -> None:
        """Drop all."""
        self._segments.clear()
        self._tried.clear()
        self._count = self._bytes = 0

    def _find(self, key: Connection) -> Copy | None:
        client, service = key
        # Bytes of the packet, unless it has IPv4 options.
        sign = client.address + service.address + client.port.to_bytes(2, "big") + service.port.to_bytes(2, "big")
        to_read = SEGMENTS_AT_ONCE
        for segment in reversed(self._segments):
            if not segment.read:
                if to_read == 0 and not segment.may_have(sign):
                    continue
                to_read = max(0, to_read - 1)
            if (found := segment.latest_of(key)) is not None:
                return found
        return None

    def _resolved(self, found: Copy) -> Copy:
        """Return the copy that has the attempts: an echo of our own attempt is none of its own."""
        tried = self._tried.get(found.key)
        if tried is not None:
            if found.at - max(tried.at, tried.tried_at) < RETRANSMITTED_S:
                return tried
            del self._tried[found.key]
        self._tried[found.key] = found
        return found
