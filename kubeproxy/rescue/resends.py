"""Decides which packets are sent again, and when (pure).

The SYN of a refused client is sent again at once. Until the control process has ejected the endpoint, the SYN may reach
the same endpoint by chance, so the delay grows with each attempt. If the endpoint is silent or unreachable, the
conntrack entry would send the packet there again. So the packet waits until the control process has deleted the entry.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count, islice
from typing import Final, NamedTuple

from kubeproxy.model import Protocol, Target
from kubeproxy.model.rescue import RescueCounts
from kubeproxy.rescue.copies import COPIES_MAX, KEEP_S, Copies, Copy
from kubeproxy.rescue.nflog import FLUSH_S
from kubeproxy.rescue.packets import Refusal, Refused, Side, Unreachable, again, datagram, packed, text_of
from kubeproxy.rescue.protocol import Failed, Freed, FreedFlow, Reason

DELAYS_S: Final = (0.0, 0.002, 0.004, 0.008, 0.016, 0.064, 0.25, 0.5)
"""The delays before each attempt for the same SYN. Their sum is less than a second, after which the client retransmits
it. Their number is limited, so that two dead endpoints cannot bounce a SYN between them endlessly."""
AWAITED_S: Final = 1.5 * FLUSH_S
"""How long to wait for a copy that the kernel may still be collecting. A report never comes before its copy, but the
control process may delete a flow before that."""
QUIET_S: Final = 0.02
"""For how long further failures of the same kind are not reported for an endpoint. Packets that do not reach the
endpoint in that time are reported at its end, because their flows have to be deleted."""
SCHEDULED_MAX: Final = 16_384
"""The largest number of attempts that may wait."""
DATAGRAMS_MAX, DATAGRAM_S = 1024, 1.0
"""The largest number of datagrams that may wait, and for how many seconds."""


class Packet(NamedTuple):
    """A packet to send."""

    data: bytes
    by_way_of: bytes
    """An address that decides the route. The service address itself may have no route."""
    link: int
    """The number of the interface on which the client's packet arrives, or 0 if the client is on this host."""


class _Waiting(NamedTuple):
    at: float
    unreachable: Unreachable


class _Awaited(NamedTuple):
    until: float
    client: Side
    service: Side
    by_way_of: bytes


class _First(NamedTuple):
    key: tuple[Side, Side, int]
    at: float


