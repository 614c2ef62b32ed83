"""Keeps the SYNs of the last seconds, so that they can be sent again.

Few SYNs are ever needed. So messages of the kernel are stored as they are, in segments of about a tenth of a second,
and are parsed only by a lookup. A lookup starts with the newest segment and stops at the SYN that it needs. It parses
at most a few segments; in older segments it only searches for the bytes of the SYN. Parsed segments stay indexed. So a
failed lookup does not block the process for long, and many lookups together parse each segment once.

The copies are bounded in number, bytes and age, and never logged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from kubeproxy.rescue import nflog
from kubeproxy.rescue.packets import Side, Syn, parse

KEEP_S: Final = 2.0
"""How long a copy is kept. A silent endpoint is found within 0.4 s, and after 1 s the client sends another SYN."""
COPIES_MAX: Final = 16_384
"""How many copies are kept; beyond that number the oldest segment is dropped. A copy takes some 150 bytes as received,
and 600 once it has been parsed."""
BYTES_MAX: Final = 8 << 20
"""How many bytes of messages are kept in total. The number of copies alone is no limit, because SYNs with data are
longer."""
SEGMENT_S: Final = 0.1
SEGMENT_COPIES: Final = 256
"""How many copies a segment contains, and so how many a lookup may parse beyond the one that it needs. Parsing a
segment takes about two milliseconds."""
SEGMENTS_AT_ONCE: Final = 4
"""How many segments a lookup parses at once. In further segments it first searches the bytes for the connection, which
finds the SYN unless the SYN has data or IPv4 options."""
RETRANSMITTED_S: Final = 0.5
"""If a SYN arrives this long after the last attempt to send it again, it is the client's own retransmission (after a
second), and its attempts are counted from 0."""


class Connection(NamedTuple):
    """A client's connection: the client, and the service address to which the client sent its SYN."""

    client: Side
    service: Side


@dataclass(slots=True)
class Copy:
    """A SYN, and the attempts to send it again."""

    syn: Syn
    link: int
    """The number of the interface on which the SYN arrived, or 0 if it is from this host."""
    at: float
    """When the SYN arrived."""
    attempts: int = 0
    tried_at: float = float("-inf")

    @property
    def key(self) -> tuple[Side, Side, int]:
        """Return the key that identifies the SYN: client, service address and sequence number."""
        return (self.syn.client, self.syn.service, self.syn.sequence)


class _Segment:
    """Copies that arrived one after another, parsed only when they are needed."""

    def __init__(self, now: float) -> None:
        self.began = self.ended = now
        self.count = self.size = 0
        self._unread: list[tuple[bytes, float]] = []
        self._by_connection: dict[Connection, Copy] = {}

    @property
    def read(self) -> bool:
        """Return whether all copies of the segment are parsed and indexed."""
        return not self._unread

    def add(self, data: bytes, count: int, now: float) -> None:
        """Store the `count` copies in the result of one read from the NFLOG socket."""
        self._unread.append((data, now))
        self.count += count
        self.size += len(data)
        self.ended = now

    def may_have(self, sign: bytes) -> bool:
        """Return whether these bytes occur in the copies that are not parsed yet."""
        return any(sign in data for data, _ in self._unread)

    def latest_of(self, key: Connection) -> Copy | None:
        """Return the latest copy of a connection, or None if the segment has none."""
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
        # All copies that were looked up, the oldest first. A later copy of the same SYN takes its number of attempts
        # from here.
        self._tried: dict[tuple[Side, Side, int], Copy] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def unread(self) -> int:
        """Return the number of segments in which no lookup has parsed anything."""
        return sum(not segment.read for segment in self._segments)

    def add(self, data: bytes, count: int, now: float) -> None:
        """Store the `count` copies in the result of one read from the NFLOG socket."""
        latest = self._segments[-1] if self._segments else None
        if latest is None or latest.count >= SEGMENT_COPIES or now - latest.began >= SEGMENT_S:
            latest = _Segment(now)
            self._segments.append(latest)
        latest.add(data, count, now)
        self._count += count
        self._bytes += len(data)
        self.forget(now)

    def of(self, client: Side, service: Side) -> Copy | None:
        """Return the copy of a connection's SYN, or None if there is none."""
        found = self._find(Connection(client, service))
        return self._resolved(found) if found is not None else None

    def forget(self, now: float) -> None:
        """Drop copies that are too old, or too many."""
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
        """Drop all copies."""
        self._segments.clear()
        self._tried.clear()
        self._count = self._bytes = 0

    def _find(self, key: Connection) -> Copy | None:
        client, service = key
        # These bytes are in the SYN as they are, unless it has IPv4 options.
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
        """Return the copy that has the number of attempts: the earlier one, if this is a copy of a SYN that we sent
        again."""
        tried = self._tried.get(found.key)
        if tried is not None:
            if found.at - max(tried.at, tried.tried_at) < RETRANSMITTED_S:
                return tried
            del self._tried[found.key]
        self._tried[found.key] = found
        return found