class Resends:
    """The packets and attempts of one rescue process."""

    def __init__(self) -> None:
        self._copies = Copies()
        self._ticket = count()
        self._scheduled: list[tuple[float, int, Copy, bytes]] = []
        self._datagrams: deque[_Waiting] = deque()
        self._awaited: deque[_Awaited] = deque()
        """The connections whose flow was deleted before their copy arrived."""
        self._way: dict[int, bytes] = {}
        """The last endpoint that refused a connection, by the length of its address: 4 or 16 bytes."""
        self._first: dict[int, _First] = {}
        """For each sequence number, the connection that used it first. The connection with the latest attempt comes
        last."""
        self._reported: dict[tuple[Protocol, Side, Reason], float] = {}
        self._unreported: dict[tuple[Protocol, Side, Reason], float] = {}
        """The failures still to be reported, each with its time. There are only a few, because the rules limit the rate
        of reports."""
        self._copied = self._refused = self._unreachable = self._given_up = self._unknown = 0

    def counts(self, *, resent: int, unsent: int, overflows: int) -> RescueCounts:
        """Return the counts of this process, completed with the three given numbers."""
        return RescueCounts(
            copied=self._copied,
            refused=self._refused,
            unreachable=self._unreachable,
            resent=resent,
            given_up=self._given_up,
            unknown=self._unknown,
            unsent=unsent,
            overflows=overflows,
            held=len(self._copies),
        )

    def copied(self, data: bytes, count: int, now: float) -> None:
        """Store the `count` copies in the result of one read from the NFLOG socket."""
        self._copied += count
        self._copies.add(data, count, now)

    def refused(self, refusal: Refusal, now: float) -> Failed | None:
        """Record that an endpoint refused a client. Return the report, or None if there was one a moment ago."""
        self._refused += 1
        self._way[len(refusal.endpoint.address)] = refusal.endpoint.address
        return self._report(Protocol.TCP, refusal.endpoint, Reason.REFUSED, now)

    def refused_client(self, refused: Refused, now: float) -> None:
        """Schedule the SYN of a refused connection, given with the addresses that the client used. `refused` is called
        before, for the same reset.

        Only the SYN that began this very connection is sent again. A client could reuse the sequence number of a
        refused SYN for another packet that this node has dropped.
        """
        copy = self._copies.of(refused.client, refused.service)
        by_way_of = self._way.get(len(refused.client.address))
        if copy is None or copy.syn.last != refused.last or by_way_of is None:
            self._unknown += 1
        else:
            self._schedule(copy, by_way_of, now)

    def unreachable(self, error: Unreachable, now: float) -> Failed | None:
        """Record that a packet did not reach its endpoint. Return the report, or None if there was one a moment ago."""
        self._unreachable += 1
        if error.protocol is Protocol.UDP:
            if error.payload is None:
                self._unknown += 1
            else:
                self._datagrams.append(_Waiting(now, error))
                self._forget_datagrams(now)
        failed = self._report(error.protocol, error.endpoint, Reason.UNREACHABLE, now)
        if failed is None:
            key = (error.protocol, error.endpoint, Reason.UNREACHABLE)
            self._unreported.setdefault(key, self._reported[key] + QUIET_S)
        return failed

    def late_reports(self, now: float) -> list[Failed]:
        """Return the postponed reports that are due."""
        due = [key for key, at in self._unreported.items() if at <= now]
        for key in due:
            del self._unreported[key]
            self._reported[key] = now
        return [Failed(protocol, endpoint.target, reason) for protocol, endpoint, reason in due]

    def freed(self, freed: Freed, now: float) -> list[Packet]:
        """Record that the flows to an endpoint are deleted. Return the datagrams to send now; `due` returns their
        SYNs."""
        if freed.protocol is Protocol.UDP:
            return self._datagrams_of(freed, now)
        by_way_of = packed(freed.endpoint.address)
        for flow in freed.flows:
            client, service = _sides(flow)
            if (copy := self._copies.of(client, service)) is not None:
                self._schedule(copy, by_way_of, now)
            elif len(self._awaited) < SCHEDULED_MAX:
                self._awaited.append(_Awaited(now + AWAITED_S, client, service, by_way_of))
            else:
                self._unknown += 1
        return []

    def due(self, now: float) -> list[Packet]:
        """Return the SYNs to send now."""
        while self._awaited and self._awaited[0].until <= now:
            awaited = self._awaited.popleft()
            if (copy := self._copies.of(awaited.client, awaited.service)) is not None:
                self._schedule(copy, awaited.by_way_of, now)
            else:
                self._unknown += 1
        found: list[Packet] = []
        while self._scheduled and self._scheduled[0][0] <= now:
            _, _, copy, by_way_of = heapq.heappop(self._scheduled)
            if (data := again(copy.syn)) is not None:
                copy.tried_at = now
                found.append(Packet(data, by_way_of, copy.link))
        return found

    @property
    def next_at(self) -> float | None:
        """Return when the next SYN or report is due, or None if nothing is scheduled."""
        times = [*(it.until for it in islice(self._awaited, 1)), *(at for at, *_ in self._scheduled[:1])]
        return min([*times, *self._unreported.values()], default=None)

    def forget(self, now: float) -> None:
        """Drop what is too old. The caller does this now and then."""
        self._copies.forget(now)
        while self._first and (first := next(iter(self._first))) and self._first[first].at <= now - KEEP_S:
            del self._first[first]
        self._forget_datagrams(now)
        self._reported = {key: at for key, at in self._reported.items() if at > now - QUIET_S}

    def clear(self) -> None:
        """Drop everything. The process was stopped for so long that clients have given up."""
        self._copies.clear()
        self._scheduled.clear()
        self._awaited.clear()
        self._datagrams.clear()
        self._unreported.clear()

    def _schedule(self, copy: Copy, by_way_of: bytes, now: float) -> None:
        if copy.attempts >= len(DELAYS_S) or len(self._scheduled) >= SCHEDULED_MAX or not self._is_first(copy, now):
            self._given_up += 1
            return
        at = now + DELAYS_S[copy.attempts]
        copy.attempts += 1
        heapq.heappush(self._scheduled, (at, next(self._ticket), copy, by_way_of))

    def _is_first(self, copy: Copy, now: float) -> bool:
        """Return whether this is the first recent connection with its SYN's sequence number.

        If nodes have each other's node ports as endpoints, they pass a SYN around until its hop limit is used up, each
        time from another port. If every copy had attempts of its own, each of them would be sent again.
        """
        key, last = copy.key, copy.syn.last
        first = self._first.get(last)
        if first is not None and first.key != key and now - first.at < KEEP_S:
            return False
        self._first.pop(last, None)
        self._first[last] = _First(key, now)
        while len(self._first) > COPIES_MAX:
            del self._first[next(iter(self._first))]
        return True

    def _report(self, protocol: Protocol, endpoint: Side, reason: Reason, now: float) -> Failed | None:
        key = (protocol, endpoint, reason)
        if self._reported.get(key, float("-inf")) > now - QUIET_S:
            return None
        self._reported[key] = now
        return Failed(protocol, endpoint.target, reason)

    def _datagrams_of(self, freed: Freed, now: float) -> list[Packet]:
        self._forget_datagrams(now)
        flows = {(flow.peer, flow.peer_port): flow for flow in freed.flows}
        kept: deque[_Waiting] = deque()
        found: list[Packet] = []
        for waiting in self._datagrams:
            error = waiting.unreachable
            flow = flows.get((text_of(error.peer.address), error.peer.port))
            if flow is None or error.payload is None or not _is(error.endpoint, freed.endpoint):
                kept.append(waiting)
                continue
            if flow.link is None:
                self._unknown += 1
                continue
            client, service = _sides(flow)
            found.append(Packet(datagram(client, service, error.payload), error.endpoint.address, flow.link))
        self._datagrams = kept
        return found

    def _forget_datagrams(self, now: float) -> None:
        waiting = self._datagrams
        while waiting and (waiting[0].at <= now - DATAGRAM_S or len(waiting) > DATAGRAMS_MAX):
            waiting.popleft()


def _sides(flow: FreedFlow) -> tuple[Side, Side]:
    return Side(packed(flow.client), flow.client_port), Side(packed(flow.service), flow.service_port)


def _is(side: Side, target: Target) -> bool:
    return side.port == target.port and text_of(side.address) == target.address
